"""`specmargin plan`."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specmargin.app.payload import payload
from specmargin.app.planning import Answer, Question, answer
from specmargin.cli import comparison_view, plan_view, render
from specmargin.cli import options as o
from specmargin.decisions.compare import Comparison
from specmargin.decisions.compare import compare as compare_prices
from specmargin.decisions.load import Load
from specmargin.decisions.plan import MAX_BATCH
from specmargin.errors import ScenarioError, needs_extra
from specmargin.files import write_text
from specmargin.formats import find_engine
from specmargin.hardware.layout import Parallel
from specmargin.prices.roofline import RooflineForm
from specmargin.routing.placement import Placement

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_DEFAULT_CONTEXT = 1024


@app.command()
def plan(
    model: o.Model,
    gpu: o.Gpu,
    engine: o.EngineOption = "vllm",
    drafter: o.DrafterOption = None,
    acceptance: o.AcceptanceOption = None,
    batch: Annotated[
        str | None, typer.Option("--batch", help="Batch sizes: 1,4,16 or 1-64. Default: 1, 2, 4 … what fits.")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", help="Deepest draft to consider.")] = 8,
    context: Annotated[
        int | None, typer.Option("--context", help=f"Tokens in the cache of each sequence [{_DEFAULT_CONTEXT}].", min=0)
    ] = None,
    contexts: Annotated[
        str | None, typer.Option("--contexts", help="Also the best depth at these contexts: 1k,8k,64k.")
    ] = None,
    qps: Annotated[
        float | None, typer.Option("--qps", help="Plan for a request rate instead of batch sizes (with --isl --osl).")
    ] = None,
    isl: Annotated[int | None, typer.Option("--isl", help="Input tokens of a request.")] = None,
    osl: Annotated[int | None, typer.Option("--osl", help="Output tokens of a request.")] = None,
    tpot_slo: Annotated[
        float | None, typer.Option("--tpot-slo", help="Target for the time between tokens, in ms (with --qps).")
    ] = None,
    gpus: o.Gpus = 1,
    parallel: o.ParallelOption = Parallel.TP,
    routing: o.RoutingOption = None,
    placement: o.PlacementOption = Placement.CONTIGUOUS,
    weights: o.WeightsOption = None,
    kv_cache: o.KvOption = None,
    prices: o.PricesOption = None,
    engine_time: o.EngineTimeOption = None,
    graph_limit: o.GraphLimitOption = None,
    form: o.FormOption = RooflineForm.PER_COMPONENT,
    step_ms: o.StepTimeOption = None,
    sequence_ms: o.SequenceTimeOption = None,
    position_us: o.PositionTimeOption = None,
    layer_us: o.LayerTimeOption = None,
    off_ms: o.OffTimeOption = None,
    memory_utilization: o.UtilizationOption = 0.9,
    min_gain: Annotated[
        float,
        typer.Option("--min-gain", help="Merge neighbouring ranges that differ by less than this part of goodput."),
    ] = 0.02,
    max_batch: Annotated[int, typer.Option("--max-batch", help="Largest batch of the engine's schedule.")] = 512,
    ignore_graph_limit: Annotated[
        bool, typer.Option("--ignore-graph-limit", help="Allow steps without a CUDA graph, at their price.")
    ] = False,
    compare: Annotated[
        str | None,
        typer.Option("--compare", help="Beside these prices, others: datasheet, laws, tables or FILE.json."),
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option("--gpu-hour-price", help="Price of one GPU for an hour, to show money.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the engine's setting to this file.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw depth and speed-up by batch, or with --contexts by both: FILE.png, .svg, .html, .json."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="Write what the live controller inside vLLM decides from (docs/live.md)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output files and the figure.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Does speculation pay here, how deep at each batch, and the engine's own setting for it.

    The verdict comes first, in words; then a row for each batch size; then the flags to paste.

    Examples:

      specmargin plan qwen3.6-35b-a3b --gpu h200

      specmargin plan deepseek-v3 --gpu h200 --gpus 8 --parallel ep --acceptance 0.82

      specmargin plan ./my-model --gpu b200 --qps 4 --isl 1000 --osl 300 --tpot-slo 20
    """
    if plot is not None:
        from specmargin.figures.files import check_target  # noqa: PLC0415 (an extra)

        check_target(plot, force=force)
    load = _load(qps, isl, osl, tpot_slo)
    if load is not None and (batch is not None or context is not None):
        raise ScenarioError("--qps decides batch and context itself: leave out --batch and --context")
    _check(max_batch, gpu_hour_price)
    shared = o.ScenarioOptions(
        model=model,
        gpu=gpu,
        gpus=gpus,
        parallel=parallel,
        drafter=drafter,
        acceptance=acceptance,
        routing=routing,
        placement=placement,
        context=_DEFAULT_CONTEXT if context is None else context,
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
        off_ms=off_ms,
        memory_utilization=memory_utilization,
    )
    if load is not None:
        shared = replace(shared, context=round(load.mean_context))
    question = Question(
        engine=find_engine(engine),
        batches=tuple(o.parse_numbers(batch, "--batch")) if batch is not None else None,
        max_depth=depth,
        contexts=tuple(o.parse_numbers(contexts, "--contexts", most=32)) if contexts is not None else (),
        load=load,
        min_gain=min_gain,
        max_batch=max_batch,
        allow_eager=ignore_graph_limit,
    )
    answers = [answer(choice, scenario, question) for choice, scenario in shared.choices()]
    answers.sort(key=lambda found: -found.mean_speedup)
    comparison = None if compare is None else _compared(answers[0], shared, compare)
    if output is not None:
        setting = answers[0].config
        write_text(output, setting.file_text or f"{setting.text}\n", force=force)
        if setting.file_name:  # the flags that are shown name the file that was written
            text = setting.text.replace(setting.file_name, shlex.quote(str(output)))
            answers[0] = replace(answers[0], config=replace(setting, text=text, file_name=str(output)))
    if plot is not None:
        _draw(answers[0], plot)
    written = None if policy is None else _policy(policy, answers[0], acceptance, max_batch, force=force)
    if json:
        beside = {} if comparison is None else {"comparison": comparison_view.payload(comparison)}
        render.json_out(payload(answers, question.engine, gpu_hour_price) | beside)
    else:
        plan_view.show(answers, question.engine, gpu_hour_price, comparison)
        if written is not None:
            typer.echo(f"Wrote {written}.")


