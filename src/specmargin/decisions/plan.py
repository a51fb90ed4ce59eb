"""The plan: what a setting gives at each batch size, where it pays, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.acceptance.survival import break_even_acceptance
from specmargin.decisions.grid import Grid, allowed_depths
from specmargin.decisions.paying import Loss, Ranges, outcome, stops_at_context
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import PlanRow, fitting_batch, plan_rows, setting_depths, setting_goodput
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import Schedule
from specmargin.errors import ScenarioError

MAX_DEPTH = 64
MAX_BATCH = 65_536
HORIZON = 8192  # the largest batch at which it is asked whether speculation pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows by batch, and where speculation pays under the same setting."""

    pricer: Pricer
    rows: tuple[PlanRow, ...]
    schedule: Schedule | None  # what the engine drafts; None: the best depth at every batch
    min_gain: float  # smaller differences of goodput do not matter
    max_depth: int
    graph_limit: int | None  # positions of the largest CUDA graph; None: a graph for every step
    held_depth: int  # the deepest draft that the engine reserves memory for
    largest_batch: int  # sequences that fit, with memory for drafts of that depth
    no_spec_largest_batch: int  # sequences that fit without speculation
    peak_tokens_per_second: float  # the best goodput of any batch that fits
    no_spec_peak_tokens_per_second: float  # the same without speculation
    paying: Ranges  # batch sizes at which the setting pays
    loss: Loss | None  # batch sizes at which it is slower than no speculation
    priced_up_to: int  # the largest batch that `paying` and `loss` cover
    graph_free_paying: Ranges  # where some depth would pay if the engine had a graph for every step
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
        """The batch from which on the setting does not pay; None where it pays up to `priced_up_to`."""
        if not self.paying:
            return 1
        last = self.paying[-1][1]
        return None if last >= self.priced_up_to else last + 1

    def rows_at_context(self, context: float) -> tuple[PlanRow, ...]:
        """The same setting at another context."""
        return self._rows(self.pricer.with_context(context), [row.batch for row in self.rows])

    def row_at(self, batch: int) -> PlanRow:
        """The same setting at another batch."""
        return self._rows(self.pricer, [batch])[0]

    def _rows(self, pricer: Pricer, batches: Sequence[int]) -> tuple[PlanRow, ...]:
        return plan_rows(
            pricer,
            batches,
            max_depth=self.max_depth,
            graph_limit=self.graph_limit,
            schedule=self.schedule,
            min_gain=self.min_gain,
        )

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
    schedule: Schedule | None = None,
    min_gain: float = 0.02,
) -> Plan:
    """What the engine's `schedule` gives at each of `batches`.

    None: the best depth at every batch, among depths the drafter and the engine's graphs allow.
    """
    check_range("batch", batches, 1, MAX_BATCH)
    check_range("depth", [max_depth], 0, MAX_DEPTH)
    depth = deepest(pricer.scenario, max_depth)
    grid = pricer.grid(batches, depth)
    held = int(setting_depths(grid, graph_limit, None).max()) if schedule is None else schedule.max_depth
    largest, no_spec_largest = fitting_batch(pricer, held, schedule), pricer.no_spec_largest_batch
    horizon = min(max(largest, 1), HORIZON)
    under = outcome(pricer, up_to=horizon, max_depth=depth, graph_limit=graph_limit, schedule=schedule)
    graph_free = outcome(pricer.with_graph_limit(None), up_to=horizon, max_depth=depth, graph_limit=None, schedule=None)
    return Plan(
        pricer=pricer,
        rows=plan_rows(pricer, batches, max_depth=depth, graph_limit=graph_limit, schedule=schedule, min_gain=min_gain),
        schedule=schedule,
        min_gain=min_gain,
        max_depth=depth,
        graph_limit=graph_limit,
        held_depth=held,
        largest_batch=largest,
        no_spec_largest_batch=no_spec_largest,
        peak_tokens_per_second=_peak(pricer, largest, depth, graph_limit, schedule),
        no_spec_peak_tokens_per_second=_peak(pricer, no_spec_largest, 0, None, Schedule.fixed(0, last=1)),
        paying=under.paying,
        loss=under.loss if schedule is not None else None,
        priced_up_to=horizon,
        graph_free_paying=graph_free.paying,
        stops_at_context=stops_at_context(
            pricer, int(batches[0]), max_depth=depth, graph_limit=graph_limit, schedule=schedule
        ),
        switch_acceptance=switch_acceptance(grid, graph_limit),
    )


def _peak(pricer: Pricer, largest: int, max_depth: int, graph_limit: int | None, schedule: Schedule | None) -> float:
    """The best goodput over batches 1..`largest`; goodput is smooth, so a few hundred of them are enough."""
    batches = np.unique(np.geomspace(1, max(min(largest, MAX_BATCH), 1), 200).round())
    grid = pricer.grid(batches, max_depth)
    return float(setting_goodput(grid, setting_depths(grid, graph_limit, schedule), schedule).max())


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
