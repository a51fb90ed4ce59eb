"""The plan: the best depth at each batch size, its gain, and its hurdle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.acceptance.survival import break_even_acceptance
from specmargin.decisions.grid import Grid, allowed_depths, best_depths
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError
from specmargin.prices.model import ComponentPrice, Resource, StepPrice
from specmargin.prices.work import Component
from specmargin.step import ArrayLike, FloatArray, IntArray, Step

MAX_DEPTH = 64
MAX_BATCH = 65_536
_HORIZON = 8192  # the largest batch that is priced
_ONE_BY_ONE = 512  # every batch up to here; above, about 64 per factor of e, and all between two that differ


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    batch: int
    depth: int
    speedup: float
    goodput_tokens_per_second: float
    no_spec_tokens_per_second: float
    tpot_seconds: float
    no_spec_tpot_seconds: float
    hurdle: float
    hurdle_by_component: dict[Component, float]
    break_even_acceptance: float | None
    break_even_depth: int
    distinct_experts: float | None
    bound_component: Component
    bound_resource: Resource
    communication_share: float
    gpu_hours_per_million_tokens: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows by batch, and where speculation pays."""

    pricer: Pricer
    rows: tuple[PlanRow, ...]
    max_depth: int
    graph_limit: int | None  # positions of the largest CUDA graph; None: a graph for every step
    held_depth: int  # the deepest draft that the engine reserves memory for
    largest_batch: int  # sequences that fit, with memory for drafts of that depth
    no_spec_largest_batch: int  # sequences that fit without speculation
    peak_tokens_per_second: float  # the best goodput of any batch that fits
    no_spec_peak_tokens_per_second: float  # the same without speculation
    paying: tuple[tuple[int, int], ...]  # ranges of batch sizes in which some allowed depth pays
    priced_up_to: int  # the largest batch that `paying` covers
    graph_free_paying: tuple[tuple[int, int], ...]  # the same if the engine had a graph for every step
    stops_at_context: int | None  # at the first row's batch; None where it pays up to the model's limit, or not at all
    switch_acceptance: float | None  # at the first row's batch: the constant acceptance at which the verdict changes

    @property
    def scenario(self) -> Scenario:
        return self.pricer.scenario

    @property
    def pays(self) -> bool:
        return any(row.depth > 0 and row.speedup > 1.0 for row in self.rows if row.fits)

    @property
    def stops_at_batch(self) -> int | None:
        """The batch from which on no depth pays; None where one pays up to `priced_up_to`."""
        if not self.paying:
            return 1
        last = self.paying[-1][1]
        return None if last >= self.priced_up_to else last + 1

    @property
    def best(self) -> PlanRow:
        rows = [row for row in self.rows if row.fits] or list(self.rows)
        return max(rows, key=lambda row: row.speedup)


def check_range(name: str, values: Sequence[int], low: int, high: int) -> None:
    for value in values:
        if not low <= value <= high:
            raise ScenarioError(f"{name} must lie in {low}..{high}, got {value}")


def make_plan(
    pricer: Pricer,
    batches: Sequence[int],
    *,
    max_depth: int,
    graph_limit: int | None = None,
    held_depth: int | None = None,
    rows: tuple[PlanRow, ...] | None = None,
) -> Plan:
    """The best depth at each of `batches`, among depths the drafter and the engine's graphs allow.

    `held_depth`: the deepest draft that the engine will be configured for, which decides what fits in memory; None: the
    deepest of the rows. `rows`: those of these batches, if they exist already.
    """
    check_range("batch", batches, 1, MAX_BATCH)
    check_range("depth", [max_depth], 0, MAX_DEPTH)
    depth = deepest(pricer.scenario, max_depth)
    grid = pricer.grid(batches, depth)
    chosen = best_depths(grid, graph_limit)
    held = int(chosen.max()) if held_depth is None else held_depth
    largest, no_spec_largest = pricer.largest_batch(held), pricer.no_spec_largest_batch
    horizon = min(max(largest, 1), _HORIZON)
    return Plan(
        pricer=pricer,
        rows=_rows(pricer, grid, chosen, largest) if rows is None else _with_fits(rows, largest),
        max_depth=depth,
        graph_limit=graph_limit,
        held_depth=held,
        largest_batch=largest,
        no_spec_largest_batch=no_spec_largest,
        peak_tokens_per_second=_peak(pricer, largest, min(held, depth), graph_limit),
        no_spec_peak_tokens_per_second=_peak(pricer, no_spec_largest, 0, None),
        paying=paying_ranges(pricer, depth, horizon, graph_limit),
        priced_up_to=horizon,
        graph_free_paying=paying_ranges(pricer.with_graph_limit(None), depth, horizon, None),
        stops_at_context=stops_at_context(pricer, int(batches[0]), depth, graph_limit),
        switch_acceptance=switch_acceptance(grid, graph_limit),
    )


