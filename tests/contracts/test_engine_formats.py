"""Written settings give the intended schedule when read by each engine's rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.decisions.schedule import DepthTable, make_schedule
from specmargin.errors import CatalogError
from specmargin.formats import ENGINES, find_engine
from specmargin.formats.base import EngineConfig, ScheduleRequest, find_release
from specmargin.formats.sglang import graph_batch_sizes
from specmargin.hardware.layout import Layout
from specmargin.modes import DRAFTERS, Parallel
from specmargin.modes import ENGINES as ENGINE_NAMES
from specmargin.releases import parse_release, release
from tests.engine_readers import BY_RELEASE, READERS, trtllm_depth
from tests.sglang_source import load

BATCHES = 300
Reader = Callable[[EngineConfig, int], int]


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
            "layout": Layout(),
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


@pytest.mark.parametrize(("engine", "name", "reader"), BY_RELEASE)
@pytest.mark.parametrize("kind", ["mtp", "eagle", "dflash", "model", "ngram"])
@pytest.mark.parametrize("best", [FALLING, RISING], ids=["falling", "rising"])
def test_every_release_reads_what_is_written_for_it(
    engine: str, name: str, reader: Reader, kind: str, best: list[tuple[int, int]]
) -> None:
    form = ENGINES[engine]
    config = form.write(_request(_table(best), kind=kind, release=find_release(form, name)))
    assert name in config.needs
    for batch in (*range(1, 12), *range(28, 36), *range(96, 104), *range(BATCHES - 2, BATCHES + 4), 2 * BATCHES):
        assert reader(config, batch) == config.schedule.depth_at(batch), f"{engine} {name} at batch {batch}"


@pytest.mark.parametrize("name", ["0.5.13", "0.5.14", "0.5.16", "0.5.23"])
@pytest.mark.parametrize("best", [FALLING, RISING], ids=["falling", "rising"])
def test_sglang_itself_reads_its_file(tmp_path: Path, name: str, best: list[tuple[int, int]]) -> None:
    form, file = ENGINES["sglang"], tmp_path / "adaptive.json"
    config = form.write(_request(_table(best), release=find_release(form, name)))
    assert config.file_text is not None
    file.write_text(config.file_text)
    steps = config.schedule.max_depth
    engine = load("srt/speculative/adaptive_spec_params.py", version=name).AdaptiveSpeculativeParams(steps, str(file))
    engine.set_cuda_graph_bs(graph_batch_sizes(512))
    assert steps in engine.candidate_steps  # the server refuses to start otherwise
    for batch in range(1, 2 * BATCHES):
        assert engine.get_steps_for_batch(batch) == config.schedule.depth_at(batch)


def test_trtllm_never_stops_a_drafter_that_keeps_a_cache() -> None:
    """At depth 0 its one-model drafters no longer write their cache (PR 16888); look-up drafts have none."""
    mtp, ngram = (ENGINES["trtllm"].write(_request(_table(FALLING), kind=kind)) for kind in ("mtp", "ngram"))
    assert min(trtllm_depth(mtp, batch) for batch in range(1, 60_000, 997)) == 1
    assert any("depth 0" in limit for limit in mtp.limits)
    assert trtllm_depth(ngram, 2 * BATCHES) == 0
    assert not ngram.limits


@pytest.mark.parametrize(
    ("engine", "name", "words"),
    [
        ("vllm", "soon", "--engine-version 'soon' is not a release of vLLM such as 0.32"),
        ("vllm", "0.23", "--engine-version 0.23: settings are written for vLLM 0.24 or later"),
        ("sglang", "0.5", "--engine-version 0.5: settings are written for SGLang 0.5.13 or later"),
        ("trtllm", "1.1.0", "--engine-version 1.1.0: settings are written for TensorRT-LLM 1.2.0 or later"),
        ("llamacpp", "b5000", "--engine-version: llama.cpp has no numbered releases; leave it out"),
    ],
)
def test_unknown_releases_get_one_sentence(engine: str, name: str, words: str) -> None:
    with pytest.raises(CatalogError, match=f"^{re.escape(words)}"):
        find_release(ENGINES[engine], name)


@pytest.mark.parametrize(("engine", "name"), [("vllm", "0.24"), ("sglang", "0.5.15"), ("trtllm", "1.3.0rc19")])
def test_a_release_without_dspark_is_refused(engine: str, name: str) -> None:
    form = ENGINES[engine]
    with pytest.raises(CatalogError, match=r"has no (dspark|DSpark) drafts: .* is the first release with it"):
        form.write(_request(_table(FALLING), kind="dspark", release=find_release(form, name)))


def test_a_release_that_was_not_read_is_said() -> None:
    form = ENGINES["vllm"]
    config = form.write(_request(_table(FALLING), release=find_release(form, "v0.99.0")))
    assert config.needs == "vLLM v0.99.0, as read in 0.32"


@given(st.lists(st.tuples(*[st.integers(0, 40)] * 3, st.none() | st.integers(0, 40)), min_size=2, max_size=2))
def test_releases_are_ordered_as_numbers_and_candidates_come_first(
    parts: list[tuple[int, int, int, int | None]],
) -> None:
    made = [release(f"{a}.{b}.{c}" + ("" if rc is None else f"rc{rc}")) for a, b, c, rc in parts]
    keys = [(a, b, c, 1000 if rc is None else rc) for a, b, c, rc in parts]
    assert (made[0] < made[1]) == (keys[0] < keys[1])
    assert (made[0] == made[1]) == (keys[0] == keys[1])
    assert parse_release(f"{made[0]}.post1") == made[0]


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
        (5, 65_536, 2),  # beyond the last key it would not draft
    ]
    assert any("deepest" in limit for limit in config.limits)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_one_depth_under_data_parallelism(engine: str) -> None:
    """vLLM switches its table off there, SGLang refuses, and in TensorRT-LLM each rank would look up its own batch."""
    config = ENGINES[engine].write(_request(_table(FALLING), layout=Layout(gpus=8, parallel=Parallel.DP_EP)))
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
    if ENGINES[engine].cannot_draft(kind, False):
        return  # says so instead: tests/unit/test_mlx.py
    config = ENGINES[engine].write(_request(_table(FALLING), kind=kind))
    assert READERS[engine](config, 1) == config.schedule.depth_at(1)
    needs_model = bool(DRAFTERS[kind].detail) or engine == "mlx"  # MTP heads are files of their own there
    assert ("<your " in config.text) is needs_model  # a blank to fill in, never a flag left out
    named = ENGINES[engine].write(_request(_table(FALLING), kind=kind, drafter_model="some/head"))
    assert "<your " not in named.text


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_what_no_engine_does_is_not_written(engine: str) -> None:
    for change in ({"unsupported": "it cannot"}, {"drafter_kind": "free"}):
        config = ENGINES[engine].write(_request(_table(FALLING), **change))
        assert config.text == ""
        assert config.unsupported and "nothing to configure yet" in config.notes[0]


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
    kind = "model" if engine == "mlx" else "ngram"
    config = ENGINES[engine].write(_request(table, layout=Layout(gpus=8, parallel=Parallel.DP_EP), kind=kind))
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
