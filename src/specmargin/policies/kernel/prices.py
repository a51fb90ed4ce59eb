"""The price table, and the prices of a ragged verify step and of drafting: shared by policies, simulator and engines.

A verify step of B sequences with T positions takes `rest(B, T / B) + experts(M)`. M = Σ m(q_i) is the number of
effective positions: how many independent positions touch as many experts as the runs do. A longer run shares experts
with its own sequence, so it adds less than a new sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.compiler import compiled, entry
from specmargin.errors import ScenarioError
from specmargin.step import FloatArray, IntArray

AxisPoint = tuple[int, float]  # a context on the table's axis: the interval, and the fraction of it
FIRST_CONTEXT: AxisPoint = (0, 0.0)  # policies assume the same context for all sequences
_NOISE = 0.01  # relative noise of measured prices: within it no depth is called slower than a deeper one


class PriceTable(NamedTuple):
    """Seconds by batch, depth and context; batch and depth run from 0. Make one with `of`, which checks it."""

    rest_seconds: FloatArray  # (batch, depth, context): a verify step of equal runs without its routed experts
    draft_seconds: FloatArray  # (batch, depth, context): drafting that deep
    contexts: FloatArray  # tokens, rising; a single one where all sequences have the same context
    expert_seconds: FloatArray  # routed experts, over effective positions evenly spaced from 0
    expert_step: float
    effective_by_depth: FloatArray  # m(depth + 1)
    by_pass: bool  # drafting takes a pass per token; False: one block
    graph_depth_by_batch: IntArray  # the deepest depth whose verify step fits a CUDA graph

    @classmethod
    def of(
        cls,
        *,
        rest_seconds: FloatArray,
        draft_seconds: FloatArray,
        expert_seconds: FloatArray,
        effective_by_depth: FloatArray,
        expert_step: float = 1.0,
        contexts: FloatArray | None = None,
        by_pass: bool = True,
        graph_depth_by_batch: IntArray | None = None,
    ) -> PriceTable:
        """Checked and read-only. Two-dimensional seconds are for a single context; without `graph_depth_by_batch`
        every step fits a graph."""
        contexts = np.zeros(1) if contexts is None else contexts
        shape = (rest_seconds.shape[0], effective_by_depth.size, contexts.size)
        rest, draft = (_frozen(seconds.reshape(shape)) for seconds in (rest_seconds, draft_seconds))
        deepest = np.full(shape[0], shape[1] - 1) if graph_depth_by_batch is None else graph_depth_by_batch
        table = cls(
            rest_seconds=rest,
            draft_seconds=draft,
            contexts=_frozen(contexts),
            expert_seconds=_frozen(expert_seconds),
            expert_step=float(expert_step),
            effective_by_depth=_frozen(effective_by_depth),
            by_pass=bool(by_pass),
            graph_depth_by_batch=_frozen_depths(deepest, shape[1] - 1),
        )
        if table.graph_depth_by_batch.shape != shape[:1]:
            raise ScenarioError("a price table needs one graph depth per batch")
        if shape[0] < 2 or shape[1] < 2 or expert_seconds.size < 2:
            raise ScenarioError("a price table needs at least one sequence and one draft token")
        return table

    def with_graphs(self, positions: int | None) -> PriceTable:
        """For an engine whose largest CUDA graph has so many positions; None: no step is kept inside a graph."""
        batch = np.maximum(np.arange(self.max_batch + 1), 1)
        deepest = np.full(batch.size, self.max_depth) if positions is None else positions // batch - 1
        return self._replace(graph_depth_by_batch=_frozen_depths(deepest, self.max_depth))

    @property
    def max_batch(self) -> int:
        return int(self.rest_seconds.shape[0]) - 1

    @property
    def max_depth(self) -> int:
        return int(self.effective_by_depth.size) - 1

    def equal_seconds(self, batch: int) -> FloatArray:
        """Verify steps in which every sequence has depth 0, 1, …"""
        seconds = np.empty(self.max_depth + 1)
        _fill_equal(self, batch, seconds)
        return seconds

    def round_seconds(self, batch: int) -> FloatArray:
        """The same with the drafting before them."""
        return np.asarray(self.equal_seconds(batch) + self.draft_seconds[batch, :, 0])

    def verify_seconds(self, depths: IntArray) -> float:
        """One verify step of sequences with these depths."""
        rest, experts = _verify_parts(self, depths)
        return rest + experts

    def drafting_seconds(self, drafted: IntArray) -> float:
        """Drafting to these depths before it."""
        return _drafting_seconds(self, drafted)

    @property
    def sensible_depths(self) -> tuple[int, ...]:
        """All but the depths that take longer than a deeper one at most batch sizes, as kernels prefer some sizes."""
        seconds = np.stack([self.round_seconds(batch) for batch in range(1, self.max_batch + 1)])
        cheapest_deeper = np.minimum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1]
        dominated = (seconds > cheapest_deeper * (1.0 + _NOISE)).mean(axis=0) > 0.5
        return tuple(int(depth) for depth in range(self.max_depth + 1) if not dominated[depth])


def _frozen(values: npt.ArrayLike) -> FloatArray:
    """Contiguous, finite and read-only: one type for all tables, so that nothing is compiled twice."""
    array = np.array(values, dtype=np.float64, order="C")
    if not np.isfinite(array).all():
        raise ScenarioError("a price table must be made of finite numbers")
    array.flags.writeable = False
    return array


def _frozen_depths(depths: IntArray, deepest: int) -> IntArray:
    array = np.clip(np.array(depths, dtype=np.int64, order="C"), 0, deepest)
    array.flags.writeable = False
    return array


# --- compiled ---


@compiled
def locate(axis: FloatArray, value: float) -> AxisPoint:
    """The interval of a rising axis that holds a value, and the fraction of it; extrapolates the last interval."""
    if axis.size == 1:
        return 0, 0.0
    low, high = 0, axis.size - 2
    while low < high:
        middle = (low + high + 1) // 2
        if axis[middle] <= value:
            low = middle
        else:
            high = middle - 1
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


@compiled
def at_context(seconds: FloatArray, batch: int, depth: int, context: AxisPoint) -> float:
    low, fraction = context
    if fraction == 0.0:
        return float(seconds[batch, depth, low])
    return float((1.0 - fraction) * seconds[batch, depth, low] + fraction * seconds[batch, depth, low + 1])


@compiled
def expert_seconds(table: PriceTable, effective: float) -> float:
    index = effective / table.expert_step
    low = min(int(index), table.expert_seconds.size - 2)
    below = table.expert_seconds[low]
    return float(below + (index - low) * (table.expert_seconds[low + 1] - below))


@compiled
def ragged_parts(
    table: PriceTable, batch: int, mean_depth: float, effective: float, context: AxisPoint
) -> tuple[float, float]:
    """The price of any verify step: seconds of all but routed experts, and of routed experts.

    Interpolated between two depths, unless a CUDA graph holds only the lower one: then at the price of the higher one.
    """
    low = min(int(mean_depth), table.effective_by_depth.size - 2)
    rest = at_context(table.rest_seconds, batch, low, context)
    over = mean_depth - low
    if (over > 0.0) & (low == table.graph_depth_by_batch[batch]):
        over = 1.0
    rest += over * (at_context(table.rest_seconds, batch, low + 1, context) - rest)
    return rest, expert_seconds(table, effective)


@compiled
def equal_parts(table: PriceTable, batch: int, depth: int) -> tuple[float, float]:
    return ragged_parts(table, batch, float(depth), batch * table.effective_by_depth[depth], FIRST_CONTEXT)


@compiled
def verify_parts(table: PriceTable, depths: IntArray, batch: int) -> tuple[float, float]:
    """`ragged_parts` of a step that verifies the first `batch` of these depths."""
    total, effective, deepest = 0, 0.0, table.effective_by_depth.size - 1
    for i in range(batch):
        depth = min(depths[i], deepest)
        total += depth
        effective += table.effective_by_depth[depth]
    return ragged_parts(table, batch, total / batch, effective, FIRST_CONTEXT)


@compiled
def _pass_seconds(table: PriceTable, sequences: int, number: int) -> float:
    """Seconds of draft pass `number`, from 1. A block drafter has only the first; later passes take no time."""
    return float(table.draft_seconds[sequences, number, 0] - table.draft_seconds[sequences, number - 1, 0])


@compiled
def drafting_seconds(table: PriceTable, drafted: IntArray, count: int, context: AxisPoint) -> float:
    """Drafting the first `count` of these depths: pass j runs for the sequences that are still drafting.

    Passes of the same sequences are priced together, so that equal depths have exactly the price in the table.
    """
    seconds, passes, deepest = 0.0, 0, table.effective_by_depth.size - 1
    while True:
        active, until = 0, deepest
        for i in range(count):  # without a branch on the length, which would be mispredicted
            goes_on = drafted[i] > passes
            active += goes_on
            until = min(until, drafted[i] if goes_on else deepest)
        if active == 0 or passes >= deepest:
            return seconds
        before = at_context(table.draft_seconds, active, passes, context)
        seconds += at_context(table.draft_seconds, active, until, context) - before
        passes = until


@compiled
def pass_line(table: PriceTable, batch: int, number: int) -> tuple[float, float]:
    """A draft pass around this batch as a straight line: its fixed seconds, and seconds per sequence."""
    seconds = _pass_seconds(table, batch, number)
    upper = 2 if batch == 1 and table.draft_seconds.shape[0] > 2 else batch
    half = max(upper // 2, min(upper, 1))
    rise = _pass_seconds(table, upper, number) - _pass_seconds(table, half, number)
    slope = max(rise / max(upper - half, 1), 0.0)
    if batch == 1:
        slope = min(slope, seconds)
    return max(seconds - slope * batch, 0.0), slope


@entry
def _fill_equal(table: PriceTable, batch: int, seconds: FloatArray) -> None:
    for depth in range(seconds.size):
        rest, experts = equal_parts(table, batch, depth)
        seconds[depth] = rest + experts


@entry
def _verify_parts(table: PriceTable, depths: IntArray) -> tuple[float, float]:
    return verify_parts(table, depths, depths.size)


@entry
def _drafting_seconds(table: PriceTable, drafted: IntArray) -> float:
    return drafting_seconds(table, drafted, drafted.size, FIRST_CONTEXT)
