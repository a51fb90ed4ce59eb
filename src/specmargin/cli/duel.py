"""`specmargin duel`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.decisions.duel import Duel, Side
from specmargin.decisions.duel import duel as decide
from specmargin.decisions.scenario import Scenario
from specmargin.hardware.layout import Parallel
from specmargin.prices.roofline import RooflineForm

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def duel(
    model: o.Model,
    gpu: o.Gpu,
    alpha: Annotated[float, typer.Option("--alpha", help="Probability that the draft token is accepted.")],
    batch: Annotated[int, typer.Option("--batch", help="Sequences decoding already.")] = 1,
    drafter: Annotated[str, typer.Option("--drafter", help="Free unless you name one.")] = "free",
    context: Annotated[int, typer.Option("--context", help="Tokens in the cache of each sequence.", min=0)] = 0,
    gpus: o.Gpus = 1,
    parallel: o.ParallelOption = Parallel.TP,
    routing: o.RoutingOption = None,
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
    json: o.JsonOption = False,
) -> None:
    """One more sequence, or one more draft token of a sequence you have?

    Both add one position to the step. The sequence commits a token for certain; the draft token with
    probability alpha, but its experts may be loaded already. The question as usually asked has a free drafter
    and no KV cache (--context 0, the default here).

    Example: specmargin duel qwen3.6-35b-a3b --gpu h100 --batch 1 --alpha 0.9
    """
    shared = o.ScenarioOptions(
        model=model,
        gpu=gpu,
        gpus=gpus,
        parallel=parallel,
        drafter=drafter,
        routing=routing,
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
    _, scenario = shared.one()
    scenario.check_memory()
    result = decide(scenario, batch=batch, alpha=alpha)
    (_emit_json if json else _emit_table)(scenario, result)


def _side(side: Side) -> dict[str, Any]:
    return {
        "goodput_tokens_per_second": side.goodput_tokens_per_second,
        "distinct_experts": side.distinct_experts,
        "step_seconds": side.step_seconds,
    }


def _sources(scenario: Scenario) -> dict[str, Any]:
    return {name: source for name, source in scenario.sources.items() if name != "acceptance"}


def _emit_json(scenario: Scenario, result: Duel) -> None:
    render.json_out(
        {
            "schema": "specmargin.duel/1",
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "batch": result.batch,
            "alpha": result.alpha,
            "context": scenario.context,
            "routing": scenario.routing.name,
            "width": _side(result.width),
            "depth": _side(result.depth),
            "winner": result.winner,
            "turning_alpha": result.turning_alpha,
            "sources": {name: str(source) for name, source in _sources(scenario).items()},
        }
    )


def _emit_table(scenario: Scenario, result: Duel) -> None:
    out = render.console()
    turning = result.turning_alpha
    until = (
        f"depth wins above an acceptance of {turning:.3f}"
        if turning <= 1
        else "no acceptance makes the draft token worth more"
    )
    out.print(
        f"{result.winner.capitalize()} wins: {scenario.architecture.name} on {scenario.device.name}, batch "
        f"{result.batch}, acceptance {result.alpha:g}, {scenario.routing.name} routing; {until}.",
        style="bold",
    )
    out.print()
    columns = [("one more", "left"), ("tok/s", "right"), ("distinct experts", "right"), ("step", "right")]
    shown = render.table("", columns)
    for name, side in (("sequence (width)", result.width), ("draft token (depth)", result.depth)):
        experts = "–" if side.distinct_experts is None else f"{side.distinct_experts:.2f}"
        shown.add_row(name, f"{side.goodput_tokens_per_second:,.1f}", experts, render.seconds(side.step_seconds))
    out.print(shown)
    out.print()
    render.sources(out, _sources(scenario))