def _peak(pricer: Pricer, largest: int, depth: int, graph_limit: int | None) -> float:
    """The best goodput over batches 1..`largest`; goodput is smooth, so a few hundred of them are enough."""
    batches = np.unique(np.geomspace(1, max(min(largest, MAX_BATCH), 1), 200).round())
    grid = pricer.grid(batches, depth)
    if depth == 0:
        return float(grid.no_spec_goodput.max())
    return float(np.where(allowed_depths(grid, graph_limit), grid.goodput, 0.0).max())


def switch_acceptance(grid: Grid, graph_limit: int | None) -> float | None:
    """At the grid's first batch: below this constant acceptance no allowed depth pays; None if none can."""
    depths = np.flatnonzero(allowed_depths(grid, graph_limit)[0, 1:]) + 1
    if depths.size == 0:
        return None
    even = break_even_acceptance(grid.full_round_seconds[0, depths] / grid.no_spec_seconds[0], depths)
    return None if np.isnan(even).all() else float(np.nanmin(even))


def deepest(scenario: Scenario, max_depth: int) -> int:
    limit = scenario.drafter.max_depth
    return max_depth if limit is None else min(max_depth, limit)


def plan_rows(
    pricer: Pricer, batches: Sequence[int], *, max_depth: int, graph_limit: int | None
) -> tuple[PlanRow, ...]:
    """The rows alone, without the ranges in which speculation pays."""
    grid = pricer.grid(batches, deepest(pricer.scenario, max_depth))
    chosen = best_depths(grid, graph_limit)
    return _rows(pricer, grid, chosen, pricer.largest_batch(int(chosen.max())))


def _rows(pricer: Pricer, grid: Grid, chosen: IntArray, largest: int) -> tuple[PlanRow, ...]:
    """Every row at once: the ledger at the chosen depths, and with one more position."""
    step = Step.uniform(batch=grid.batches, depth=chosen, context=pricer.scenario.context)
    now, more = pricer.marginal(step)
    marginal = marginal_by_component(now, more, positions=pricer.scenario.layout.sequence_ranks)
    distinct = pricer.distinct_experts(step)
    communication = np.broadcast_to(now.share(Component.COLLECTIVES), grid.batches.shape)
    index = np.arange(grid.batches.size)
    even_depth = np.minimum(np.maximum(chosen, 1), grid.depths.size - 1)
    even = break_even_acceptance(grid.full_round_seconds[index, even_depth] / grid.no_spec_seconds, even_depth)

    def row(i: int) -> PlanRow:
        depth, goodput, no_spec = int(chosen[i]), float(grid.goodput[i, chosen[i]]), float(grid.no_spec_goodput[i])
        added = [(line, float(seconds[i])) for line, seconds in marginal]
        bound, _ = max(added, key=lambda pair: pair[1])
        return PlanRow(
            batch=int(grid.batches[i]),
            depth=depth,
            speedup=goodput / no_spec,
            goodput_tokens_per_second=goodput,
            no_spec_tokens_per_second=no_spec,
            tpot_seconds=float(grid.tpot_seconds[i, depth]),
            no_spec_tpot_seconds=float(grid.no_spec_seconds[i]),
            hurdle=goodput * sum(seconds for _, seconds in added),
            hurdle_by_component={line.component: goodput * seconds for line, seconds in added},
            break_even_acceptance=None if np.isnan(even[i]) else float(even[i]),
            break_even_depth=int(even_depth[i]),
            distinct_experts=None if distinct is None else float(distinct[i]),
            bound_component=bound.component,
            bound_resource=bound.resource(i),
            communication_share=float(communication[i]),
            gpu_hours_per_million_tokens=pricer.scenario.layout.gpus * 1e6 / goodput / 3600.0,
            fits=int(grid.batches[i]) <= largest,
        )

    return tuple(row(i) for i in range(grid.batches.size))


