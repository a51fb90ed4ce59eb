"""`specmargin price`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.decisions.plan import MAX_BATCH, MAX_DEPTH, check_range, marginal_by_component
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.warnings import price_warnings
from specmargin.hardware.layout import Parallel
from specmargin.prices.drafters import round_seconds
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.prices.roofline import RooflineForm
from specmargin.routing.placement import Placement
from specmargin.step import Step

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def price(
    model: o.Model,
    gpu: o.Gpu,
    batch: Annotated[int, typer.Option("--batch", help="Sequences in the step.")] = 1,
    depth: Annotated[int, typer.Option("--depth", help="Draft tokens of each sequence.")] = 0,
    drafter: o.DrafterOption = None,
    context: o.ContextOption = 1024,
    gpus: o.Gpus = 1,
    parallel: o.ParallelOption = Parallel.TP,
    routing: o.RoutingOption = None,
    placement: o.PlacementOption = Placement.CONTIGUOUS,
    weights: o.WeightsOption = None,
    kv_cache: o.KvOption = None,
    prices: o.PricesOption = None,
    engine: o.EngineOption = "vllm",
    engine_time: o.EngineTimeOption = None,
    graph_limit: o.GraphLimitOption = None,
    form: o.FormOption = RooflineForm.PER_COMPONENT,
    step_ms: o.StepTimeOption = None,
    sequence_ms: o.SequenceTimeOption = None,
    position_us: o.PositionTimeOption = None,
    layer_us: o.LayerTimeOption = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the price of one more token over batch: FILE.png, .svg, .html, .json."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the figure.")] = False,
    json: o.JsonOption = False,
) -> None:
    """The ledger of one step: seconds, bytes and FLOPs by component, and what one more position would add.

    With --depth, the drafter's passes stand below the verify step.

    Example: specmargin price deepseek-v4-flash --gpu b200 --batch 8 --depth 2
    """
    check_range("--batch", [batch], 1, MAX_BATCH)
    check_range("--depth", [depth], 0, MAX_DEPTH)
    shared = o.ScenarioOptions(
        model=model,
        gpu=gpu,
        gpus=gpus,
        parallel=parallel,
        drafter=drafter,
        routing=routing,
        placement=placement,
        context=context,
        weights=weights,
        kv_cache=kv_cache,
        prices=prices,
        form=form,
        engine=engine,
        engine_time=engine_time,
        graph_limit=graph_limit,
        step_ms=step_ms,
        sequence_ms=sequence_ms,
        position_us=position_us,
        layer_us=layer_us,
    )
    if plot is not None:
        from specmargin.figures.files import check_target  # noqa: PLC0415 (an extra)

        check_target(plot, force=force)
    _, scenario = shared.one()
    scenario.check_memory()
    if plot is not None:
        _draw(scenario, plot)
    now, more = scenario.marginal(Step.uniform(batch=batch, depth=depth, context=scenario.context))
    drafting = scenario.drafting.ledger(scenario.drafter, batch=batch, depth=depth, context=scenario.context)
    (_emit_json if json else _emit_table)(scenario, batch, depth, now, more, drafting)


def _draw(scenario: Scenario, path: Path) -> None:
    from specmargin.figures.files import save  # noqa: PLC0415 (an extra)
    from specmargin.figures.ledger import ledger_figure  # noqa: PLC0415

    save(ledger_figure(scenario, limit=scenario.engine_time.captured_positions).chart(), path)


def _line(line: ComponentPrice, marginal: float | None) -> dict[str, Any]:
    return {
        "name": str(line.component),
        "seconds": float(line.seconds),
        "bytes": float(line.bytes),
        "flops": float(line.flops),
        "marginal_seconds": marginal,
        "bound_by": str(line.resource()),
        "source": str(line.source),
    }


def _totals(scenario: Scenario, now: StepPrice, drafting: StepPrice | None) -> tuple[float, float, float]:
    verify = now.total_seconds
    draft = drafting.total_seconds if drafting is not None else verify * 0.0
    return float(verify), float(draft), float(round_seconds(scenario.drafter, verify, draft))


def _emit_json(
    scenario: Scenario, batch: int, depth: int, now: StepPrice, more: StepPrice, drafting: StepPrice | None
) -> None:
    verify, draft, whole = _totals(scenario, now, drafting)
    distinct = scenario.distinct_experts(Step.uniform(batch=batch, depth=depth, context=scenario.context))
    render.json_out(
        {
            "schema": "specmargin.price/1",
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "gpus": scenario.layout.gpus,
            "parallel": str(scenario.layout.parallel),
            "batch": batch,
            "depth": depth,
            "context": scenario.context,
            "distinct_experts": None if distinct is None else float(distinct),
            "components": [
                _line(line, float(added))
                for line, added in marginal_by_component(now, more, positions=scenario.layout.sequence_ranks)
            ],
            "total_seconds": verify,
            "draft": {
                "drafter": scenario.drafter.name,
                "components": [] if drafting is None else [_line(line, None) for line in drafting.components],
                "total_seconds": draft,
            },
            "round_seconds": whole,
            "prices": scenario.prices.name,
            "warnings": list(price_warnings(scenario, batch=batch, depth=depth)),
            "sources": {name: str(source) for name, source in scenario.sources.items() if name != "acceptance"},
        }
    )


def _emit_table(
    scenario: Scenario, batch: int, depth: int, now: StepPrice, more: StepPrice, drafting: StepPrice | None
) -> None:
    out = render.console()
    verify, draft, whole = _totals(scenario, now, drafting)
    positions = batch * (depth + 1)
    marginal = (float(more.total_seconds) - verify) / scenario.layout.sequence_ranks
    out.print(
        f"A step of {batch} sequences × {depth + 1} positions takes {render.seconds(verify)}; one more position adds "
        f"{render.seconds(marginal)}, {marginal / (verify / positions):.0%} of the average position.",
        style="bold",
    )
    out.print()
    columns = [("component", "left"), ("time", "right"), ("share", "right"), ("bytes", "right"), ("FLOPs", "right")]
    title = f"verify step on {scenario.device.title}, {scenario.prices.name} prices"
    shown = render.table(title, [*columns, ("one more position", "right"), ("bound by", "left")])
    for line, added in marginal_by_component(now, more, positions=scenario.layout.sequence_ranks):
        shown.add_row(*_cells(line, verify), render.seconds(float(added)), str(line.resource()))
    out.print(shown)
    if drafting is not None:
        out.print()
        shown = render.table(f"drafting {depth} with {scenario.drafter.name}", [*columns, ("bound by", "left")])
        for line in drafting.components:
            shown.add_row(*_cells(line, draft), str(line.resource()))
        out.print(shown)
        out.print(f"draft {render.seconds(draft)}, verify {render.seconds(verify)}, round {render.seconds(whole)}")
    out.print()
    render.warnings(out, price_warnings(scenario, batch=batch, depth=depth))
    render.sources(out, {name: s for name, s in scenario.sources.items() if name != "acceptance"})


def _cells(line: ComponentPrice, total: float) -> list[str]:
    return [
        str(line.component),
        render.seconds(float(line.seconds)),
        f"{float(line.seconds) / total:.0%}",
        render.amount(float(line.bytes), "B"),
        render.amount(float(line.flops), ""),
    ]
