"""`specmargin plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specmargin.catalog.drafters import DraftChoice
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.decisions.load import Load, Operating, settle
from specmargin.decisions.plan import Plan, PlanRow, make_plan
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import depth_table
from specmargin.decisions.verdict import verdict
from specmargin.engines.formats import find_engine
from specmargin.engines.formats.base import EngineConfig, EngineFormat, Request
from specmargin.errors import ScenarioError
from specmargin.hardware.layout import Parallel
from specmargin.prices.roofline import RooflineForm
from specmargin.sources import weakest

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_DEFAULT_BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


@app.command()
def plan(
    model: o.Model,
    gpu: o.Gpu,
    engine: Annotated[str, typer.Option("--engine", help="vllm, sglang, trtllm, llamacpp.")] = "vllm",
    drafter: o.DrafterOption = None,
    acceptance: o.AcceptanceOption = None,
    batch: Annotated[
        str | None, typer.Option("--batch", help="Batch sizes: 1,4,16 or 1-64. Default: 1, 2, 4 … what fits.")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", help="Deepest draft to consider.")] = 8,
    context: o.ContextOption = 1024,
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
    routing: o.RoutingOption = "uniform",
    weights: o.WeightsOption = None,
    kv_cache: o.KvOption = None,
    prices: o.PricesOption = "datasheet",
    form: o.FormOption = RooflineForm.PER_COMPONENT,
    step_ms: o.StepTimeOption = 0.0,
    sequence_ms: o.SequenceTimeOption = 0.0,
    layer_us: o.LayerTimeOption = 0.0,
    memory_utilization: o.UtilizationOption = 0.9,
    min_gain: Annotated[
        float,
        typer.Option("--min-gain", help="Merge neighbouring ranges that differ by less than this part of goodput."),
    ] = 0.02,
    max_batch: Annotated[int, typer.Option("--max-batch", help="Largest batch of the engine's schedule.")] = 512,
    ignore_graph_limit: Annotated[
        bool, typer.Option("--ignore-graph-limit", help="Allow depths for which the engine captures no CUDA graph.")
    ] = False,
    gpu_hour_price: Annotated[
        float | None, typer.Option("--gpu-hour-price", help="Price of one GPU for an hour, to show money.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the engine's setting to this file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Does speculation pay here, how deep at each batch, and the engine's own setting for it.

    The verdict comes first, in words; then a row for each batch size; then the flags to paste.

    Examples:

      specmargin plan qwen3.6-35b-a3b --gpu h200

      specmargin plan deepseek-v3 --gpu h200 --gpus 8 --parallel ep --acceptance 0.82

      specmargin plan ./my-model --gpu b200 --qps 4 --isl 1000 --osl 300 --tpot-slo 20
    """
    shared = o.ScenarioOptions(
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
        prices=prices,
        form=form,
        step_ms=step_ms,
        sequence_ms=sequence_ms,
        layer_us=layer_us,
        memory_utilization=memory_utilization,
    )
    chosen_engine = find_engine(engine)
    load = _load(qps, isl, osl, tpot_slo)
    if load is not None:
        shared = replace(shared, context=round(load.mean_context))
    if max_batch < 1 or (gpu_hour_price is not None and gpu_hour_price < 0):
        raise ScenarioError("--max-batch must be at least 1 and --gpu-hour-price must not be negative")
    planner = _Planner(
        engine=chosen_engine,
        batches=o.parse_numbers(batch, "--batch") if batch else None,
        max_depth=depth,
        load=load,
        contexts=o.parse_numbers(contexts, "--contexts") if contexts else [],
        min_gain=min_gain,
        max_batch=max_batch,
        use_graph_limit=not ignore_graph_limit,
    )
    results = [planner.run(choice, scenario) for choice, scenario in shared.choices()]
    results.sort(key=lambda result: -_mean_speedup(result.plan))
    if output is not None:
        setting = results[0].config
        o.write_file(output, setting.file_text or f"{setting.text}\n", force=force)
    if json:
        render.json_out(_payload(results, chosen_engine, gpu_hour_price))
    else:
        _print(results, chosen_engine, gpu_hour_price)


