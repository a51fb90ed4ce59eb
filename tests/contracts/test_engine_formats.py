"""Written settings give the intended schedule when read by each engine's rules."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.decisions.schedule import DepthTable, make_schedule
from specmargin.errors import CatalogError
from specmargin.formats import ENGINES, find_engine
from specmargin.formats.base import ScheduleRequest
from specmargin.formats.sglang import graph_batch_sizes
from specmargin.modes import DRAFTERS, Parallel
from specmargin.modes import ENGINES as ENGINE_NAMES
from tests.engine_readers import READERS

BATCHES = 300


def _table(best: list[tuple[int, int]], deepest: int = 8, slope: float = 0.05) -> DepthTable:
    """Goodput that falls off by `slope` a step from the best depth; `best`: (up to batch, depth)."""
    relative = np.empty((BATCHES, deepest + 1))
    for batch in range(1, BATCHES + 1):
        depth = next(d for last, d in best if batch <= last)
        relative[batch - 1] = 1.0 - slope * np.abs(np.arange(deepest + 1) - depth)
    return DepthTable(
        batches=np.arange(1, BATCHES + 1),
        speedup_by_batch_depth=relative / relative[:, :1],
        allowed_by_batch_depth=np.ones(relative.shape, dtype=bool),
        fits_by_depth=np.full(deepest + 1, 1000),
    )


def _request(table: DepthTable, kind: str = "mtp", **changes: Any) -> ScheduleRequest:
    return ScheduleRequest(
        **{
            "table": table,
            "batches": (1, 4, 16, 64, 256),
            "drafter_kind": kind,
            "drafter_model": "",
            "overlapped": False,
            "parallel": Parallel.TP,
            "min_gain": 0.02,
            "hurdle_by_depth": (0.3,) * 8,
            **changes,
        }
    )


FALLING = [(8, 5), (32, 3), (100, 1), (BATCHES, 0)]
RISING = [(4, 1), (BATCHES, 6)]


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("best", [FALLING, RISING, [(BATCHES, 3)]], ids=["falling", "rising", "flat"])
def test_round_trip(engine: str, best: list[tuple[int, int]]) -> None:
    config = ENGINES[engine].write(_request(_table(best)))
    for batch in range(1, 2 * BATCHES):
        assert READERS[engine](config, batch) == config.schedule.depth_at(batch), f"{engine} at batch {batch}"


def test_vllm_says_exactly_the_plan() -> None:
    config = ENGINES["vllm"].write(_request(_table(FALLING)))
    assert [(r.first, r.last, r.depth) for r in config.schedule.ranges] == [
        (1, 8, 5),
        (9, 32, 3),
        (33, 100, 1),
        (101, BATCHES, 0),
    ]


@pytest.mark.slow
@given(
    depths=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, BATCHES - 1), min_size=6, max_size=6, unique=True),
    engine=st.sampled_from(sorted(ENGINES)),
    min_gain=st.sampled_from([0.0, 0.02, 0.12]),
)
def test_any_plan_survives_the_round_trip(depths: list[int], cuts: list[int], engine: str, min_gain: float) -> None:
    ends = [*sorted(cuts)[: len(depths) - 1], BATCHES]
    table = _table(list(zip(ends, depths, strict=True)))
    config = ENGINES[engine].write(_request(table, min_gain=min_gain))
    if not config.text:
        assert config.schedule.max_depth == 0
        return
    for batch in range(1, 2 * BATCHES):
        assert READERS[engine](config, batch) == config.schedule.depth_at(batch)


def test_sglang_ranges_change_only_between_graph_sizes() -> None:
    """A batch of 9 is padded to 10 and must read the slot of 10: the plan's cut at 9 moves to a size it has."""
    config = ENGINES["sglang"].write(_request(_table([(9, 5), (BATCHES, 1)])))
    ends = [entry.last for entry in config.schedule.ranges[:-1]]
    assert set(ends) <= set(graph_batch_sizes(BATCHES))


