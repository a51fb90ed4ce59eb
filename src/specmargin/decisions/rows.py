"""The rows of a plan: what a setting gives at each batch size, its hurdle, its break-even, and a better depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.acceptance.survival import break_even_acceptance
from specmargin.decisions.grid import Grid
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.prices.model import ComponentPrice, Resource, StepPrice
from specmargin.prices.work import Component
from specmargin.step import FloatArray, Step

NEVER_PAYS, ALWAYS_PAYS = "never pays", "always pays"
_NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One batch size under the setting; batch and speeds are those of all GPUs together."""

    batch: int
    depth: int  # that the setting gives at this batch; 0: drafting off, or speculation not configured
    speedup: float
    goodput_tokens_per_second: float
    no_spec_tokens_per_second: float
    tpot_seconds: float
    no_spec_tpot_seconds: float
    better_depth: int | None  # faster than the setting by more than the plan's `min_gain`; 0: without speculation
    better_speedup: float | None
    hurdle: float | None  # survival at which one more draft token pays; None: see `hurdle_note`
    hurdle_note: str | None  # "never pays" (not even a certain token) or "always pays" (it costs nothing)
    hurdle_by_component: dict[Component, float]
    break_even_acceptance: float | None
    break_even_accept_length: float | None  # tokens per round with the bonus token, as engines report it
    break_even_depth: int
    distinct_experts: float | None  # of one layer, read by the busiest GPU
    bound_component: Component
    bound_resource: Resource
    communication_share: float
    gpu_hours_per_million_tokens: float
    fits: bool


def plan_rows(pricer: Pricer, batches: Sequence[int], setting: Setting, *, min_gain: float) -> tuple[PlanRow, ...]:
    """One row per batch."""
    grid = pricer.grid(batches, setting.max_depth)
    depths = setting.depths(grid)
    largest = setting.largest_batch(pricer, setting.held_depth(grid))
    step = Step.uniform(batch=grid.batches, depth=depths, context=pricer.scenario.context)
    now, more = pricer.marginal(step)
    marginal = marginal_by_component(now, more, positions=pricer.scenario.layout.sequence_ranks)
    distinct = pricer.distinct_experts(step)
    communication = np.broadcast_to(now.share(Component.COLLECTIVES), grid.batches.shape)
    goodput = setting.goodput(grid)
    better = _better_depths(grid, setting, min_gain)
    even_depth = np.minimum(np.maximum(depths, 1), grid.depths.size - 1)
    ratio = grid.full_round_seconds[np.arange(depths.size), even_depth] / grid.no_spec_seconds
    even = break_even_acceptance(ratio, even_depth)

    def row(i: int) -> PlanRow:
        depth, speed, no_spec = int(depths[i]), float(goodput[i]), float(grid.no_spec_goodput[i])
        added = [(line, float(seconds[i])) for line, seconds in marginal]
        bound, _ = max(added, key=lambda pair: pair[1])
        hurdle, note = probability(speed * rounded_seconds(sum(seconds for _, seconds in added)))
        better_depth, better_speedup = better[i]
        return PlanRow(
            batch=int(grid.batches[i]),
            depth=depth,
            speedup=speed / no_spec,
            goodput_tokens_per_second=speed,
            no_spec_tokens_per_second=no_spec,
            tpot_seconds=float(grid.batches[i]) / speed,
            no_spec_tpot_seconds=float(grid.no_spec_seconds[i]),
            better_depth=better_depth,
            better_speedup=better_speedup,
            hurdle=hurdle,
            hurdle_note=note,
            hurdle_by_component={line.component: speed * seconds for line, seconds in added},
            break_even_acceptance=None if np.isnan(even[i]) else float(even[i]),
            break_even_accept_length=None if np.isnan(even[i]) else max(float(ratio[i]), 1.0),
            break_even_depth=int(even_depth[i]),
            distinct_experts=None if distinct is None else float(distinct[i]),
            bound_component=bound.component,
            bound_resource=bound.resource(i),
            communication_share=float(communication[i]),
            gpu_hours_per_million_tokens=pricer.scenario.layout.gpus * 1e6 / speed / 3600.0,
            fits=int(grid.batches[i]) <= largest,
        )

    return tuple(row(i) for i in range(grid.batches.size))


def _better_depths(grid: Grid, setting: Setting, min_gain: float) -> list[tuple[int, float] | tuple[None, None]]:
    """At each batch, the best allowed depth and its speed-up, if faster than the setting by more than `min_gain`.

    Depth 0 stands for an engine without speculation.
    """
    speedup = np.where(setting.allowed(grid), grid.speedup, 0.0)
    speedup[:, 0] = 1.0
    best, goodput = speedup.argmax(axis=1), setting.goodput(grid)
    found: list[tuple[int, float] | tuple[None, None]] = []
    for i, depth in enumerate(best.tolist()):
        gain = float(speedup[i, depth] * grid.no_spec_goodput[i] / goodput[i]) * (1.0 - min_gain)
        found.append((depth, float(speedup[i, depth])) if gain > 1.0 + 1e-9 else (None, None))
    return found


def probability(hurdle: float) -> tuple[float | None, str | None]:
    """The hurdle if it is a probability, else what it means."""
    if hurdle > 1.0:
        return None, NEVER_PAYS
    if hurdle <= 0.0:
        return None, ALWAYS_PAYS
    return hurdle, None


def marginal_by_component(
    now: StepPrice, more: StepPrice, *, positions: int
) -> list[tuple[ComponentPrice, FloatArray]]:
    """Seconds that one more position adds, by line of the ledger; `more` has that many `positions` more."""
    later = {line.component: line.seconds for line in more.components}
    return [(line, np.asarray(later.get(line.component, 0.0) - line.seconds) / positions) for line in now.components]


def rounded_seconds(seconds: float) -> float:
    """Zero below a nanosecond, which is rounding, and below zero, which is a table between two of its points.

    More work never takes less time.
    """
    return 0.0 if seconds < _NANOSECOND else seconds