class _Result:
    """Everything one drafter's plan shows."""

    def __init__(
        self,
        choice: DraftChoice,
        plan: Plan,
        config: EngineConfig,
        by_context: dict[int, Plan],
        operating: tuple[Load, Operating, Operating] | None,
    ) -> None:
        self.choice, self.plan, self.config = choice, plan, config
        self.by_context, self.operating = by_context, operating


class _Planner:
    def __init__(
        self,
        *,
        engine: EngineFormat,
        batches: list[int] | None,
        max_depth: int,
        load: Load | None,
        contexts: list[int],
        min_gain: float,
        max_batch: int,
        use_graph_limit: bool,
    ) -> None:
        self.engine, self.batches, self.max_depth, self.load = engine, batches, max_depth, load
        self.contexts, self.min_gain, self.max_batch = contexts, min_gain, max_batch
        self.use_graph_limit = use_graph_limit

    def run(self, choice: DraftChoice, scenario: Scenario) -> _Result:
        limit = self.engine.position_limit(scenario.device) if self.use_graph_limit else None
        operating = self._operating(scenario, limit)
        batches = self._batches(scenario, operating)
        plan = make_plan(scenario, batches, max_depth=self.max_depth, position_limit=limit)
        by_context = {
            tokens: make_plan(
                replace(scenario, context=float(tokens)), batches, max_depth=self.max_depth, position_limit=limit
            )
            for tokens in self.contexts
        }
        return _Result(choice, plan, self._config(choice, plan), by_context, operating)

    def _operating(self, scenario: Scenario, limit: int | None) -> tuple[Load, Operating, Operating] | None:
        if self.load is None:
            return None
        plain = settle(scenario, self.load, max_depth=0, position_limit=limit, speculate=False)
        depth = min(self.max_depth, scenario.drafter.max_depth or self.max_depth)
        return self.load, plain, settle(scenario, self.load, max_depth=depth, position_limit=limit)

    def _batches(self, scenario: Scenario, operating: tuple[Load, Operating, Operating] | None) -> list[int]:
        if operating is not None:
            return sorted({operating[1].batch, operating[2].batch})
        if self.batches is not None:
            return self.batches
        fits = max(scenario.largest_batch(0), 1)
        return [batch for batch in _DEFAULT_BATCHES if batch <= fits] or [1]

    def _config(self, choice: DraftChoice, plan: Plan) -> EngineConfig:
        table = depth_table(
            plan.scenario,
            max_batch=self.max_batch,
            max_depth=plan.max_depth,
            position_limit=plan.position_limit,
        )
        request = Request(
            table=table,
            batches=tuple(row.batch for row in plan.rows),
            drafter_kind=choice.kind,
            drafter_spec=choice.spec,
            parallel=plan.scenario.layout.parallel,
            min_gain=self.min_gain,
            hurdle=plan.rows[0].hurdle,
        )
        return self.engine.write(request)


def _load(qps: float | None, isl: int | None, osl: int | None, tpot_slo: float | None) -> Load | None:
    if qps is None:
        if isl is not None or osl is not None or tpot_slo is not None:
            raise ScenarioError("--isl, --osl and --tpot-slo describe a request rate: give --qps too")
        return None
    if isl is None or osl is None:
        raise ScenarioError("--qps needs --isl and --osl (input and output tokens of a request)")
    target = None if tpot_slo is None else tpot_slo * 1e-3
    return Load(requests_per_second=qps, input_tokens=isl, output_tokens=osl, tpot_target_seconds=target)


def _mean_speedup(plan: Plan) -> float:
    rows = [row for row in plan.rows if row.fits] or list(plan.rows)
    return sum(row.speedup for row in rows) / len(rows)


# --- JSON ------------------------------------------------------------------------------------------------


