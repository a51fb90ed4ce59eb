"""The plan: what a setting gives at each batch size, where it pays, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.acceptance.survival import break_even_acceptance
from specmargin.decisions.grid import Grid
from specmargin.decisions.payoff import Loss, Payoff, Spans, payoff, stops_at_context
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import PlanRow, plan_rows
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.errors import ScenarioError
from specmargin.limits import MAX_BATCH

HORIZON = 8192  # the largest batch at which it is asked whether speculation pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows by batch, and where speculation pays under the same setting."""

    pricer: Pricer
    rows: tuple[PlanRow, ...]
    setting: Setting
    min_gain: float  # smaller differences of goodput do not matter
    held_depth: int  # the deepest draft that the engine reserves memory for
    largest_batch: int  # sequences that fit, with memory for drafts of that depth
    no_spec_largest_batch: int  # sequences that fit without speculation
    peak_tokens_per_second: float  # the best goodput of any batch that fits
    no_spec_peak_tokens_per_second: float  # the same without speculation
    no_spec_peak_beside_drafts: float  # the same with no more sequences than fit with drafts
    payoff: Payoff  # speed-ups by batch
    priced_up_to: int  # the largest batch that `payoff` covers
    graph_free_paying: Spans  # where some depth would pay if the engine had a graph for every step
    stops_at_context: int | None  # at the first row's batch; None where it pays up to the model's limit, or not at all
    switch_acceptance: float | None  # at the first row's batch: the constant acceptance at which the verdict changes

    @property
    def scenario(self) -> Scenario:
        return self.pricer.scenario

    @property
    def paying(self) -> Spans:
        """Batch sizes at which the setting pays."""
        return self.payoff.paying

    @property
    def loss(self) -> Loss | None:
        """Batch sizes at which it is slower than no speculation; without a schedule it is off there."""
        return None if self.setting.schedule is None else self.payoff.loss

    @property
    def pays(self) -> bool:
        return any(row.depth > 0 and row.speedup > 1.0 for row in self.rows if row.fits)

    @property
    def loses_capacity(self) -> bool:
        """Whether peak throughput falls by more than `min_gain`, mostly since drafts leave memory for fewer."""
        plain, here = self.no_spec_peak_tokens_per_second, self.peak_tokens_per_second
        return here < (1.0 - self.min_gain) * plain and 2.0 * self.no_spec_peak_beside_drafts <= plain + here

    @property
    def limit(self) -> int | None:
        """The last that pays, if larger ones lose over `min_gain`, or peak throughput falls for want of memory."""
        if not self.paying:
            return None
        last = self.paying[-1][1]
        loss = self.loss
        loses = loss is not None and loss.spans[0][0] > last and loss.worst_speedup < 1.0 - self.min_gain
        return last if loses or self.loses_capacity else None

    @property
    def stops_at_batch(self) -> int | None:
        """The batch from which on the setting does not pay; None where it pays up to `priced_up_to`."""
        if not self.paying:
            return 1
        last = self.paying[-1][1]
        return None if last >= self.priced_up_to else last + 1

    def rows_at_context(self, context: float) -> tuple[PlanRow, ...]:
        """The same setting at another context."""
        batches = [row.batch for row in self.rows]
        return plan_rows(self.pricer.with_context(context), batches, self.setting, min_gain=self.min_gain)

    def row_at(self, batch: int) -> PlanRow:
        """The same setting at another batch."""
        return plan_rows(self.pricer, [batch], self.setting, min_gain=self.min_gain)[0]

    @property
    def best(self) -> PlanRow:
        rows = [row for row in self.rows if row.fits] or list(self.rows)
        return max(rows, key=lambda row: row.speedup)


def check_range(name: str, values: Sequence[int], low: int, high: int) -> None:
    for value in values:
        if not low <= value <= high:
            raise ScenarioError(f"{name} must lie in {low}..{high}, got {value}")


def make_plan(
    pricer: Pricer, batches: Sequence[int], setting: Setting, *, min_gain: float = 0.02, up_to: int | None = None
) -> Plan:
    """What the setting gives at each of `batches`.

    `up_to`: the largest batch that counts, unless a row is larger; None: as many sequences as fit.
    """
    check_range("batch", batches, 1, MAX_BATCH)
    grid = pricer.grid(batches, setting.max_depth)
    held = setting.held_depth(grid)
    largest, no_spec_largest = setting.largest_batch(pricer, held), pricer.no_spec_largest_batch
    counted = max(largest, no_spec_largest) if up_to is None else max(up_to, *batches)
    reach, plain_reach = min(largest, counted), min(no_spec_largest, counted)
    horizon = min(max(reach, 1), HORIZON)
    under = payoff(pricer, setting, up_to=horizon)
    graph_free = payoff(pricer.with_every_graph(), Setting(max_depth=setting.max_depth), up_to=horizon)
    return Plan(
        pricer=pricer,
        rows=plan_rows(pricer, batches, setting, min_gain=min_gain),
        setting=setting,
        min_gain=min_gain,
        held_depth=held,
        largest_batch=largest,
        no_spec_largest_batch=no_spec_largest,
        peak_tokens_per_second=_peak(pricer, setting, reach),
        no_spec_peak_tokens_per_second=_peak(pricer, Setting.fixed(0), plain_reach),
        no_spec_peak_beside_drafts=_peak(pricer, Setting.fixed(0), min(reach, plain_reach)),
        payoff=under,
        priced_up_to=horizon,
        graph_free_paying=graph_free.paying,
        stops_at_context=stops_at_context(pricer, setting, int(batches[0])),
        switch_acceptance=switch_acceptance(grid, setting),
    )


def best_draft(plan: Plan, at_batch: int | None = None) -> PlanRow | None:
    """Of a plan that drafts nothing: the draft that comes nearest to a gain, or would gain at one batch alone.

    `at_batch`: of the row of this batch.
    """
    batches = [row.batch for row in plan.rows if row.fits and at_batch in (None, row.batch)]
    if plan.pays or not batches or plan.setting.max_depth == 0:
        return None
    grid = plan.pricer.grid(batches, plan.setting.max_depth)
    fits = np.array([plan.pricer.largest_batch(depth) for depth in range(plan.setting.max_depth + 1)])
    possible = plan.setting.allowed(grid) & (grid.batches[:, np.newaxis] <= fits)
    speedup = np.where(possible, grid.speedup, 0.0)[:, 1:]
    place, depth = divmod(int(speedup.argmax()), plan.setting.max_depth)
    if speedup[place, depth] == 0.0:
        return None
    return plan_rows(plan.pricer, [batches[place]], Setting.fixed(depth + 1), min_gain=plan.min_gain)[0]


def _peak(pricer: Pricer, setting: Setting, largest: int) -> float:
    """The best goodput over batches 1..`largest`; goodput is smooth, so a few hundred of them are enough."""
    batches = np.unique(np.geomspace(1, max(min(largest, MAX_BATCH), 1), 200).round())
    return float(setting.goodput(pricer.grid(batches, setting.max_depth)).max())


def switch_acceptance(grid: Grid, setting: Setting) -> float | None:
    """At the grid's first batch: below this constant acceptance no allowed depth pays; None if none can."""
    depths = np.flatnonzero(setting.allowed(grid)[0, 1:]) + 1
    if depths.size == 0:
        return None
    even = break_even_acceptance(grid.full_round_seconds[0, depths] / grid.no_spec_seconds[0], depths)
    return None if np.isnan(even).all() else float(np.nanmin(even))
