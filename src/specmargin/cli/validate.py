"""`specmargin validate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, needs_extra
from specmargin.prices.kernels import store

if TYPE_CHECKING:
    from specmargin.validation.kernels import KernelLine
    from specmargin.validation.report import ErrorLine, PeerReport, ServedReport
    from specmargin.validation.rounds import RoundLine
    from specmargin.validation.served import ServedRow
    from specmargin.validation.steps import StepLine
    from specmargin.validation.tpot import Wrapper

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Part(StrEnum):
    KERNELS = "kernels"
    MODULES = "modules"
    STEPS = "steps"
    ROUNDS = "rounds"
    SCALED = "scaled"
    SERVED = "served"


PartsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[kernels|modules|steps|rounds|scaled|served|speedups FILE.csv|PRICES]...",
        help="kernels: held-out kernel rows. modules: whole attention modules against the sum of their parts. "
        "steps: verify steps of a real engine. rounds: whole rounds, drafting included. scaled: laws of one GPU "
        "scaled to another. served: served rows. speedups FILE.csv: measured speed-ups, published or yours. Or one "
        "or two price sources to compare: a FILE of `specmargin measure`, a bundled one, tables, laws, datasheet.",
    ),
]
PeerOption = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="ROWS",
        help="Also compare with AIConfigurator on this many served rows that both can price (about 4 s per row; "
        "needs: pip install aiconfigurator).",
    ),
]
FigureOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw predicted against measured: FILE.png, .svg, .html or .json.")
]


@app.command()
def validate(
    parts: PartsArgument = None,
    peer: PeerOption = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample for --peer.")] = 0,
    figure: FigureOption = None,
    model: Annotated[str | None, typer.Option(help="Model of the compared prices. Default: the measured one.")] = None,
    gpu: Annotated[str, typer.Option(help="GPU of the compared prices.")] = "h200",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the figure.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Compare predictions with measurements: tables, laws and datasheet roofline, and AIConfigurator.

    Measurements: third-party kernels and served rows (from aiconfigurator-core); steps and rounds of vLLM on an H200.
    Fitted prices are evaluated on held-out data. Examples:

      specmargin validate                          all six parts, about a minute

      specmargin validate served --peer 200        with AIConfigurator's own estimate of the same rows

      specmargin validate served --plot out.png

      specmargin validate speedups mine.csv        speed-ups that you measured (columns: docs/reference/files.md)

      specmargin validate mine.json laws           your own measurement against the bundled laws
    """
    if parts and parts[0] == "speedups":
        from specmargin.cli.validate_speedups import validate_speedups

        return validate_speedups(parts[1:], figure=figure, force=force, json=json)
    sources = [name for name in parts or () if name not in list(Part)]
    if sources:
        return _compare_sources(parts or [], sources, model=model, gpu=gpu, figure=figure, force=force, json=json)
    chosen = {Part(name) for name in parts or Part}
    _check(chosen, peer=peer, figure=figure, force=force)
    out = Console(quiet=True) if json else render.console()
    payload = _validated(chosen, out, partial(_served, peer=peer, seed=seed, figure=figure))
    if json:
        render.json_out(payload)
    return None


def _validated(chosen: set[Part], out: Console, served: Callable[[Console], dict[str, Any]]) -> dict[str, Any]:
    payload: dict[str, Any] = {"schema": "specmargin.validate/1", "tables": store.release()}
    if Part.KERNELS in chosen:
        payload["kernels"] = _kernels(out)
    if Part.MODULES in chosen:
        from specmargin.cli.validate_modules import validate_modules

        payload["modules"] = validate_modules(out)
    if Part.STEPS in chosen:
        payload["steps"] = _steps(out)
    if Part.ROUNDS in chosen:
        payload |= _rounds(out)
    if Part.SCALED in chosen:
        payload["scaled"] = _scaled(out)
    if Part.SERVED in chosen:
        payload |= served(out)
    return payload


def _compare_sources(
    names: Sequence[str],
    sources: Sequence[str],
    *,
    model: str | None,
    gpu: str,
    figure: Path | None,
    force: bool,
    json: bool,
) -> None:
    from specmargin.cli.validate_sources import compare_sources

    if len(sources) < len(names) or len(sources) > 2:
        raise InputError(f"validate {' '.join(names)}: name parts, or one or two price sources, not both")
    compare_sources(sources, model=model, gpu=gpu, figure=figure, force=force, json=json)


def _check(chosen: set[Part], *, peer: int, figure: Path | None, force: bool) -> None:
    """Check everything that could stop a long run before it starts."""
    store.data_folder()
    with needs_extra("validate"):
        import scipy  # noqa: F401 (fits the engine time)
    if Part.SERVED not in chosen and (peer or figure is not None):
        raise InputError("--peer and --plot need served rows: add `served`")
    if figure is not None:
        from specmargin.figures.files import check_target

        check_target(figure, force=force)
    if peer:
        from specmargin.validation.peer import aiconfigurator

        aiconfigurator()


