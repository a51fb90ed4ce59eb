"""The complete answer of `plan` for one drafter: rows, contexts, request rate and the engine's configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.app.request_schema import MAX_BATCH
from specmargin.app.scenarios import scenarios_of
from specmargin.app.verbs_schema import PlanRequest
from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.compare import Comparison
from specmargin.decisions.compare import compare as compare_sources
from specmargin.decisions.load import Load, Operating, settle
from specmargin.decisions.plan import Plan, PlanRow, check_range, deepest, make_plan, plan_rows
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.routing_effect import RoutingEffect, routing_effect
from specmargin.decisions.schedule import depth_table
from specmargin.decisions.unverified import Unverified, unverified
from specmargin.decisions.warnings import price_warnings
from specmargin.errors import ScenarioError
from specmargin.formats import find_engine
from specmargin.formats.base import EngineConfig, ScheduleRequest
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import OverlappedDrafter

UNVERIFIED = "unverified"
DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    choice: DraftChoice
    plan: Plan
    config: EngineConfig
    scheduled_speedups: tuple[float, ...]  # of the emitted configuration, at each row's batch
    by_context: dict[int, Plan]
    load: Load | None
    warnings: tuple[str, ...]  # about the prices
    routing_effect: RoutingEffect | None  # against uniform routing
    no_spec: Operating | None  # where the load settles without speculation
    speculating: Operating | None

    @property
    def mean_speedup(self) -> float:
        rows = [row for row in self.plan.rows if row.fits] or list(self.plan.rows)
        return sum(row.speedup for row in rows) / len(rows)


def answers(request: PlanRequest) -> list[Answer]:
    """One answer per requested drafter, the best first."""
    load = load_of(request)
    if load is not None:
        request = request.model_copy(update={"context": round(load.mean_context)})
    by_drafter = [answer(choice, Pricer(scenario), request) for choice, scenario in scenarios_of(request)]
    return sorted(by_drafter, key=lambda entry: -entry.mean_speedup)


def load_of(request: PlanRequest) -> Load | None:
    if request.qps is None or request.isl is None or request.osl is None:
        return None
    target = None if request.tpot_slo is None else request.tpot_slo * 1e-3
    return Load(
        requests_per_second=request.qps,
        input_tokens=request.isl,
        output_tokens=request.osl,
        tpot_target_seconds=target,
    )


def answer(choice: DraftChoice, pricer: Pricer, request: PlanRequest) -> Answer:
    graph_limit = None if request.ignore_graph_limit else pricer.scenario.engine_time.graph_limit
    depth = deepest(pricer.scenario, request.depth)
    load = load_of(request)
    no_spec, speculating = None, None
    if load is not None:
        no_spec = settle(pricer, load, max_depth=0, graph_limit=graph_limit, speculate=False)
        speculating = settle(pricer, load, max_depth=depth, graph_limit=graph_limit)
    batches = _batches(pricer, request, no_spec, speculating)
    check_range("batch", batches, 1, MAX_BATCH)
    rows = plan_rows(pricer, batches, max_depth=request.depth, graph_limit=graph_limit)
    config = _config(choice, pricer, rows, request, graph_limit)
    # The engine reserves memory for the deepest draft of its configuration, which limits how many sequences fit.
    held_depth = config.schedule.max_depth
    plan = make_plan(
        pricer, batches, max_depth=request.depth, graph_limit=graph_limit, held_depth=held_depth, rows=rows
    )
    by_context = {
        tokens: make_plan(pricer.with_context(float(tokens)), batches, max_depth=request.depth, graph_limit=graph_limit)
        for tokens in request.contexts
    }
    return Answer(
        choice=choice,
        plan=plan,
        config=config,
        scheduled_speedups=_scheduled_speedups(pricer, batches, config),
        by_context=by_context,
        load=load,
        warnings=price_warnings(pricer, batch=plan.rows[0].batch, depth=plan.rows[0].depth),
        routing_effect=routing_effect(plan),
        no_spec=no_spec,
        speculating=speculating,
    )


def compare(best: Answer, request: PlanRequest, what: str) -> Comparison | Unverified:
    """`plan --compare`: the plan of the recommended drafter under other prices, or beside the unverified bound."""
    return unverified(best.plan) if what == UNVERIFIED else _compare_prices(best, request, what)


def _compare_prices(best: Answer, request: PlanRequest, prices: str) -> Comparison:
    """The same plan under other prices, with the recommended drafter."""
    plan = best.plan
    changes = {"prices": prices, "form": RooflineForm.PER_COMPONENT, "context": plan.scenario.context}
    others = scenarios_of(request.model_copy(update=changes))
    other = next(scenario for _, scenario in others if scenario.drafter == plan.scenario.drafter)
    if other.prices.name == plan.scenario.prices.name:
        raise ScenarioError(f"--compare {prices}: the plan uses {prices} prices already; name another source")
    batches = [row.batch for row in plan.rows]
    return compare_sources(plan.pricer, Pricer(other), batches, max_depth=plan.max_depth, graph_limit=plan.graph_limit)


def _batches(
    pricer: Pricer, request: PlanRequest, no_spec: Operating | None, speculating: Operating | None
) -> list[int]:
    if no_spec is not None and speculating is not None:
        return sorted({no_spec.batch, speculating.batch})
    if request.batch is not None:
        return list(request.batch)
    fits = max(pricer.no_spec_largest_batch, 1)
    return [batch for batch in DEFAULT_BATCHES if batch <= fits] or [1]


def _config(
    choice: DraftChoice, pricer: Pricer, rows: tuple[PlanRow, ...], request: PlanRequest, graph_limit: int | None
) -> EngineConfig:
    table = depth_table(
        pricer,
        max_batch=request.max_batch,
        max_depth=deepest(pricer.scenario, request.depth),
        graph_limit=graph_limit,
    )
    stop = pricer.scenario.early_stop
    fitting = tuple(row.batch for row in rows if row.fits) or tuple(row.batch for row in rows)
    schedule = ScheduleRequest(
        table=table,
        batches=fitting,
        drafter_kind=choice.kind,
        drafter_model=choice.model,
        overlapped=isinstance(choice.drafter, OverlappedDrafter),
        parallel=pricer.scenario.layout.parallel,
        min_gain=request.min_gain,
        hurdle=rows[0].hurdle,
        p_min=None if stop is None else stop.p_min,
        drafted_by_depth=() if stop is None else stop.mean_drafted_by_depth(table.relative.shape[1] - 1),
    )
    return find_engine(request.engine).write(schedule)


def _scheduled_speedups(pricer: Pricer, batches: list[int], config: EngineConfig) -> tuple[float, ...]:
    """Speed-up of the emitted configuration; 1 where nothing is configured."""
    if not config.text:
        return tuple(1.0 for _ in batches)
    depths = np.array([config.schedule.depth_at(batch) for batch in batches])
    grid = pricer.grid(batches, int(depths.max()))
    speedups = grid.goodput[np.arange(len(batches)), depths] / grid.no_spec_goodput
    return tuple(float(value) for value in speedups)