def _policy(path: Path, best: Answer, acceptance: str | None, max_batch: int, *, force: bool) -> str:
    with needs_extra("live"):
        from specmargin.app.policy_file import write_policy  # noqa: PLC0415 (compiled policies)

    return write_policy(path, best, acceptance, max_batch=max_batch, force=force)


def _draw(best: Answer, path: Path) -> None:
    from specmargin.figures.files import save  # noqa: PLC0415
    from specmargin.figures.payoff import context_figure, speedup_figure  # noqa: PLC0415

    plan = best.plan
    if best.by_context:
        found = context_figure(plan.scenario, max_depth=plan.max_depth, limit=plan.position_limit)
    else:
        batch = plan.best.batch
        found = speedup_figure(plan.scenario, batch=batch, max_depth=plan.max_depth, limit=plan.position_limit)
    save(found.chart(), path)


def _compared(best: Answer, shared: o.ScenarioOptions, prices: str) -> Comparison:
    """The same question under other prices, with the drafter that was recommended."""
    scenario = best.plan.scenario
    others = replace(shared, prices=prices, form=RooflineForm.PER_COMPONENT).choices()
    other = next(found for _, found in others if found.drafter == scenario.drafter)
    if other.prices.name == scenario.prices.name:
        raise ScenarioError(f"--compare {prices}: the plan has {prices} prices already; compare it with others")
    return compare_prices(
        scenario,
        other,
        [row.batch for row in best.plan.rows],
        max_depth=best.plan.max_depth,
        position_limit=best.plan.position_limit,
    )


def _check(max_batch: int, price: float | None) -> None:
    if not 1 <= max_batch <= MAX_BATCH:
        raise ScenarioError(f"--max-batch must lie in 1..{MAX_BATCH}, got {max_batch}")
    if price is not None and not (price >= 0.0 and math.isfinite(price)):
        raise ScenarioError(f"--gpu-hour-price must be a number from 0 on, got {price:g}")


def _load(qps: float | None, isl: int | None, osl: int | None, tpot_slo: float | None) -> Load | None:
    if qps is None:
        if isl is not None or osl is not None or tpot_slo is not None:
            raise ScenarioError("--isl, --osl and --tpot-slo describe a request rate: give --qps too")
        return None
    if isl is None or osl is None:
        raise ScenarioError("--qps needs --isl and --osl (input and output tokens of a request)")
    target = None if tpot_slo is None else tpot_slo * 1e-3
    return Load(requests_per_second=qps, input_tokens=isl, output_tokens=osl, tpot_target_seconds=target)
