"""`specmargin profile`: profiles from captures and banks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from specmargin.architecture.types import Architecture, ExpertPool
from specmargin.catalog.lookup import find_model
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import ScenarioError, needs_extra
from specmargin.files import check_new, write_text

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds
    from specmargin.app.acceptance_study import LadderPrices
    from specmargin.routing.capture import Capture
    from specmargin.routing.schema import RoutingFile

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
_ENDING = ".routing.json"
_LAGS_SHOWN = 4
SourceOption = Annotated[
    str | None,
    typer.Option(help="Source recorded in the profile: model, drafter, conditions. Default: the file names."),
]


@app.callback()
def _profile() -> None:
    """Build profiles from captures and banks, for --routing and --acceptance."""


@app.command()
def routing(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Banks (a folder with routing.npy and routing_meta.parquet) or arrays of (tokens, layers, k) that an "
            "engine returned, one per request: PATH or CATEGORY=PATH, files or folders.",
            show_default=False,
        ),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help=f"Where to write NAME{_ENDING}.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The captured model, which determines the number of experts.")
    ] = None,
    experts: Annotated[int | None, typer.Option(min=1, help="Experts per layer, if no --model is given.")] = None,
    longest_run: Annotated[int, typer.Option(min=2, max=64, help="Longest run to count (returned arrays: 16).")] = 16,
    source: SourceOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Profile a capture of routed experts: popularity, locality and overlap by category.

    Examples:

      specmargin profile routing bank/ --model MODEL -o mine.routing.json

      specmargin profile routing coding=runs/code prose=runs/prose --experts 256 -o mine.routing.json

      specmargin plan MODEL --gpu h200 --routing mine.routing.json:coding
    """
    with needs_extra("profile"):
        from specmargin.routing.building import build_profile
        from specmargin.routing.capture import open_captures
        from specmargin.routing.counting import count
        from specmargin.routing.schema import as_text
    if output is not None:
        check_new(output, force=force)
    captures = open_captures(files)
    pool = _pool(captures[0], model, experts)
    with render.progress("counting", sum(capture.positions for capture in captures)) as advance:
        counts = count(captures, experts=pool.experts, longest_run=longest_run, advance=advance)
    name = output.name.removesuffix(_ENDING) if output is not None else "captured"
    provenance = source or ", ".join(dict.fromkeys(capture.path.name for capture in captures))
    profile = build_profile(counts, name=name, pool=pool, provenance=provenance)
    if output is not None:
        write_text(output, as_text(profile), force=force)
    if json:
        render.json_out(_payload(profile))
    else:
        _show(profile, output)


BanksArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Banks: a folder with acceptance.parquet and speculator.parquet, a .csv (commits,category,a0..), or "
        "vLLM's detailed speculation metrics as .jsonl.",
        show_default=False,
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        help="Address of a running vLLM, SGLang or TensorRT-LLM server instead of banks: its counters since its start.",
    ),
]
TemperaturesOption = Annotated[
    Path | None,
    typer.Option("--sts", help="Write the confidence calibration of SGLang's DSpark, a temperature per position."),
]
ProfileOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Where to write NAME.acceptance.json, for --acceptance.")
]
LadderOption = Annotated[
    bool, typer.Option("--ladder", help="Also replay the bank under every policy (the policy ladder).")
]
LadderPricesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        help="Prices of the ladder, may be repeated: study-block, study-passes, real (Qwen3.6-35B-A3B on an H200), "
        "post (a published roofline).",
    ),
]
SplitsOption = Annotated[
    int, typer.Option(min=1, max=100, help="Number of splits by request for held-out calibration.")
]
FigureOption = Annotated[Path | None, typer.Option("--plot", help="Draw the ladder: FILE.png, .svg, .html or .json.")]


