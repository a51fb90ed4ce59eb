"""`specmargin design`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import law_book
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.decisions.design import STEP, TOLERANCE, Design, DesignRow, Hold, Space, explore
from specmargin.errors import ScenarioError
from specmargin.hardware.layout import Parallel
from specmargin.sources import weakest

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_SHOWN = 12
_PER_TOKEN = {Hold.ACTIVE: "2,4,8,16", Hold.TOTAL: "1-20"}  # equal totals leave few pairs, so more are tried
_SHARES = "0,0.25,0.5"
_EQUAL = {Hold.ACTIVE: "active", Hold.TOTAL: "active and total"}
_NOT_PREDICTED = (
    "Prices alone: acceptance and drafter are held equal, and the quality of the variants is not predicted."
)


@app.command()
def design(
    model: o.Model,
    gpu: o.Gpu,
    batch: Annotated[int, typer.Option("--batch", help="The batch that the model is designed for.")] = 32,
    drafter: o.DrafterOption = None,
    acceptance: o.AcceptanceOption = None,
    hold: Annotated[
        Hold,
        typer.Option(
            "--hold",
            help="active: equal parameters of the experts that a token uses; total: those, and of all experts too.",
        ),
    ] = Hold.ACTIVE,
    experts: Annotated[str, typer.Option("--experts", help="Experts of a layer to try.")] = "64,128,256,512",
    experts_per_token: Annotated[
        str | None,
        typer.Option(
            "--experts-per-token",
            help=f"Experts a token to try [{_PER_TOKEN[Hold.ACTIVE]}; with --hold total {_PER_TOKEN[Hold.TOTAL]}].",
        ),
    ] = None,
    shared: Annotated[
        str | None,
        typer.Option(
            "--shared",
            help=f"Shared experts' shares of the active width to try [{_SHARES}]; they follow with --hold total.",
        ),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", help="Deepest draft to consider.")] = 8,
    context: o.ContextOption = 1024,
    gpus: o.Gpus = 1,
    parallel: o.ParallelOption = Parallel.TP,
    routing: o.RoutingOption = None,
    weights: o.WeightsOption = None,
    kv_cache: o.KvOption = None,
    prices: Annotated[
        str | None,
        typer.Option(
            "--prices",
            help="datasheet, laws, tables or FILE.json. Default: laws where there are any, because tables know the "
            "model's own shape better than its variants'.",
        ),
    ] = None,
    engine: o.EngineOption = "vllm",
    engine_time: o.EngineTimeOption = None,
    graph_limit: o.GraphLimitOption = None,
    memory_utilization: o.UtilizationOption = 0.9,
    figure: Annotated[
        Path | None, typer.Option("--plot", help="Draw the heat map: FILE.png, .svg, .html or .json.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the figure.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Which experts suit speculation at a target batch: how many, how many a token, how wide, how many shared?

    Reshapes the experts of a model at equal active (or active and total) parameters and ranks the variants by
    speculative goodput. Widths come in steps of 64; whatever cannot be equal within 2% is left out.

    Examples:

      specmargin design qwen3.6-35b-a3b --gpu h200 --batch 32 --plot design.png

      specmargin design qwen3.6-35b-a3b --gpu h200 --batch 128 --hold total
    """
    if figure is not None:
        from specmargin.figures.files import check_target  # noqa: PLC0415 (an extra)

        check_target(figure, force=force)
    space = Space(
        hold=hold,
        experts=o.parse_numbers(experts, "--experts", most=64),
        experts_per_token=o.parse_numbers(experts_per_token or _PER_TOKEN[hold], "--experts-per-token", most=64),
        shared_shares=_shares(shared if shared is not None or hold is Hold.TOTAL else _SHARES),
    )
    _, scenario = o.ScenarioOptions(
        model=model,
        gpu=gpu,
        gpus=gpus,
        parallel=parallel,
        drafter=drafter,
        acceptance=acceptance,
        routing=routing,
        context=context,
        weights=weights,
        kv_cache=kv_cache,
        prices=prices or _default_prices(gpu),
        engine=engine,
        engine_time=engine_time,
        graph_limit=graph_limit,
        memory_utilization=memory_utilization,
    ).one()
    scenario.check_memory()
    found = explore(scenario, space, batch=batch, max_depth=depth, progress=partial(render.tracked, "variants"))
    if figure is not None:
        _draw(found, figure)
    (_emit_json if json else _emit_table)(found)


def _default_prices(gpu: str) -> str:
    return "datasheet" if law_book(find_device(gpu)) is None else "laws"


