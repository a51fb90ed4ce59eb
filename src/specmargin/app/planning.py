"""A whole plan for one drafter: rows, contexts, request rate and the engine's setting: what people are shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.load import Load, Operating, settle
from specmargin.decisions.plan import MAX_BATCH, MAX_DEPTH, Plan, PlanRow, check_range, deepest, make_plan, plan_rows
from specmargin.decisions.routing_effect import RoutingEffect, routing_effect
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import depth_table
from specmargin.decisions.warnings import price_warnings
from specmargin.formats.base import EngineConfig, EngineFormat, Request
from specmargin.prices.drafters import OverlappedDrafter

DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about a scenario."""

    engine: EngineFormat
    batches: tuple[int, ...] | None = None  # None: powers of two that fit
    max_depth: int = 8
    contexts: tuple[int, ...] = ()
    load: Load | None = None
    min_gain: float = 0.02
    max_batch: int = 512
    allow_eager: bool = False  # steps for which the engine has no graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    choice: DraftChoice
    plan: Plan
    config: EngineConfig
    scheduled_speedups: tuple[float, ...]  # what the emitted setting gives at each row's batch
    by_context: dict[int, Plan]
    load: Load | None
    warnings: tuple[str, ...]  # about the prices
    routing_effect: RoutingEffect | None  # against uniform routing
    plain: Operating | None  # where the load settles without speculation
    speculating: Operating | None

    @property
    def mean_speedup(self) -> float:
        rows = [row for row in self.plan.rows if row.fits] or list(self.plan.rows)
        return sum(row.speedup for row in rows) / len(rows)


def answer(choice: DraftChoice, scenario: Scenario, question: Question) -> Answer:
    limit = None if question.allow_eager else scenario.engine_time.captured_positions
    depth = min(question.max_depth, scenario.drafter.max_depth or question.max_depth)
    plain, speculating = None, None
    if question.load is not None:
        plain = settle(scenario, question.load, max_depth=0, position_limit=limit, speculate=False)
        speculating = settle(scenario, question.load, max_depth=depth, position_limit=limit)
    batches = _batches(scenario, question, plain, speculating)
    check_range("batch", batches, 1, MAX_BATCH)
    check_range("depth", [question.max_depth], 0, MAX_DEPTH)
    rows = plan_rows(scenario, batches, max_depth=question.max_depth, position_limit=limit)
    config = _config(choice, scenario, rows, question, limit)
    # The engine holds memory for the deepest draft of its setting, which is what decides how many sequences fit.
    held = config.schedule.max_depth
    plan = make_plan(scenario, batches, max_depth=question.max_depth, position_limit=limit, held_depth=held, rows=rows)
    by_context = {
        tokens: make_plan(
            replace(scenario, context=float(tokens)), batches, max_depth=question.max_depth, position_limit=limit
        )
        for tokens in question.contexts
    }
    return Answer(
        choice=choice,
        plan=plan,
        config=config,
        scheduled_speedups=_scheduled(scenario, batches, config),
        by_context=by_context,
        load=question.load,
        warnings=price_warnings(scenario, batch=plan.rows[0].batch, depth=plan.rows[0].depth),
        routing_effect=routing_effect(plan),
        plain=plain,
        speculating=speculating,
    )


def _batches(
    scenario: Scenario, question: Question, plain: Operating | None, speculating: Operating | None
) -> list[int]:
    if plain is not None and speculating is not None:
        return sorted({plain.batch, speculating.batch})
    if question.batches is not None:
        return list(question.batches)
    fits = max(scenario.plain_largest_batch, 1)
    return [batch for batch in DEFAULT_BATCHES if batch <= fits] or [1]


def _config(
    choice: DraftChoice, scenario: Scenario, rows: tuple[PlanRow, ...], question: Question, limit: int | None
) -> EngineConfig:
    table = depth_table(
        scenario,
        max_batch=question.max_batch,
        max_depth=deepest(scenario, question.max_depth),
        position_limit=limit,
    )
    fitting = tuple(row.batch for row in rows if row.fits) or tuple(row.batch for row in rows)
    request = Request(
        table=table,
        batches=fitting,
        drafter_kind=choice.kind,
        drafter_model=choice.model,
        overlapped=isinstance(choice.drafter, OverlappedDrafter),
        parallel=scenario.layout.parallel,
        min_gain=question.min_gain,
        hurdle=rows[0].hurdle,
    )
    return question.engine.write(request)


def _scheduled(scenario: Scenario, batches: list[int], config: EngineConfig) -> tuple[float, ...]:
    """Speed-up of the setting as it is written; 1 where nothing is configured."""
    if not config.text:
        return tuple(1.0 for _ in batches)
    depths = np.array([config.schedule.depth_at(batch) for batch in batches])
    grid = scenario.grid(batches, int(depths.max()))
    gained = grid.goodput[np.arange(len(batches)), depths] / grid.none_goodput
    return tuple(float(value) for value in gained)