@app.command()
def acceptance(
    files: BanksArgument = None,
    metrics: MetricsOption = None,
    sts: TemperaturesOption = None,
    output: ProfileOption = None,
    with_ladder: LadderOption = False,
    ladder_prices: LadderPricesOption = None,
    splits: SplitsOption = 5,
    figure: FigureOption = None,
    source: SourceOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the profile and the figure.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Profile a bank of rounds: survival with its uncertainty, calibrated confidence, and policies compared.

    Examples:

      specmargin profile acceptance bank/

      specmargin profile acceptance bank/ --ladder --at study-passes --at real --plot ladder.png

      specmargin profile acceptance --metrics http://localhost:8000 -o mine.acceptance.json
    """
    if metrics is not None:
        if files or sts is not None or with_ladder or figure is not None:
            raise ScenarioError("--metrics reads a server: leave out banks, --sts, --ladder and --plot")
        _profile_metrics(metrics, output, force=force, json=json)
        return
    if not files:
        raise ScenarioError("give a bank of rounds, or the address of a server (--metrics URL)")
    with needs_extra("profile"):
        from specmargin.acceptance.bank import read_bank
        from specmargin.app import acceptance_study
        from specmargin.cli import profile_acceptance_view
    chosen = _ladder_prices(ladder_prices)
    if figure is not None and not with_ladder:
        raise ScenarioError("--plot draws the ladder: add --ladder")
    o.check_plot(figure, force=force)
    o.check_outputs(output, sts, force=force)
    rounds = read_bank([Path(file) for file in files])
    rounds = replace(rounds, source=source) if source else rounds
    temperatures = None if sts is None else _write_temperatures(sts, rounds, force=force)
    at = chosen if with_ladder else []
    payload = acceptance_study.study(rounds, ladder_prices=at, splits=splits, progress=render.progress)
    if output is not None:
        from specmargin.acceptance.schema import as_text

        name = output.name.removesuffix(".acceptance.json")
        write_text(output, as_text(acceptance_study.profile_file(rounds, payload, name)), force=force)
    if figure is not None:
        _draw_ladder(figure, payload, rounds)
    if json:
        render.json_out(payload)
    else:
        profile_acceptance_view.show(render.console(), payload)
        if temperatures is not None:
            typer.echo(temperatures)


def _draw_ladder(path: Path, payload: dict[str, Any], rounds: Rounds) -> None:
    from specmargin.app.acceptance_study import ladder_rows
    from specmargin.figures.ladder import ladder_figure

    o.save_plot(path, ladder_figure(ladder_rows(payload), source=f"Specmargin; {rounds.source}").chart())


def _write_temperatures(path: Path, rounds: Rounds, *, force: bool) -> str:
    """Write them and return a message for the user."""
    from specmargin.acceptance.temperatures import fit_temperatures
    from specmargin.formats.dspark import calibration_flag, calibration_text

    fitted = fit_temperatures(rounds)
    text = calibration_text(
        fitted.by_position,
        source=fitted.source,
        rounds=fitted.rounds,
        error_before=fitted.error_before,
        error_after=fitted.error_after,
    )
    write_text(path, text, force=force)
    before, after = float(fitted.error_before.mean()), float(fitted.error_after.mean())
    return (
        f"Wrote {path}: {fitted.by_position.size} temperatures, for blocks of {fitted.by_position.size} alone; "
        f"calibration error {before:.3f} before, {after:.3f} after.\nFor SGLang: {calibration_flag(path)}"
    )


def _profile_metrics(address: str, output: Path | None, *, force: bool, json: bool) -> None:
    from specmargin.acceptance.schema import as_text
    from specmargin.app.engine_metrics import acceptance_of, read_engine
    from specmargin.live.polling import Server

    o.check_outputs(output, force=force)
    name = "metrics" if output is None else output.name.removesuffix(".acceptance.json")
    profile = acceptance_of(read_engine(Server.from_address(address)), name)
    if output is not None:
        write_text(output, as_text(profile), force=force)
    if json:
        render.json_out(profile.model_dump(by_alias=True) | {"schema": "specmargin.profile-metrics/1"})
        return
    curve = profile.categories["all"].survival
    typer.echo(f"{profile.source}: {sum(curve):.2f} draft tokens accepted on average")
    typer.echo(f"survival{' (assumed shape)' if profile.assumed else ''}: {', '.join(f'{s:.3f}' for s in curve)}")
    typer.echo(f"Wrote {output}." if output is not None else "Keep it with -o NAME.acceptance.json.")


def _ladder_prices(names: list[str] | None) -> list[LadderPrices]:
    from specmargin.app.acceptance_study import LadderPrices

    if not names:
        return [LadderPrices.STUDY_BLOCK, LadderPrices.STUDY_PASSES]
    prices_by_name = {str(prices): prices for prices in LadderPrices}
    unknown = [name for name in names if name not in prices_by_name]
    if unknown:
        raise ScenarioError(f"--at {unknown[0]}: known prices are {', '.join(prices_by_name)}")
    return [prices_by_name[name] for name in names]


def _pool(capture: Capture, model: str | None, experts: int | None) -> ExpertPool:
    layers, k = capture.shape
    if model is None:
        if experts is None:
            raise ScenarioError("give the captured model (--model) or the experts per layer (--experts)")
        return ExpertPool(experts=experts, experts_per_token=k)
    architecture = find_model(model)
    if not architecture.pools:
        raise ScenarioError(f"{architecture.name} is dense: it has no experts to capture")
    pool = architecture.pools[0]
    _check_shape(architecture, capture, layers, k)
    return ExpertPool(experts=pool.experts, experts_per_token=k)


def _check_shape(architecture: Architecture, capture: Capture, layers: int, k: int) -> None:
    routed = sum(group.count for group, _ in architecture.expert_groups)
    experts_per_token = architecture.pools[0].experts_per_token
    if (layers, k) != (routed, experts_per_token):
        raise ScenarioError(
            f"{capture.path}: has {layers} layers with {k} experts per token; {architecture.name} has {routed} MoE "
            f"layers with {experts_per_token} experts per token"
        )


def _payload(profile: RoutingFile) -> dict[str, Any]:
    return {
        "schema": "specmargin.profile-routing/1",
        "name": profile.name,
        "experts": profile.experts,
        "experts_per_token": profile.experts_per_token,
        "layers": profile.layers,
        "longest_run": profile.longest_run,
        "categories": {
            name: {
                "rounds": category.rounds,
                "positions": category.positions,
                "requests": category.requests,
                "depth": category.depth.model_dump(),
                "width": category.width.model_dump(),
                "overlap_by_lag": np.mean(category.overlap_by_lag, axis=1).tolist() if category.overlap_by_lag else [],
                "independent_overlap": _independent_overlap(profile, name),
                "uniform_overlap": profile.experts_per_token**2 / profile.experts,
                "decay": float(np.mean(category.decay_by_layer)),
            }
            for name, category in profile.categories.items()
        },
    }


def _independent_overlap(profile: RoutingFile, name: str) -> float:
    """Mean number of experts that two independent tokens share: Σ p², averaged over layers."""
    return float((profile.category(name).popularity_by_layer_expert ** 2).sum(axis=1).mean())


def _show(profile: RoutingFile, output: Path | None) -> None:
    out = render.console()
    rounds = sum(category.rounds for category in profile.categories.values())
    out.print(
        f"{rounds:,} rounds in {len(profile.categories)} categories, {profile.layers} layers, "
        f"{profile.experts_per_token} of {profile.experts} experts per token, runs up to {profile.longest_run} "
        "positions.",
        style="bold",
    )
    out.print()
    longest = profile.longest_run
    columns = [("category", "left"), ("rounds", "right"), ("requests", "right"), (f"one run of {longest}", "right")]
    columns += [(f"{longest} independent", "right"), ("uniform", "right"), ("decay", "right")]
    shown = render.table("distinct experts, mean of layers (± standard error over requests)", columns)
    for name, category in profile.categories.items():
        local = profile.category(name)
        independent = float(local.width_curve_by_layer(np.array([longest])).mean())
        uniform = profile.experts * (1.0 - (1.0 - profile.experts_per_token / profile.experts) ** longest)
        shown.add_row(
            name,
            f"{category.rounds:,}",
            f"{category.requests:,}",
            f"{category.depth.mean[-1]:.2f} ± {category.depth.standard_error[-1]:.2f}",
            f"{independent:.2f}",
            f"{uniform:.2f}",
            f"{np.mean(category.decay_by_layer):.2f}",
        )
    out.print(shown)
    out.print()
    lags = min(_LAGS_SHOWN, longest - 1)
    columns = [("category", "left"), *((f"lag {lag}", "right") for lag in range(1, lags + 1))]
    shown = render.table(
        "experts shared by two positions, fraction of k", [*columns, ("independent", "right"), ("uniform", "right")]
    )
    k = profile.experts_per_token
    for name, category in profile.categories.items():
        overlap = np.mean(category.overlap_by_lag, axis=1)[:lags] / k
        shown.add_row(
            name,
            *(f"{value:.1%}" for value in overlap),
            f"{_independent_overlap(profile, name) / k:.1%}",
            f"{k / profile.experts:.1%}",
        )
    out.print(shown)
    out.print("decay: popularity falls as exp(−decay · rank / experts)", style="dim")
    if output is not None:
        out.print(f"Wrote {output}", markup=False)