def _payload(results: list[_Result], engine: EngineFormat, price: float | None) -> dict[str, Any]:
    best = results[0]
    scenario = best.plan.scenario
    payload: dict[str, Any] = {
        "schema": "specmargin.plan/1",
        "model": scenario.architecture.name,
        "gpu": scenario.device.name,
        "gpus": scenario.layout.gpus,
        "parallel": str(scenario.layout.parallel),
        "engine": engine.name,
        "drafter": scenario.drafter.name,
        "context": scenario.context,
        "prices": scenario.prices.name,
        "verdict": verdict(best.plan),
        "sources": {name: str(source) for name, source in scenario.sources.items()},
        "weakest_source": str(weakest(scenario.sources.values())),
        "rows": [_row_payload(row, price) for row in best.plan.rows],
        "stops_at_batch": best.plan.stops_at_batch,
        "stops_at_batch_without_graph_limit": best.plan.without_limit_stops_at_batch,
        "stops_at_context": best.plan.stops_at_context,
        "largest_batch": best.plan.largest_batch,
        "config": best.config.text,
        "config_file": best.config.file_text,
        "config_notes": list(best.config.notes),
        "schedule": [[r.first, r.last, r.depth] for r in best.config.schedule.ranges],
    }
    if best.by_context:
        payload["by_context"] = [
            {"context": tokens, "rows": [_row_payload(row, price) for row in plan.rows]}
            for tokens, plan in best.by_context.items()
        ]
    if best.operating is not None:
        payload["load"] = _load_payload(*best.operating)
    if len(results) > 1:
        payload["ranking"] = [
            {
                "drafter": result.plan.scenario.drafter.name,
                "mean_speedup": _mean_speedup(result.plan),
                "rows": [_row_payload(row, price) for row in result.plan.rows],
            }
            for result in results
        ]
    return payload


def _row_payload(row: PlanRow, price: float | None) -> dict[str, Any]:
    payload = {
        "batch": row.batch,
        "depth": row.depth,
        "speedup": row.speedup,
        "goodput_tokens_per_second": row.goodput_tokens_per_second,
        "no_spec_tokens_per_second": row.no_spec_tokens_per_second,
        "tpot_seconds": row.tpot_seconds,
        "no_spec_tpot_seconds": row.no_spec_tpot_seconds,
        "hurdle": row.hurdle,
        "hurdle_by_component": {str(name): value for name, value in row.hurdle_by_component.items()},
        "break_even_acceptance": row.break_even_acceptance,
        "break_even_depth": row.break_even_depth,
        "distinct_experts": row.distinct_experts,
        "bound_by": f"{row.bound_component}: {row.bound_resource}",
        "communication_share": row.communication_share,
        "gpu_hours_per_million_tokens": row.gpu_hours_per_million_tokens,
        "fits": row.fits,
    }
    if price is not None:
        payload["cost_per_million_tokens"] = row.gpu_hours_per_million_tokens * price
    return payload


def _load_payload(load: Load, plain: Operating, speculating: Operating) -> dict[str, Any]:
    def side(point: Operating) -> dict[str, Any]:
        return {
            "batch": point.batch,
            "depth": point.depth,
            "tpot_seconds": point.tpot_seconds,
            "prefill_share": point.prefill_share,
            "meets_target": point.meets_target,
        }

    return {
        "requests_per_second": load.requests_per_second,
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "no_spec": side(plain),
        "speculating": side(speculating),
    }


# --- terminal --------------------------------------------------------------------------------------------


def _print(results: list[_Result], engine: EngineFormat, price: float | None) -> None:
    out = render.console()
    best = results[0]
    out.print(verdict(best.plan), style="bold", markup=False)
    out.print()
    if best.operating is not None:
        _print_load(out, *best.operating)
    if len(results) > 1:
        _print_ranking(out, results)
    _print_rows(out, best.plan, price)
    if best.by_context:
        _print_contexts(out, best)
    _print_config(out, best.config, engine)
    render.sources(out, best.plan.scenario.sources)


