"""Schedules that zigzag, smoothed: as the batch grows, at most one fall, one rise and one fall of the depth.

Prices have steps where a kernel's tiles fill, so the best depth goes up and down with the batch by differences that are
within the error of the prices. Mixtures really have a dip, near batch 8: hence a fall, a rise and a fall.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specmargin.decisions.schedule import DepthTable, Schedule, batch_shares, cheapest_path, last_rows, schedule_of
from specmargin.step import BoolArray, FloatArray, IntArray

MEAN_COST = 0.01  # of goodput, over the logarithm of the batch, at which a schedule is left as it is
TOLERANCES = (1.0, 1.25, 1.5, 1.75, 2.0)  # loss against the best depth at any batch, in units of `min_gain`
_DIRECTIONS = np.array([-1, 1, -1])


def smoothed(
    schedule: Schedule,
    table: DepthTable,
    batches: Sequence[int],
    *,
    min_gain: float,
    boundaries: Sequence[int] | None = None,
    first_depth: int | None = None,
) -> Schedule:
    """A schedule that zigzags, with the fewest ranges of those that do not; as it is, where that costs too much.

    The smoothed schedule has no more ranges, drafts no deeper, and gains wherever it did. At `batches`, the plan's own,
    it stays within `min_gain` of the best depth; elsewhere within the first of `TOLERANCES` that has such a schedule.
    """
    if not zigzags(schedule):
        return schedule
    before, rows = schedule.depths_at(table.batches), last_rows(table, boundaries)
    starts = np.concatenate([[0], rows[:-1] + 1])
    lost = batch_shares(table.batches)[:, np.newaxis] * np.clip(1.0 - table.relative, 0.0, 1.0)
    budget = float(lost[np.arange(before.size), before].sum()) + MEAN_COST
    lost_by_segment = np.add.reduceat(lost[:, : schedule.max_depth + 1], starts, axis=0)
    for factor in TOLERANCES:
        good = np.logical_and.reduceat(_good(table, before, batches, min_gain, factor), starts, axis=0)
        if first_depth is not None:
            good[0] = np.arange(good.shape[1]) == first_depth
        depths = _shaped(np.where(good, lost_by_segment, np.inf))
        if depths is None:
            continue
        found = schedule_of(depths, table.batches[rows])
        fewer = len(found.ranges) <= len(schedule.ranges)
        if fewer and lost_by_segment[np.arange(depths.size), depths].sum() < budget:
            return found
    return schedule


def zigzags(schedule: Schedule) -> bool:
    """Whether its depth does more than fall, rise and fall."""
    steps = np.sign(np.diff([entry.depth for entry in schedule.ranges]))
    runs = steps[np.diff(steps, prepend=0) != 0]
    return bool(runs.size + (runs[:1] > 0).sum() > _DIRECTIONS.size)


def _good(table: DepthTable, before: IntArray, batches: Sequence[int], min_gain: float, factor: float) -> BoolArray:
    """By batch and depth: whether the depth may replace the one `before`."""
    each, deepest = np.arange(before.size), int(before.max())
    tolerance = np.full(before.size, min_gain * factor)
    tolerance[table.rows_of(batches)] = min_gain
    relative, speedup = table.relative[:, : deepest + 1], table.speedup_by_batch_depth[:, : deepest + 1]
    near = relative >= np.minimum(1.0 - tolerance, relative[each, before])[:, np.newaxis]
    gains = speedup >= np.minimum(1.0, speedup[each, before])[:, np.newaxis]
    good = np.asarray(near & gains & table.allowed_by_batch_depth[:, : deepest + 1])
    good[each, before] = True
    return good


def _shaped(loss: FloatArray) -> IntArray | None:
    """The depth of each segment: fewest ranges, then fewest rises, then the smallest loss; None if there is no way.

    A state is a depth and the number of turns so far; in the first and the third phase the depth may fall, in the
    second it may rise.
    """
    segments, depths = loss.shape
    phase, depth = np.divmod(np.arange(_DIRECTIONS.size * depths), depths)
    step, turn = (np.subtract.outer(of, of).T for of in (depth, phase))  # from row to column
    moves = (np.sign(step) == _DIRECTIONS[phase]) & ((turn == 0) | (turn == 1))
    change = np.where(moves, 2.0 * segments + (step > 0), np.inf)
    np.fill_diagonal(change, 0.0)
    by_state = np.tile(loss, _DIRECTIONS.size)
    by_state[0, depths:] = np.inf
    path, total = cheapest_path(by_state, change)
    return depth[path] if np.isfinite(total) else None
