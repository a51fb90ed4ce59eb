"""A setting drafts what it was told, or the best of what the engine can run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import Range, Schedule
from specmargin.decisions.setting import Setting
from specmargin.errors import ScenarioError, ScheduleError
from specmargin.hardware.layout import Layout
from specmargin.limits import MAX_DEPTH
from specmargin.modes import Parallel
from specmargin.prices.model import EngineTime
from tests.scenarios import pricer, scenario

PRICED = [
    pricer("qwen3-30b-a3b", drafter="eagle", acceptance="0.9"),
    pricer("llama-3.1-8b", drafter="free", acceptance="0.99", engine_time=EngineTime(off_step_seconds=1e-4)),
    pricer("qwen3-30b-a3b", drafter="eagle", layout=Layout(gpus=2, parallel=Parallel.DP_EP)),
]


@st.composite
def schedules(draw: st.DrawFn, *, max_depth: int) -> Schedule:
    depths = draw(st.lists(st.integers(0, max_depth), min_size=1, max_size=4))
    sizes = draw(st.lists(st.integers(1, 40), min_size=len(depths), max_size=len(depths)))
    ends = np.cumsum(sizes).tolist()
    rows = zip([1, *(end + 1 for end in ends[:-1])], ends, depths, strict=True)
    return Schedule(ranges=tuple(Range(first=first, last=last, depth=depth) for first, last, depth in rows))


@st.composite
def any_settings(draw: st.DrawFn) -> Setting:
    max_depth = draw(st.integers(0, 6))
    return Setting(
        max_depth=max_depth,
        graph_limit=draw(st.none() | st.integers(1, 300)),
        schedule=draw(st.none() | schedules(max_depth=max_depth)),
    )


batch_lists = st.lists(st.integers(1, 200), min_size=1, max_size=5)


@settings(max_examples=80)
@given(st.sampled_from(PRICED), any_settings(), batch_lists, st.integers(0, 3))
def test_one_depth_for_each_batch_whoever_asks(priced: Pricer, setting: Setting, batches: list[int], more: int) -> None:
    """By grid, by batches and by one batch; a grid that is deeper than the setting changes nothing."""
    grid = priced.grid(batches, setting.max_depth + more)
    depths = setting.depths(grid)
    assert depths.tolist() == [int(setting.depths_at(priced, [batch])[0]) for batch in batches]
    assert depths.tolist() == setting.depths_at(priced, batches).tolist()
    assert 0 <= depths.min() <= depths.max() <= setting.held_depth(grid) <= setting.max_depth


@settings(max_examples=80)
@given(st.sampled_from(PRICED), any_settings(), batch_lists)
def test_a_best_depth_has_a_graph_and_no_allowed_depth_beats_it(
    priced: Pricer, setting: Setting, batches: list[int]
) -> None:
    grid, ranks = priced.grid(batches, setting.max_depth), priced.scenario.layout.sequence_ranks
    for i, (batch, best) in enumerate(zip(batches, setting.best_depths(grid), strict=True)):
        positions = -(-batch // ranks) * (np.arange(setting.max_depth + 1) + 1)
        can_run = [
            d for d, p in enumerate(positions) if d == 0 or setting.graph_limit is None or p <= setting.graph_limit
        ]
        assert best in can_run
        assert grid.goodput[i, best] == max(grid.goodput[i, can_run])
        assert np.flatnonzero(setting.allowed(grid)[i]).tolist() == can_run


@settings(max_examples=60)
@given(st.sampled_from(PRICED), any_settings(), batch_lists)
def test_goodput_is_that_of_its_depths_or_of_no_speculation(
    priced: Pricer, setting: Setting, batches: list[int]
) -> None:
    grid = priced.grid(batches, setting.max_depth)
    if setting.schedule is not None and setting.schedule.max_depth == 0:
        assert not setting.configured
        assert setting.goodput(grid).tolist() == grid.no_spec_goodput.tolist()
        assert setting.largest_batch(priced, 0) == priced.no_spec_largest_batch
    else:
        wanted = [grid.goodput[i, depth] for i, depth in enumerate(setting.depths_at(priced, batches))]
        assert setting.goodput(grid).tolist() == wanted


def test_a_setting_of_a_scenario_is_what_drafter_and_engine_can_run() -> None:
    block = scenario("qwen3.6-35b-a3b", drafter="dflash", engine_time=EngineTime(graph_limit=96))
    limit = block.drafter.max_depth
    assert limit is not None
    assert Setting.of(block, max_depth=64) == Setting(max_depth=limit, graph_limit=96)
    assert Setting.of(block, max_depth=2).without_graph_limit() == Setting(max_depth=2)


def test_settings_are_checked() -> None:
    for depth in (-1, MAX_DEPTH + 1):
        with pytest.raises(ScenarioError, match=r"depth must lie in 0\.\.64"):
            Setting(max_depth=depth)
    with pytest.raises(ScheduleError, match="drafts 5 tokens, more than 4"):
        Setting(max_depth=4).with_schedule(Schedule.fixed(5, last=8))
