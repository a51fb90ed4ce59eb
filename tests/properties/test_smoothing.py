"""Smoothed schedules: fewer turns, never more ranges, and a bounded loss at every batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import DepthTable, Schedule, batch_shares, make_schedule, schedule_of
from specmargin.decisions.setting import Setting
from specmargin.decisions.smoothing import MEAN_COST, TOLERANCES, smoothed, zigzags
from specmargin.step import BoolArray, FloatArray, IntArray
from specmargin.verbs.plan.drafter_plan import DEFAULT_BATCHES
from specmargin.verbs.plan.request_schema import PlanRequest

MIN_GAINS = st.sampled_from([0.0, 0.01, 0.02, 0.05])


@pytest.mark.parametrize(
    ("depths", "zigzag"),
    [
        ([4], False),
        ([7, 5, 4, 0], False),
        ([3, 5, 7], False),
        ([7, 5, 6, 8, 4, 0], False),
        ([4, 8, 6], False),
        ([4, 8, 6, 7], True),
        ([7, 5, 6, 4, 5], True),
        ([4, 8, 6, 5, 7, 5, 4, 6], True),
    ],
)
def test_a_fall_a_rise_and_a_fall_are_no_zigzag(depths: list[int], zigzag: bool) -> None:
    assert zigzags(schedule_of(np.array(depths), np.arange(1, len(depths) + 1))) == zigzag


@st.composite
def tables(draw: st.DrawFn, *, batches: int, depths: int) -> tuple[DepthTable, float]:
    """With their `min_gain`: a best depth that goes up and down, by gains that are worth more or less than that."""
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    run, min_gain = draw(st.integers(1, 1 + batches // 6)), draw(MIN_GAINS)
    best = np.repeat(random.integers(0, depths + 1, batches), run)[:batches, np.newaxis]
    slope = max(min_gain, 0.01) * draw(st.sampled_from([0.4, 0.7, 1.1]))
    noise = slope * draw(st.sampled_from([0.0, 0.2])) * random.random((batches, depths + 1))
    allowed = np.add.outer(np.arange(batches), np.arange(depths + 1)) <= draw(st.integers(batches, 2 * batches))
    allowed[:, 0] = True
    table = DepthTable(
        batches=np.arange(1, batches + 1),
        speedup_by_batch_depth=draw(st.sampled_from([1.01, 1.8]))
        - slope * np.abs(np.arange(depths + 1) - best)
        + noise,
        allowed_by_batch_depth=allowed,
        fits_by_depth=np.full(depths + 1, 1000),
    )
    return table, min_gain


def speedups(table: DepthTable, schedule: Schedule) -> FloatArray:
    rows = np.arange(table.batches.size)
    return np.asarray(table.speedup_by_batch_depth[rows, schedule.depths_at(table.batches)])


@settings(max_examples=200)
@given(tables(batches=40, depths=4), st.booleans(), st.sets(st.integers(1, 40), max_size=3))
def test_little_is_lost_at_any_batch(priced: tuple[DepthTable, float], padded: bool, asked: set[int]) -> None:
    table, min_gain = priced
    ends, batches = list(range(4, 41, 4)) if padded else None, sorted(asked)
    before = make_schedule(table, min_gain=min_gain, boundaries=ends)
    after = smoothed(before, table, batches, min_gain=min_gain, boundaries=ends)
    old, new = speedups(table, before), speedups(table, after)
    lost = 1.0 - new / old
    assert lost.max() <= TOLERANCES[-1] * min_gain + 1e-9
    assert all(lost[batch - 1] <= min_gain + 1e-9 for batch in batches)
    cost = [_lost(table, schedule.depths_at(table.batches)) for schedule in (before, after)]
    assert cost[1] - cost[0] < MEAN_COST
    assert not ((old >= 1.0) & (new < 1.0)).any()
    assert len(after.ranges) <= len(before.ranges)
    assert after.max_depth <= before.max_depth
    assert after == before or (zigzags(before) and not zigzags(after))
    assert smoothed(after, table, batches, min_gain=min_gain, boundaries=ends) == after
    if ends is not None:
        assert {entry.last for entry in after.ranges} <= set(ends)
    changed = after.depths_at(table.batches) != before.depths_at(table.batches)
    allowed = table.allowed_by_batch_depth[table.batches - 1, after.depths_at(table.batches)]
    assert allowed[changed].all()


#: By way and batch: every schedule of six batches and depths 0 to 3, and those that do not zigzag.
EVERY = list(itertools.product(range(4), repeat=6))
WAYS = np.array([way for way in EVERY if not zigzags(schedule_of(np.array(way), np.arange(1, 7)))])
STEPS = np.diff(WAYS, axis=1)


@settings(max_examples=200)
@given(st.none() | st.sampled_from(EVERY), tables(batches=6, depths=3), st.booleans())
def test_no_other_schedule_of_that_shape_has_fewer_ranges(
    depths: tuple[int, ...] | None, priced: tuple[DepthTable, float], pinned: bool
) -> None:
    """Every schedule is tried: for the best one of the table, and for any other."""
    table, min_gain = priced
    own = make_schedule(table, min_gain=min_gain)
    before = own if depths is None else schedule_of(np.array(depths), table.batches)
    if not zigzags(before):
        assert smoothed(before, table, [2], min_gain=min_gain) == before
        return
    first_depth = before.ranges[0].depth if pinned else None
    after = smoothed(before, table, [2], min_gain=min_gain, first_depth=first_depth)
    budget, lost = _lost(table, before.depths_at(table.batches)) + MEAN_COST, _lost(table, WAYS)
    for factor in TOLERANCES:
        tolerance = min_gain * np.where(table.batches == 2, 1.0, factor)
        good = np.flatnonzero(_replaces(table, before, tolerance) & (first_depth is None or WAYS[:, 0] == first_depth))
        if good.size == 0:
            continue
        ranges, rises = 1 + (STEPS[good] != 0).sum(axis=1), (STEPS[good] > 0).sum(axis=1)
        best = np.lexsort((lost[good], rises, ranges))[0]
        if ranges[best] <= len(before.ranges) and lost[good[best]] < budget:
            assert len(after.ranges) == ranges[best]
            assert _lost(table, after.depths_at(table.batches)) == pytest.approx(lost[good[best]])
            return
    assert after == before


def _replaces(table: DepthTable, before: Schedule, tolerance: FloatArray) -> BoolArray:
    """By way: whether it loses little at every batch."""
    old, each = before.depths_at(table.batches), np.arange(table.batches.size)
    relative, speedup = table.relative, table.speedup_by_batch_depth
    near = relative[each, WAYS] >= np.minimum(1.0 - tolerance, relative[each, old])
    gains = speedup[each, WAYS] >= np.minimum(1.0, speedup[each, old])
    allowed = table.allowed_by_batch_depth[each, WAYS] & (before.max_depth >= WAYS)
    return np.asarray(((near & gains & allowed) | (old == WAYS)).all(axis=1))


def _lost(table: DepthTable, depths: IntArray) -> FloatArray:
    relative = table.relative[np.arange(table.batches.size), depths]
    return np.asarray((batch_shares(table.batches) * np.clip(1.0 - relative, 0.0, 1.0)).sum(axis=-1))


@pytest.mark.parametrize(("model", "drafter", "fewer"), [("glm-4.7-flash", "mtp", 0), ("qwen3-14b", "eagle", 1)])
def test_schedules_of_real_plans_that_zigzag(model: str, drafter: str, fewer: int) -> None:
    """`fewer`: ranges at least. 5-8-6-7-6 becomes 5-7-8-7-6, which has as many."""
    priced = Pricer(scenario_of(PlanRequest(model=model, gpu="rtx-pro-6000", drafter=drafter))[1])
    table = Setting(max_depth=8, graph_limit=512).depth_table(priced, max_batch=512)
    before = make_schedule(table, min_gain=0.02)
    assert zigzags(before)
    after = smoothed(before, table, DEFAULT_BATCHES, min_gain=0.02)
    assert not zigzags(after)
    assert len(before.ranges) - len(after.ranges) >= fewer
    best = make_schedule(table, min_gain=0.0)
    assert (speedups(table, after) >= 0.96 * speedups(table, best)).all()
    rows = table.rows_of(DEFAULT_BATCHES)
    assert (speedups(table, after)[rows] >= 0.98 * speedups(table, best)[rows]).all()