def _print_rows(out: Any, plan: Plan, price: float | None) -> None:
    scenario = plan.scenario
    columns = [("batch", "right"), ("draft", "right"), ("speed-up", "right"), ("tok/s", "right")]
    roomy = scenario.layout.gpus == 1 and price is None  # 100 columns hold two more only without these
    columns += [("plain", "right")] if roomy else []
    columns += [("ms/token", "right"), ("hurdle", "right"), ("break-even", "right")]
    if scenario.architecture.is_moe:
        columns.append(("experts", "right"))
    if scenario.layout.gpus > 1:
        columns.append(("comm", "right"))
    if price is not None:
        columns.append(("cost/Mtok", "right"))
    columns.append(("bound by", "left"))
    title = (
        f"{scenario.drafter.name} on {scenario.device.title}, context {scenario.context:g}, "
        f"{scenario.prices.name} prices"
    )
    shown = render.table(title, columns)
    for row in plan.rows:
        cells = [
            str(row.batch),
            str(row.depth) if row.fits else f"({row.depth})",
            f"{row.speedup:.2f}×",
            render.tokens_per_second(row.goodput_tokens_per_second),
            *([render.tokens_per_second(row.no_spec_tokens_per_second)] if roomy else []),
            f"{row.tpot_seconds * 1e3:.2f}",
            f"{row.hurdle:.2f}",
            "never" if row.break_even_acceptance is None else f"{row.break_even_acceptance:.2f}",
        ]
        if scenario.architecture.is_moe:
            cells.append(f"{row.distinct_experts:.0f}")
        if scenario.layout.gpus > 1:
            cells.append(f"{row.communication_share:.0%}")
        if price is not None:
            cells.append(f"{row.gpu_hours_per_million_tokens * price:.3f}")
        cells.append(f"{row.bound_component} ({row.bound_resource})")
        shown.add_row(*cells, style="" if row.fits else "dim")
    out.print(shown)
    if any(not row.fits for row in plan.rows):
        out.print(f"(in brackets: more sequences than the {plan.largest_batch} that fit in memory)", style="dim")
    out.print(
        "hurdle: survival the next draft token must reach; break-even: acceptance a token at which the draft only "
        "equals no speculation",
        style="dim",
    )
    out.print()


def _print_ranking(out: Any, results: list[_Result]) -> None:
    batches = [row.batch for row in results[0].plan.rows]
    shown = render.table("drafters, best first: speed-up (depth) by batch", [("drafter", "left")])
    for batch in batches:
        shown.add_column(str(batch), justify="right")
    for result in results:
        cells = [f"{row.speedup:.2f}× ({row.depth})" for row in result.plan.rows]
        shown.add_row(result.plan.scenario.drafter.name, *cells)
    out.print(shown)
    out.print()


def _print_contexts(out: Any, result: _Result) -> None:
    shown = render.table("by context: draft and speed-up", [("context", "right")])
    for row in result.plan.rows:
        shown.add_column(f"batch {row.batch}", justify="right")
    for tokens, plan in result.by_context.items():
        cells = [f"{row.depth} {row.speedup:.2f}×" if row.fits else "no room" for row in plan.rows]
        shown.add_row(f"{tokens:,}", *cells)
    out.print(shown)
    out.print()


def _print_load(out: Any, load: Load, plain: Operating, speculating: Operating) -> None:
    columns = [("", "left"), ("batch", "right"), ("draft", "right"), ("ms/token", "right"), ("prefill", "right")]
    if load.tpot_target_seconds is not None:
        columns.append(("target", "left"))
    shown = render.table(
        f"{load.requests_per_second:g} requests/s of {load.input_tokens} + {load.output_tokens} tokens", columns
    )
    for name, point in (("no speculation", plain), ("speculating", speculating)):
        cells = [
            name,
            str(point.batch),
            str(point.depth),
            f"{point.tpot_seconds * 1e3:.2f}",
            f"{point.prefill_share:.0%}",
        ]
        if load.tpot_target_seconds is not None:
            cells.append("met" if point.meets_target else f"missed ({load.tpot_target_seconds * 1e3:g} ms)")
        shown.add_row(*cells)
    out.print(shown)
    out.print()


def _print_config(out: Any, config: EngineConfig, engine: EngineFormat) -> None:
    out.print(f"for {engine.title}:", style="bold")
    if config.text:
        print(config.text)  # not through Rich: it must paste as one line
    if config.file_text:
        print(f"{config.file_name}:\n{config.file_text}")
    for note in config.notes:
        out.print(f"({note})", style="dim", markup=False)
    out.print()