# --- kernels ---


def _kernels(out: Console) -> list[dict[str, Any]]:
    from specmargin.validation.kernels import GPUS, kernel_lines

    lines = [line for gpu in render.tracked("kernels", GPUS) for line in kernel_lines((gpu,))]
    columns = [("gpu", "left"), ("engine", "left"), ("operation", "left"), ("format", "left"), ("held out", "left")]
    columns += [("number", "right"), ("median", "right"), ("p90", "right"), ("", "left")]
    shown = render.table("Kernels, up to 256 positions: tables by row and by routing, laws by shape", columns)
    for line in lines:
        kernel = line.kernel
        shown.add_row(
            kernel.gpu,
            kernel.engine,
            kernel.operation,
            kernel.dtype,
            line.held_out,
            f"{line.count:,}",
            f"{line.median_error:.1%}",
            f"{line.p90_error:.1%}",
            _kernel_remark(line),
        )
    out.print(shown)
    _kernel_misses(out, lines)
    return [_kernel_payload(line) for line in lines]


def _kernel_remark(line: KernelLine) -> str:
    if line.baseline_error is not None:
        return f"by token count {line.baseline_error:.1%}"
    return "misses" if line.misses() else ""


def _kernel_misses(out: Console, lines: Sequence[KernelLine]) -> None:
    from specmargin.validation.kernels import LAWS_TARGET, TABLES_TARGET, reason_of_miss

    text = "{} (rows: median ≤ {:.0%}, p90 ≤ {:.0%}; shapes: ≤ {:.0%}, ≤ {:.0%}), and why:"
    missing = [line for line in lines if line.misses()]
    out.print(text.format(f"{len(missing)} of {len(lines)} miss the target", *TABLES_TARGET, *LAWS_TARGET), style="dim")
    by_reason: dict[tuple[str, str, str], list[KernelLine]] = {}
    for line in missing:
        by_reason.setdefault((line.kernel.operation, line.held_out, reason_of_miss(line)), []).append(line)
    for (operation, held_out, reason), misses in by_reason.items():
        out.print(f"  {operation}, {held_out} ({len(misses)}): {reason}", style="dim", markup=False)
    out.print()


def _kernel_payload(line: KernelLine) -> dict[str, Any]:
    from specmargin.validation.kernels import reason_of_miss

    values = asdict(line)
    kernel: dict[str, Any] = values.pop("kernel")
    reason = reason_of_miss(line) if line.misses() else ""
    return kernel | values | {"misses": line.misses(), "reason": reason}


# --- whole steps ---


def _steps(out: Console) -> list[dict[str, Any]]:
    from specmargin.validation.steps import measured_steps, step_lines

    lines = list(step_lines())
    columns = [("verify steps, depth 0 to 7", "left"), ("steps", "right")]
    columns += [(source, "right") for source in dict.fromkeys(line.source for line in lines)]
    shown = render.table("vLLM: median (worst) error of whole steps", columns)
    for index, column in enumerate(shown.columns):  # long names wrap, numbers never
        column.no_wrap = index > 0
    groups: dict[str, list[StepLine]] = {}
    for line in lines:
        groups.setdefault(line.steps, []).append(line)
    for name, group in groups.items():
        cells = [f"{line.median_error:.1%} ({line.worst_error:.1%})" for line in group]
        shown.add_row(name, str(group[0].count), *cells)
    out.print(shown)
    conditions = measured_steps().conditions
    out.print(f"{conditions['engine']}; {conditions['gpu']}; {conditions['model']}", style="dim", markup=False)
    out.print()
    return [asdict(line) for line in lines]


# --- whole rounds ---


def _rounds(out: Console) -> dict[str, Any]:
    from specmargin.validation.prompts import prompt_lines
    from specmargin.validation.rounds import TERMS, conditions, fitted_engine_time, round_lines

    lines = [*round_lines(), *prompt_lines()]
    sources = list(dict.fromkeys(line.source for line in lines))
    columns = [("rounds; steps with a prompt", "left"), ("rounds", "right")]
    shown = render.table(
        "vLLM 0.32: median (worst) error of whole rounds", [*columns, *((source, "right") for source in sources)]
    )
    groups: dict[str, list[RoundLine]] = {}
    for line in lines:
        groups.setdefault(line.rounds, []).append(line)
    for name, group in groups.items():
        cells = [f"{line.median_error:.1%} ({line.worst_error:.1%})" for line in group]
        shown.add_row(name, str(group[0].count), *cells)
    out.print(shown)
    terms = {source: {name: getattr(fitted_engine_time(source), name) for name in TERMS} for source in sources}
    shown = render.table(
        "Engine time beside the kernels, fitted to these rounds",
        [("term", "left"), *((source, "right") for source in sources)],
    )
    for name in TERMS:
        title = name.removesuffix("_seconds").replace("_", " ")
        shown.add_row(title, *(render.seconds(terms[source][name]) for source in sources))
    out.print(shown)
    out.print(conditions(), style="dim", markup=False)
    out.print()
    return {"rounds": [asdict(line) for line in lines], "round_terms": terms}


