"""Schedules: as few ranges as possible, and rows, ranges and memory that agree with the plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.decisions.plan import make_plan
from specmargin.decisions.schedule import DepthTable, Range, Schedule, make_schedule
from specmargin.decisions.setting import Setting
from specmargin.errors import ScheduleError
from specmargin.prices.model import EngineTime
from specmargin.sources import assumed
from specmargin.step import BoolArray, FloatArray
from tests.scenarios import pricer


def table_of(speedups: FloatArray, fits: list[int] | None = None) -> DepthTable:
    return DepthTable(
        batches=np.arange(1, len(speedups) + 1),
        speedup_by_batch_depth=speedups,
        allowed_by_batch_depth=np.ones(speedups.shape, dtype=bool),
        fits_by_depth=np.full(speedups.shape[1], 1000) if fits is None else np.array(fits),
    )


def test_a_schedule_of_a_real_plan() -> None:
    priced = pricer(drafter="mtp", memory_utilization=1.0)
    setting = Setting(max_depth=8, graph_limit=512)
    table = setting.depth_table(priced, max_batch=512)
    schedule = make_schedule(table, min_gain=0.02)
    grid = priced.grid(np.arange(1, 513), 8)
    best = grid.goodput[np.arange(512), setting.best_depths(grid)]
    for batch in range(1, 513):
        depth = schedule.depth_at(batch)
        assert depth == 0 or batch * (depth + 1) <= 512
        assert grid.goodput[batch - 1, depth] >= 0.98 * best[batch - 1] * (1 - 1e-12)
    assert schedule.depth_at(10_000) == schedule.ranges[-1].depth


def test_a_schedule_does_not_follow_noise() -> None:
    """The best depth by batch is 7, 6, 5, 7, 5, 4, 3; one percent apart, it is one range."""
    best = [7, 6, 5, 7, 5, 4, 3]
    speedups = np.array([[2.0 - 0.005 * abs(depth - top) for depth in range(9)] for top in best])
    assert len(make_schedule(table_of(speedups), min_gain=0.02).ranges) == 1
    exact = make_schedule(table_of(speedups), min_gain=0.0)
    assert [entry.depth for entry in exact.ranges] == best


def test_a_shallower_schedule_wins_where_more_sequences_fit() -> None:
    """Depth 5 is 1% faster than 4; with recurrent states it also halves the sequences that fit."""
    speedups = np.array([[1.0, 1.4, 1.6, 1.7, 1.98, 2.0]] * 4)
    assert make_schedule(table_of(speedups), min_gain=0.02).max_depth == 5
    assert make_schedule(table_of(speedups, [600, 300, 200, 150, 120, 100]), min_gain=0.02).max_depth == 4


@given(
    seed=st.integers(0, 1000),
    batches=st.integers(1, 40),
    depths=st.integers(1, 6),
    noise=st.floats(0.0, 0.2),
    min_gain=st.sampled_from([0.0, 0.02, 0.1]),
)
def test_schedules_have_the_fewest_ranges_and_rise_only_for_a_gain(
    seed: int, batches: int, depths: int, noise: float, min_gain: float
) -> None:
    table = table_of(1.5 + noise * np.random.default_rng(seed).random((batches, depths + 1)))
    schedule = make_schedule(table, min_gain=min_gain)
    good = table.relative >= 1.0 - min_gain
    assert good[np.arange(batches), schedule.depths_at(table.batches)].all()
    assert len(schedule.ranges) == _fewest_ranges(good)
    for before, after in itertools.pairwise(schedule.ranges):
        if after.depth > before.depth:
            assert not good[after.first - 1 : after.last, before.depth].all()


def _fewest_ranges(good: BoolArray) -> int:
    """Greedy is optimal: a range that reaches further never needs more ranges after it."""
    count, start = 0, 0
    while start < len(good):
        bad = ~np.vstack([good[start:], np.zeros((1, good.shape[1]), dtype=bool)])
        start += int(bad.argmax(axis=0).max())
        count += 1
    return count


def test_a_depth_that_the_format_prescribes_at_batch_1_is_kept() -> None:
    speedups = np.array([[1.0, 1.5, 1.2], [1.0, 1.5, 1.2], [1.0, 1.2, 1.5]])
    schedule = make_schedule(table_of(speedups), min_gain=0.02, first_depth=2)
    assert [schedule.depth_at(batch) for batch in (1, 2, 3)] == [2, 1, 2]


def test_rows_ranges_and_memory_are_those_of_the_schedule() -> None:
    priced = pricer(drafter="mtp", acceptance="0.9")
    schedule = Schedule(ranges=(Range(first=1, last=8, depth=3), Range(first=9, last=16, depth=0)))
    plan = make_plan(priced, [1, 8, 9, 100], Setting(max_depth=8, schedule=schedule))
    assert [row.depth for row in plan.rows] == [3, 3, 0, 0]
    assert plan.largest_batch == priced.largest_batch(3)
    assert plan.paying == ((1, 8),)
    for row in plan.rows:
        grid = priced.grid([row.batch], 8)
        assert row.goodput_tokens_per_second == pytest.approx(grid.goodput[0, row.depth])
        best = max(1.0, grid.goodput[0, 1:].max() / grid.no_spec_goodput[0])
        assert (row.better_depth is not None) == (row.speedup < 0.98 * best)
    assert plan.row_at(4).depth == 3
    assert [row.depth for row in plan.rows_at_context(2048.0)] == [3, 3, 0, 0]


def test_without_drafts_nothing_is_configured() -> None:
    """No flags, no off time, and all of the memory."""
    time = EngineTime(off_step_seconds=1e-4, source=assumed("test"))
    priced = pricer(drafter="mtp", engine_time=time)
    plan = make_plan(priced, [1, 8], Setting(max_depth=8, schedule=Schedule.fixed(0, last=8)))
    assert [(row.depth, row.speedup) for row in plan.rows] == [(0, 1.0), (0, 1.0)]
    assert (plan.paying, plan.loss) == ((), None)
    assert plan.largest_batch == priced.no_spec_largest_batch


def test_hurdles_are_probabilities_or_words() -> None:
    plan = make_plan(pricer(drafter="mtp", memory_utilization=1.0), [1, 64, 512], Setting(max_depth=8))
    for row in plan.rows:
        if row.hurdle is None:
            assert row.hurdle_note in ("never pays", "always pays")
        else:
            assert 0.0 < row.hurdle <= 1.0
            assert row.hurdle_note is None


@given(batch=st.integers(1, 256), alpha=st.floats(0.05, 0.95))
def test_break_even_as_a_length_is_the_same_point(batch: int, alpha: float) -> None:
    row = make_plan(pricer(drafter="mtp", acceptance=f"{alpha}"), [batch], Setting(max_depth=6)).rows[0]
    even, depth = row.break_even_acceptance, row.break_even_depth
    if even is None:
        assert row.break_even_accept_length is None
    else:
        assert row.break_even_accept_length == pytest.approx(sum(even**d for d in range(depth + 1)))


def test_schedules_are_checked() -> None:
    with pytest.raises(ScheduleError):
        Schedule(ranges=())
    with pytest.raises(ScheduleError):
        Schedule(ranges=(Range(first=2, last=3, depth=1),))
    with pytest.raises(ScheduleError, match="min-gain"):
        make_schedule(table_of(np.ones((3, 2))), min_gain=1.5)