def _with_fits(rows: tuple[PlanRow, ...], largest: int) -> tuple[PlanRow, ...]:
    return tuple(replace(row, fits=row.batch <= largest) for row in rows)


def marginal_by_component(
    now: StepPrice, more: StepPrice, *, positions: int
) -> list[tuple[ComponentPrice, FloatArray]]:
    """Seconds that one more position adds, by line of the ledger; `more` has that many `positions` more."""
    later = {line.component: line.seconds for line in more.components}
    return [(line, np.asarray(later.get(line.component, 0.0) - line.seconds) / positions) for line in now.components]


def speedup_by_batch(
    pricer: Pricer,
    batches: FloatArray,
    max_depth: int,
    graph_limit: int | None,
    context: ArrayLike | None = None,
) -> FloatArray:
    """Best goodput at depth 1 or more, over an engine without speculation."""
    grid = pricer.grid(batches, max_depth, context)
    allowed = allowed_depths(grid, graph_limit)[:, 1:]
    goodput = np.where(allowed, grid.goodput[:, 1:], 0.0)
    return np.asarray(goodput.max(axis=1, initial=0.0) / grid.no_spec_goodput)


def paying_ranges(pricer: Pricer, max_depth: int, horizon: int, graph_limit: int | None) -> tuple[tuple[int, int], ...]:
    """Ranges of batch sizes, up to `horizon`, in which some allowed depth of 1 or more pays."""
    # Speculation takes at least two positions per sequence, so no batch beyond half of the graph limit is allowed.
    reach = horizon if graph_limit is None else min(horizon, graph_limit // 2 * pricer.scenario.layout.sequence_ranks)
    if max_depth == 0 or reach == 0:
        return ()
    batches = _spread(reach)
    pays = speedup_by_batch(pricer, batches, max_depth, graph_limit) > 1.0
    turns = np.flatnonzero(pays[:-1] != pays[1:])
    between = np.concatenate([np.arange(batches[i] + 1, batches[i + 1]) for i in turns] or [np.zeros(0)])
    if between.size:
        inside = speedup_by_batch(pricer, between, max_depth, graph_limit) > 1.0
        order = np.argsort(np.concatenate([batches, between]))
        batches, pays = np.concatenate([batches, between])[order], np.concatenate([pays, inside])[order]
    starts = np.flatnonzero(np.diff(pays.astype(np.int8), prepend=0) > 0)
    ends = np.flatnonzero(np.diff(pays.astype(np.int8), append=0) < 0)
    return tuple((int(batches[first]), int(batches[last])) for first, last in zip(starts, ends, strict=True))


def _spread(reach: int) -> FloatArray:
    """Batch sizes to price: every small one, then some at growing distances, where goodput is smooth."""
    small = np.arange(1, min(reach, _ONE_BY_ONE) + 1, dtype=np.float64)
    if reach <= _ONE_BY_ONE:
        return small
    count = int(np.ceil(64 * np.log(reach / _ONE_BY_ONE)))
    return np.concatenate([small, np.unique(np.geomspace(_ONE_BY_ONE + 1, reach, count + 1).round())])


def stops_at_context(pricer: Pricer, batch: int, max_depth: int, graph_limit: int | None) -> int | None:
    """The context from which on no depth pays at this batch, to the nearest power of √2.

    None where it still pays at the model's limit, and where it pays at no context at all.
    """
    longest = pricer.scenario.architecture.max_context or 1_048_576
    if max_depth == 0:
        return None
    contexts = np.unique(np.minimum(2.0 ** np.arange(7, 21, 0.5), longest))
    same_batch = np.full(contexts.shape, float(batch))
    pays = speedup_by_batch(pricer, same_batch, max_depth, graph_limit, contexts) > 1.0
    if pays[-1] or not pays.any():
        return None
    return int(contexts[np.flatnonzero(pays)[-1] + 1])