def _shares(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise ScenarioError(f"--shared: {text!r} is not a list of shares such as {_SHARES}") from None


# --- as JSON ---


def _row(found: Design, row: DesignRow) -> dict[str, Any]:
    return {
        "experts": row.shape.experts,
        "experts_per_token": row.shape.experts_per_token,
        "expert_width": row.shape.width,
        "shared_width": row.shape.shared_width,
        "shared_share": row.shape.shared_share,
        "parameters": row.parameters,
        "active_parameters": row.active_parameters,
        "depth": row.depth,
        "goodput_tokens_per_second": row.goodput_tokens_per_second,
        "goodput_over_base": _over_base(found, row),
        "no_spec_tokens_per_second": row.no_spec_tokens_per_second,
        "speedup": row.speedup,
        "distinct_experts": row.distinct_experts,
        "fits": row.fits,
    }


def _over_base(found: Design, row: DesignRow) -> float:
    return row.goodput_tokens_per_second / found.base.goodput_tokens_per_second


def _emit_json(found: Design) -> None:
    scenario, sources = found.scenario, found.sources
    render.json_out(
        {
            "schema": "specmargin.design/1",
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "gpus": scenario.layout.gpus,
            "batch": found.batch,
            "context": scenario.context,
            "drafter": scenario.drafter.name,
            "prices": scenario.prices.name,
            "routing": scenario.routing.name,
            "hold": found.space.hold,
            "note": _NOT_PREDICTED,
            "base": _row(found, found.base),
            "best": _row(found, found.fitting[0]) if found.fitting else None,
            "rows": [_row(found, row) for row in found.rows],
            "left_out": found.left_out,
            "sources": {name: str(source) for name, source in sources.items()},
            "weakest_source": str(weakest(sources.values())),
        }
    )


# --- as a table ---


def _emit_table(found: Design) -> None:
    out = render.console()
    out.print(_verdict(found), style="bold", markup=False)
    out.print(_NOT_PREDICTED)
    out.print()
    _print_rows(out, found)
    out.print()
    render.sources(out, found.sources)


def _experts(row: DesignRow) -> str:
    return f"{row.shape.experts_per_token} of {row.shape.experts}"


def _verdict(found: Design) -> str:
    name, base = found.scenario.architecture.name, found.base
    if not found.fitting:
        return f"None of {len(found.rows)} variants of {name} fits at batch {found.batch}; try more --gpus."
    best, steepest = found.fitting[0], max(found.fitting, key=lambda row: row.speedup)
    over = _over_base(found, best)
    keep = "" if over > 1.0 else "The experts are best as they are; next: "
    return (
        f"{keep}{_experts(best)} experts, {best.shape.width} wide, {best.shape.shared_share:.0%} shared: "
        f"{render.tokens_per_second(best.goodput_tokens_per_second)} tokens a second at batch {found.batch}, "
        f"{over:.2f}× {name} as it is, with {_billions(best.parameters)} parameters for its "
        f"{_billions(base.parameters)} (equal {_EQUAL[found.space.hold]}). Speculation itself gains most with "
        f"{_experts(steepest)}, {steepest.shape.shared_share:.0%} shared: {steepest.speedup:.2f}× for its "
        f"{base.speedup:.2f}×."
    )


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B"


def _print_rows(out: Console, found: Design) -> None:
    scenario = found.scenario
    title = (
        f"{scenario.drafter.name} on {scenario.device.title}, batch {found.batch}, context {scenario.context:.0f}, "
        f"{scenario.prices.name} prices"
    )
    names = ("width", "shared", "params", "active", "draft", "tok/s", "× as is", "plain", "speed-up", "distinct")
    shown = render.table(title, [("experts", "left"), *((name, "right") for name in names)])
    for row in (found.base, *found.rows[:_SHOWN]):
        shown.add_row(*_cells(found, row))
    out.print(shown)
    out.print(f"first: the model as it is; then the best {min(_SHOWN, len(found.rows))} of {len(found.rows)} variants")
    if not all(row.fits for row in found.rows[:_SHOWN]):
        out.print("(in brackets: more parameters than fit at this batch)", style="dim")
    if found.left_out:
        out.print(f"{found.left_out} more cannot be built equal within {TOLERANCE:.0%} in steps of {STEP}", style="dim")
    out.print("shared: of the width that a token uses; distinct: experts of a layer in a verify step", style="dim")


def _cells(found: Design, row: DesignRow) -> tuple[str, ...]:
    parameters = _billions(row.parameters)
    return (
        _experts(row),
        str(row.shape.width),
        f"{row.shape.shared_share:.0%}",
        parameters if row.fits else f"({parameters})",
        _billions(row.active_parameters),
        str(row.depth),
        render.tokens_per_second(row.goodput_tokens_per_second),
        f"{_over_base(found, row):.2f}",
        render.tokens_per_second(row.no_spec_tokens_per_second),
        f"{row.speedup:.2f}×",
        f"{row.distinct_experts:.0f}",
    )


# --- as a figure ---


def _draw(found: Design, path: Path) -> None:
    from specmargin.figures.design import design_figure  # noqa: PLC0415
    from specmargin.figures.files import save  # noqa: PLC0415

    save(design_figure(found).chart(), path)
