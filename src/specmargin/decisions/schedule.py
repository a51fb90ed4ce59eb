"""A schedule: a depth for every batch size, in as few ranges as a given loss of goodput allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.decisions.grid import Grid
from specmargin.errors import ScheduleError
from specmargin.step import ArrayLike, BoolArray, FloatArray, IntArray

ONE_BY_ONE = 512  # every batch up to here is priced; above, about 64 per factor of e, where goodput is smooth


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Batch sizes first..last, both included, and their depth."""

    first: int
    last: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    ranges: tuple[Range, ...]

    def __post_init__(self) -> None:
        expected = 1
        for entry in self.ranges:
            if entry.first != expected or entry.last < entry.first or entry.depth < 0:
                raise ScheduleError(f"ranges must follow each other from batch 1, got {self.ranges}")
            expected = entry.last + 1
        if not self.ranges:
            raise ScheduleError("a schedule needs at least one range")

    @classmethod
    def fixed(cls, depth: int, *, last: int) -> Schedule:
        """One depth for all batches."""
        return cls(ranges=(Range(first=1, last=last, depth=depth),))

    @property
    def max_depth(self) -> int:
        return max(entry.depth for entry in self.ranges)

    @property
    def stops(self) -> bool:
        """Whether drafting is off at some batches."""
        return any(entry.depth == 0 for entry in self.ranges)

    def depth_at(self, batch: int) -> int:
        """Batches beyond the last range keep its depth."""
        return int(self.depths_at([batch])[0])

    def depths_at(self, batches: ArrayLike) -> IntArray:
        ends, depths = (np.array([getattr(entry, name) for entry in self.ranges]) for name in ("last", "depth"))
        return np.asarray(depths[np.minimum(np.searchsorted(ends, batches), len(ends) - 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTable:
    """The speed-up of every depth over plain decoding, by batch; depth 0 is speculation configured but off."""

    batches: IntArray  # ascending; each stands for all batches after the one before
    speedup_by_batch_depth: FloatArray
    allowed_by_batch_depth: BoolArray  # where the engine has a CUDA graph for the step
    fits_by_depth: IntArray  # sequences that fit with memory for drafts of that depth

    @classmethod
    def of(cls, grid: Grid, allowed_by_batch_depth: BoolArray, fits_by_depth: IntArray) -> DepthTable:
        return cls(
            batches=grid.batches.astype(np.int64),
            speedup_by_batch_depth=grid.speedup,
            allowed_by_batch_depth=allowed_by_batch_depth,
            fits_by_depth=fits_by_depth,
        )

    @property
    def largest(self) -> int:
        return int(self.batches[-1])

    @property
    def relative(self) -> FloatArray:
        """Goodput over that of the best allowed depth; -inf where a depth is not allowed."""
        allowed = np.where(self.allowed_by_batch_depth, self.speedup_by_batch_depth, -np.inf)
        return np.asarray(allowed / allowed.max(axis=1, keepdims=True))

    def at(self, batches: Sequence[int]) -> DepthTable:
        """The rows of these batches."""
        rows = self.rows_of(batches)
        return replace(
            self,
            batches=self.batches[rows],
            speedup_by_batch_depth=self.speedup_by_batch_depth[rows],
            allowed_by_batch_depth=self.allowed_by_batch_depth[rows],
        )

    def rows_of(self, batches: Sequence[int]) -> IntArray:
        """The row that stands for each of these batches."""
        return np.asarray(np.minimum(np.searchsorted(self.batches, batches), self.batches.size - 1))

    def limited(self, max_depth: int) -> DepthTable:
        """Without the depths above `max_depth`."""
        return replace(
            self,
            speedup_by_batch_depth=self.speedup_by_batch_depth[:, : max_depth + 1],
            allowed_by_batch_depth=self.allowed_by_batch_depth[:, : max_depth + 1],
            fits_by_depth=self.fits_by_depth[: max_depth + 1],
        )


def spread(largest: int) -> IntArray:
    """Batch sizes to price up to `largest`: every small one, then some at growing distances."""
    small = np.arange(1, min(largest, ONE_BY_ONE) + 1)
    if largest <= ONE_BY_ONE:
        return small
    count = int(np.ceil(64 * np.log(largest / ONE_BY_ONE)))
    larger = np.geomspace(ONE_BY_ONE + 1, largest, count + 1).round().astype(np.int64)
    return np.concatenate([small, np.unique(larger)])


def make_schedule(
    table: DepthTable, *, min_gain: float, boundaries: Sequence[int] | None = None, first_depth: int | None = None
) -> Schedule:
    """Among schedules within `min_gain` of the best allowed depth at every batch, the one with the fewest ranges; of
    those, the one that goes deeper at a larger batch least often; of those, the fastest, unless a shallower one lets
    more sequences fit by more than `min_gain`.

    It goes deeper at a larger batch only where staying would cost more than `min_gain`: otherwise the two ranges would
    be one. `boundaries` are the batch sizes after which a range may end (an engine that pads batches to its graph sizes
    sees no others). `first_depth` is the depth at batch 1, where the engine's format prescribes it.
    """
    if not 0.0 <= min_gain < 1.0:
        raise ScheduleError(f"--min-gain must lie in 0..1, got {min_gain:g}")
    rows = last_rows(table, boundaries)
    loss = _loss_by_segment(table, rows, min_gain)
    if first_depth is not None:
        loss[0] = np.where(np.arange(loss.shape[1]) == first_depth, 0.0, np.inf)
    return schedule_of(_roomiest(loss, table.fits_by_depth, min_gain), table.batches[rows])


def schedule_of(depths: IntArray, ends: IntArray) -> Schedule:
    """From the depth of each segment, and its last batch."""
    turns = [*np.flatnonzero(np.diff(depths)), depths.size - 1]
    starts = [1, *(int(ends[turn]) + 1 for turn in turns[:-1])]
    return Schedule(
        ranges=tuple(
            Range(first=first, last=int(ends[turn]), depth=int(depths[turn]))
            for first, turn in zip(starts, turns, strict=True)
        )
    )


def last_rows(table: DepthTable, boundaries: Sequence[int] | None) -> IntArray:
    """The last row of each segment: batches that share a depth in any case."""
    if boundaries is None:
        return np.arange(table.batches.size)
    return np.union1d(np.flatnonzero(np.isin(table.batches, boundaries)), [table.batches.size - 1])


def batch_shares(batches: IntArray) -> FloatArray:
    """What each batch counts for, in shares of 1. Batches count by their logarithm: 1 to 2 as much as 100 to 200."""
    weight = np.diff(batches, prepend=0) / batches
    return np.asarray(weight / weight.sum())


def _loss_by_segment(table: DepthTable, rows: IntArray, min_gain: float) -> FloatArray:
    """Share of goodput lost at each depth, summing to less than 1; inf where it exceeds `min_gain` at some batch.

    Where no depth is good for a whole segment, the best on average is taken.
    """
    relative = table.relative
    starts = np.concatenate([[0], rows[:-1] + 1])
    good = np.logical_and.reduceat(relative >= 1.0 - min_gain, starts, axis=0)
    lost = batch_shares(table.batches)[:, np.newaxis] * np.minimum(1.0 - relative, 1e9)
    loss = np.add.reduceat(lost, starts, axis=0)
    good |= ~good.any(axis=1, keepdims=True) & (loss == loss.min(axis=1, keepdims=True))
    return np.asarray(np.where(good, loss, np.inf))


def _roomiest(loss: FloatArray, fits_by_depth: IntArray, min_gain: float) -> IntArray:
    """The depth of each segment; shallower where that changes nothing but the loss, and more sequences fit."""
    depths, changes = _cheapest(loss)
    for deepest in range(int(depths.max()) - 1, 0, -1):
        if fits_by_depth[deepest] * (1.0 - min_gain) <= fits_by_depth[depths.max()]:
            continue
        shallower, their_changes = _cheapest(loss[:, : deepest + 1])
        if their_changes > changes:
            break
        depths = shallower
    return depths


def _cheapest(loss: FloatArray) -> tuple[IntArray, float]:
    """The depth of each segment: fewest changes, then fewest changes to a deeper draft, then the smallest loss.

    The second result orders schedules by their changes alone.
    """
    segments, depths = loss.shape
    deeper = np.triu(np.ones((depths, depths)), 1)  # from row to column
    change = (1.0 - np.eye(depths)) * 2.0 * segments + deeper  # a loss is below 1, and there are fewer rises than that
    path, total = cheapest_path(loss, change)
    return path, float(np.floor(total))


def cheapest_path(loss: FloatArray, change: FloatArray) -> tuple[IntArray, float]:
    """By dynamic programming over segments: the states of the smallest sum of losses and changes, and that sum.

    `loss` is by segment and state; `change` by the state before and the state after.
    """
    segments, states = loss.shape
    before = np.zeros((segments, states), dtype=np.int64)
    total = loss[0]
    for segment in range(1, segments):
        reached = total[:, np.newaxis] + change
        before[segment] = reached.argmin(axis=0)
        total = reached.min(axis=0) + loss[segment]
    path = [int(total.argmin())]
    for segment in range(segments - 1, 0, -1):
        path.append(int(before[segment, path[-1]]))
    return np.array(path[::-1]), float(total.min())