def test_trtllm_gives_up_little_when_the_plan_deepens_with_batch() -> None:
    """1 up to batch 4, then 6, cannot be written. 6 at batch 1 would fall below plain decoding there; 2 does not."""
    config = ENGINES["trtllm"].write(_request(_table(RISING)))
    assert [(r.first, r.last, r.depth) for r in config.schedule.ranges] == [
        (1, 1, 2),
        (2, 4, 1),
        (5, BATCHES, 2),
        (BATCHES + 1, 65_536, 0),
    ]
    assert any("deepest" in note for note in config.notes)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_one_depth_under_data_parallelism(engine: str) -> None:
    """vLLM switches its table off there, SGLang refuses, and in TensorRT-LLM each rank would look up its own batch."""
    config = ENGINES[engine].write(_request(_table(FALLING), parallel=Parallel.DP_EP))
    assert not any(word in config.text for word in ("per_batch_size", "adaptive", "draft_len_schedule"))
    assert len(config.schedule.ranges) == 1
    assert {READERS[engine](config, batch) for batch in (1, 64, 1000)} == {config.schedule.max_depth}


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_nothing_is_configured_where_nothing_pays(engine: str) -> None:
    config = ENGINES[engine].write(_request(_table([(BATCHES, 0)])))
    assert config.text == ""
    assert "does not pay" in config.notes[0]


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("kind", [kind for kind in DRAFTERS if kind not in ("ssd", "free")])
def test_every_drafter_can_be_written(engine: str, kind: str) -> None:
    config = ENGINES[engine].write(_request(_table(FALLING), kind=kind))
    assert READERS[engine](config, 1) == config.schedule.depth_at(1)
    needs_model = bool(DRAFTERS[kind].detail)
    assert ("<your " in config.text) is needs_model  # a blank to fill in, never a flag left out
    named = ENGINES[engine].write(_request(_table(FALLING), kind=kind, drafter_model="some/head"))
    assert "<your " not in named.text


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_what_no_engine_does_is_not_written(engine: str) -> None:
    for change in ({"overlapped": True}, {"drafter_kind": "free"}):
        config = ENGINES[engine].write(_request(_table(FALLING), **change))
        assert config.text == ""
        assert "no setting to write" in config.notes[0]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_drafter_without_a_setting_is_refused(engine: str) -> None:
    with pytest.raises(CatalogError, match=r"^no .* setting is known for --drafter suffix$"):
        ENGINES[engine].write(_request(_table(FALLING), kind="suffix"))


def test_sglang_needs_a_later_release_where_drafting_stops() -> None:
    assert ENGINES["sglang"].write(_request(_table(FALLING))).needs == "SGLang 0.5.14 or later"
    assert ENGINES["sglang"].write(_request(_table([(8, 3), (BATCHES, 1)]))).needs == "SGLang 0.5.13 or later"


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_one_depth_never_loses_if_some_depth_does_not(engine: str) -> None:
    """Depth 5 is the fastest on average and loses at batch 256; depth 1 loses nowhere."""
    table = _table([(64, 5), (BATCHES, 1)], slope=0.02)
    table.speedup_by_batch_depth[255, 2:] = 0.6
    config = ENGINES[engine].write(_request(table, parallel=Parallel.DP_EP, kind="ngram"))
    batches = [1, 4, 16, 64, 256]
    depths = [READERS[engine](config, batch) for batch in batches]
    assert all(table.speedup_by_batch_depth[b - 1, d] >= 1.0 for b, d in zip(batches, depths, strict=True))
    assert max(depths) > 0


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_setting_that_beats_plain_decoding_nowhere_is_not_written(engine: str) -> None:
    """Deeper than off, yet below an engine without speculation, because being configured costs time."""
    table = _table([(BATCHES, 3)])
    np.multiply(table.speedup_by_batch_depth, 0.8, out=table.speedup_by_batch_depth)
    config = ENGINES[engine].write(_request(table))
    assert config.text == ""
    assert config.schedule.max_depth == 0


def test_trtllm_prefers_a_schedule_that_never_loses_against_plain_decoding() -> None:
    """Deep at batch 1 would be 40% below plain decoding there: capping the rest is the better compromise."""
    table = _table(RISING, slope=0.08)
    table.relative[0] = [0.95, 1.0, 0.9, 0.8, 0.7, 0.65, 0.6, 0.55, 0.5]
    config = ENGINES["trtllm"].write(_request(table))
    for batch in (1, 4, 16, 64, 256):
        assert table.relative[batch - 1, config.schedule.depth_at(batch)] >= table.relative[batch - 1, 0]


def test_merging_keeps_within_the_gain() -> None:
    table = _table(FALLING, slope=0.03)
    for min_gain in (0.0, 0.05, 0.1, 0.3):
        schedule = make_schedule(table, min_gain=min_gain)
        for batch in range(1, BATCHES + 1):
            assert table.relative[batch - 1, schedule.depth_at(batch)] >= 1.0 - min_gain - 1e-12
    assert len(make_schedule(table, min_gain=0.3).ranges) < len(make_schedule(table, min_gain=0.0).ranges)


def test_every_engine_is_named_in_the_help_and_has_a_reader() -> None:
    assert tuple(ENGINES) == ENGINE_NAMES
    assert set(READERS) == set(ENGINES)


def test_engine_names() -> None:
    assert find_engine("TensorRT-LLM").name == "trtllm"
    with pytest.raises(CatalogError, match=re.escape("unknown engine 'vlm'; nearest: vllm")):
        find_engine("vlm")