# --- scaled laws ---


def _scaled(out: Console) -> list[dict[str, Any]]:
    from specmargin.validation.scaling import scaling_lines

    lines = list(scaling_lines())
    columns = [("gpu", "left"), ("scaled from", "left"), ("steps", "right"), ("median", "right"), ("p90", "right")]
    columns += [("verify over plain", "right"), ("datasheet", "right"), ("verify over plain", "right")]
    shown = render.table("GPUs priced by the laws of another one: error against their own laws", columns)
    for line in lines:
        shown.add_row(
            line.gpu,
            line.scaled_from,
            str(line.steps),
            f"{line.median_error:.1%}",
            f"{line.p90_error:.0%}",
            f"{line.ratio_error:.1%}",
            f"{line.datasheet_error:.1%}",
            f"{line.datasheet_ratio_error:.1%}",
        )
    out.print(shown)
    out.print("GPUs with the same die are not used for each other.", style="dim")
    out.print()
    return [asdict(line) for line in lines]


# --- served rows ---


def _served(out: Console, *, peer: int, seed: int, figure: Path | None) -> dict[str, Any]:
    from specmargin.validation.report import served_report
    from specmargin.validation.served import served_rows

    rows = served_rows()
    report = served_report(rows, _track)
    lines = report.lines()
    _show_errors(out, "Served rows, aggregated: absolute error of the time between tokens", lines)
    _show_refusals(out, report, total=len(rows))
    payload: dict[str, Any] = {"refused": dict(report.refused), "moe_rows": report.moe_rows}
    if peer:
        compared = _peer(out, report, rows, wanted=peer, seed=seed)
        lines += compared.lines
        payload["peer"] = {
            "sampled": compared.sampled,
            "refused_by_us": compared.refused_by_us,
            "refused_by_peer": compared.refused_by_peer,
        }
    if figure is not None:
        _draw(out, report, figure)
    return payload | {"rows": [asdict(line) for line in lines]}


def _track(name: str) -> Wrapper:
    return partial(render.tracked, f"{name:>14}")


def _show_errors(out: Console, title: str, lines: Sequence[ErrorLine]) -> None:
    groups: dict[str, list[ErrorLine]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    sources = list(dict.fromkeys(line.source for line in lines))
    shown = render.table(
        title, [("median (90th percentile)", "left"), ("rows", "right"), *((source, "right") for source in sources)]
    )
    for name, group in groups.items():
        cells = [f"{line.median_error:.1%} ({line.p90_error:.0%})" for line in group]
        shown.add_row(name, f"{group[0].rows:,}", *cells)
    out.print(shown)


def _show_refusals(out: Console, report: ServedReport, *, total: int) -> None:
    priced, moe = len(report.rows), sum(row.is_moe for row in report.rows)
    out.print(
        f"priced {priced:,} of {total:,} rows, {moe:,} of {report.moe_rows:,} MoE rows ({moe / report.moe_rows:.0%}); "
        "each with an engine time fitted without its model on its GPU (the datasheet roofline has none); "
        "conflicting: repeated measurements of one configuration that differ by more than 25%",
        style="dim",
    )
    for reason, count in sorted(report.refused.items(), key=lambda item: -item[1]):
        out.print(f"  {count} refused: {reason.partition(';')[0]}", style="dim", markup=False)
    out.print()


def _peer(out: Console, report: ServedReport, rows: Sequence[ServedRow], *, wanted: int, seed: int) -> PeerReport:
    from specmargin.validation.peer import aiconfigurator
    from specmargin.validation.report import peer_report

    compared = peer_report(report, rows, aiconfigurator(), wanted=wanted, seed=seed, track=_track)
    _show_errors(out, "AIConfigurator on the same MoE rows", compared.lines)
    out.print(
        f"{compared.sampled} rows drawn evenly from every family, GPU and engine (seed {seed}); "
        f"AIConfigurator could not price {compared.refused_by_peer}, Specmargin {compared.refused_by_us}",
        style="dim",
    )
    out.print()
    return compared


def _draw(out: Console, report: ServedReport, path: Path) -> None:
    from specmargin.figures.files import save
    from specmargin.figures.validation import predicted_against_measured

    save(predicted_against_measured(report).chart(), path)
    out.print(f"Wrote {path}", markup=False)
