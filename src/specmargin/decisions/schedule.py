"""A schedule: a depth for every batch size, in as few ranges as a given loss of goodput allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.decisions.grid import Grid, allowed_depths
from specmargin.decisions.pricer import Pricer
from specmargin.errors import ScheduleError
from specmargin.step import BoolArray, FloatArray, IntArray


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

    @property
    def max_depth(self) -> int:
        return max(entry.depth for entry in self.ranges)

    def depth_at(self, batch: int) -> int:
        """Batches beyond the last range keep its depth."""
        for entry in self.ranges:
            if batch <= entry.last:
                return entry.depth
        return self.ranges[-1].depth


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTable:
    """Goodput relative to the best, for every batch 1..n and depth; -inf where a depth is not allowed."""

    relative: FloatArray

    @classmethod
    def of(cls, grid: Grid, graph_limit: int | None) -> DepthTable:
        goodput = np.where(allowed_depths(grid, graph_limit), grid.goodput, -np.inf)
        return cls(relative=goodput / goodput.max(axis=1, keepdims=True))

    @property
    def batches(self) -> int:
        return int(self.relative.shape[0])

    def limited(self, max_depth: int) -> DepthTable:
        """The same table without the depths above `max_depth`, relative to the same best."""
        return DepthTable(relative=self.relative[:, : max_depth + 1])


def depth_table(pricer: Pricer, *, max_batch: int, max_depth: int, graph_limit: int | None) -> DepthTable:
    return DepthTable.of(pricer.grid(np.arange(1, max_batch + 1), max_depth), graph_limit)


def make_schedule(table: DepthTable, *, min_gain: float, boundaries: Sequence[int] | None = None) -> Schedule:
    """The fewest ranges whose depth is, at every batch, within `min_gain` of the best allowed depth.

    `boundaries` are the batch sizes after which a range may end (an engine that pads batches to its graph
    sizes sees no others). Greedy is optimal here: a range that reaches further never needs more ranges after it.
    """
    if not 0.0 <= min_gain < 1.0:
        raise ScheduleError(f"--min-gain must lie in 0..1, got {min_gain:g}")
    relative = table.relative / table.relative.max(axis=1, keepdims=True)
    ends = _ends(range(1, table.batches) if boundaries is None else boundaries, table.batches)
    good_by_end = _good_by_segment(relative >= 1.0 - min_gain, ends)
    worth = _segment_means(relative, ends)
    ranges: list[Range] = []
    start, first = 0, 1
    while start < ends.size:
        reach = _reach(good_by_end, start)
        furthest = int(reach.max())
        if furthest == 0:  # no depth is good over a whole segment of padded batches: take the best on average
            furthest, depth = 1, int(worth[start].argmax())
        else:
            means = worth[start : start + furthest].mean(axis=0)
            depth = int(np.where(reach == furthest, means, -np.inf).argmax())
        last = int(ends[start + furthest - 1])
        ranges.append(Range(first=first, last=last, depth=depth))
        start, first = start + furthest, last + 1
    return Schedule(ranges=_joined(ranges))


def _ends(boundaries: Sequence[int], batches: int) -> IntArray:
    return np.asarray([*(b for b in boundaries if b < batches), batches], dtype=np.int64)


def _good_by_segment(good: BoolArray, ends: IntArray) -> BoolArray:
    return np.asarray(np.logical_and.reduceat(good, _starts(ends), axis=0))


def _segment_means(relative: FloatArray, ends: IntArray) -> FloatArray:
    finite = np.where(np.isfinite(relative), relative, -1e9)
    return np.asarray(np.add.reduceat(finite, _starts(ends), axis=0) / np.diff(ends, prepend=0)[:, np.newaxis])


def _starts(ends: IntArray) -> IntArray:
    return np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])


def _reach(good: BoolArray, start: int) -> IntArray:
    """How many segments from `start` on each depth stays good."""
    bad = ~good[start:]
    return np.asarray(np.where(bad.any(axis=0), bad.argmax(axis=0), bad.shape[0]))


def _joined(ranges: list[Range]) -> tuple[Range, ...]:
    """Neighbours with the same depth are one range."""
    joined: list[Range] = []
    for entry in ranges:
        if joined and joined[-1].depth == entry.depth:
            joined[-1] = Range(first=joined[-1].first, last=entry.last, depth=entry.depth)
        else:
            joined.append(entry)
    return tuple(joined)
