"""Measuring: which steps are measured, in which engines, and which releases are supported."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from specmargin.errors import InputError
from specmargin.measure.points import (
    Kind,
    Surface,
    drafter_run,
    forced_runs,
    other_scheduling,
    plain_run,
    scheduling_of,
    scheduling_runs,
)
from specmargin.measure.records import Records
from specmargin.measure.steps import Order, measure_steps
from specmargin.measure.vllm.forced import WANTED, ForcedDrafts
from specmargin.measure.vllm.versions import check_version
from tests.unit.measured_rows import SURFACE


def test_full_graphs_need_an_engine_per_depth_and_piecewise_graphs_one_for_all() -> None:
    full = forced_runs(SURFACE, full_graphs=True, routes=True)
    assert [engine_run.name for engine_run in full] == ["forced-1", "forced-3", "forced-7", "pieces"]
    assert [engine_run.drafts for engine_run in full] == [1, 3, 7, 7]
    assert [engine_run.counts for engine_run in full] == [False, False, False, True]
    (one,) = forced_runs(SURFACE, full_graphs=False, routes=True)
    assert {point.depth for point in one.points} == {0, 1, 3, 7}
    assert {point.kind for point in one.points} == {Kind.OFF, Kind.RANDOM, Kind.REPEATED}


def test_a_dense_model_needs_no_repeated_drafts_and_no_counting_run() -> None:
    runs = forced_runs(SURFACE, full_graphs=True, routes=False)
    assert [engine_run.name for engine_run in runs] == ["forced-1", "forced-3", "forced-7"]
    assert all(point.kind is not Kind.REPEATED for engine_run in runs for point in engine_run.points)


def test_other_runners_and_schedulings_get_engines_of_their_own() -> None:
    surface = Surface(batches=(1, 2, 4, 8, 16, 32, 64, 128), depths=(1, 3, 7), contexts=(512, 4096))
    runs = scheduling_runs(surface, {"method": "mtp"})
    assert [each.name for each in runs] == [
        f"{kind}-{name}" for name in ("second-async", "async", "second") for kind in ("none", "drafter")
    ]
    for each in runs:
        scheduling = scheduling_of(each.name)
        assert each.engine_args["async_scheduling"] is ("async" in scheduling)
        assert each.environment == {"VLLM_USE_V2_MODEL_RUNNER": "1" if "second" in scheduling else "0"}
        assert {point.batch for point in each.points} >= {1, 64}
        assert {point.context for point in each.points} == {512}
        assert {point.depth for point in each.points} == ({1, 7} if each.kind == "drafter" else {0})
    assert [each.name for each in scheduling_runs(surface, None)] == ["none-second-async", "none-async", "none-second"]
    assert scheduling_of("forced-3") == scheduling_of("none") == scheduling_of("drafter") == ""


@pytest.mark.parametrize(
    ("wanted", "is_async", "runner", "complaint"),
    [
        ("", False, "vllm.v1.worker.gpu_model_runner", ""),
        ("second-async", True, "vllm.v1.worker.gpu.model_runner", ""),
        ("second-async", False, "vllm.v1.worker.gpu.model_runner", "vLLM turned async scheduling off"),
        ("second", True, "vllm.v1.worker.gpu.model_runner", "vLLM turned async scheduling on"),
        ("second-async", True, "vllm.v1.worker.gpu_model_runner", "with vllm.v1.worker.gpu_model_runner"),
        ("async", True, "vllm.v1.worker.gpu.model_runner", "with vllm.v1.worker.gpu.model_runner"),
    ],
)
def test_steps_of_another_scheduling_are_not_taken_for_the_wanted_one(
    wanted: str, is_async: bool, runner: str, complaint: str
) -> None:
    problem = other_scheduling(wanted, is_async=is_async, runner=runner)
    assert complaint in problem
    assert bool(problem) is bool(complaint)


@pytest.mark.parametrize(("gpu", "engines"), [("a GPU", 9), ("", 3)])
def test_schedulings_are_measured_where_vllm_has_them(
    gpu: str, engines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU vLLM has one model runner and no async scheduling. The environment of a run overrides the user's."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "user")
    program = (
        "import json, os, sys; job = json.load(open(sys.argv[1])); out = open(job['out'], 'a');"
        f"engine = {{'record': 'engine', 'run': job['name'], 'graph_mode': 'none', 'gpu': {gpu!r},"
        " 'runner': os.environ['VLLM_USE_V2_MODEL_RUNNER'], 'async': job['engine_args']['async_scheduling']};"
        "out.write(json.dumps(engine) + chr(10))"
    )
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", program])
    records = Records(path=tmp_path / "rows.jsonl")
    surface = Surface(batches=(1, 8), depths=(1,), contexts=(64,))
    order = Order(model="m", surface=surface, engine_args={}, speculative={"method": "mtp"})
    log = tmp_path / "log"
    measure_steps(order, records, deadline=time.time() + 60.0, log=log, watch=lambda *_: None)
    started = {name: (engine["runner"], engine["async"]) for name, engine in records.engines().items()}
    assert len(started) == engines
    assert started["none"] == started["forced"] == started["drafter"] == ("user", False)
    if gpu:
        assert started["drafter-second-async"] == started["none-second-async"] == ("1", True)
        assert started["drafter-async"] == ("0", True)
        assert started["none-second"] == ("1", False)


def test_longer_contexts_get_a_few_batches_and_no_speculation_is_always_measured() -> None:
    assert [pair for pair in SURFACE.batches_and_contexts() if pair[1] == 4096] == [(1, 4096), (16, 4096)]
    assert {point.kind for point in plain_run(SURFACE).points} == {Kind.NONE}
    drafter = drafter_run(SURFACE, {"method": "eagle3"})
    assert drafter.engine_args["speculative_config"] == {"method": "eagle3", "num_speculative_tokens": 7}


@pytest.mark.parametrize("changes", [{"batches": ()}, {"batches": (0,)}, {"depths": (0,)}, {"contexts": ()}])
def test_impossible_grids_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Surface(**({"batches": (1,), "depths": (1,), "contexts": (512,)} | changes))


class _Config:
    class model_config:  # noqa: N801
        @staticmethod
        def get_vocab_size() -> int:
            return 1000


def test_forced_drafts_are_random_or_repeated_tokens_of_the_wanted_depth() -> None:
    drafts = ForcedDrafts(_Config())
    WANTED.depth, WANTED.repeated = 5, True
    assert drafts.propose([[3, 9], []]) == [[9] * 5, []]
    WANTED.repeated = False
    (tokens,) = drafts.propose([[9]])
    assert len(tokens) == 5
    assert len(set(tokens)) > 1
    WANTED.depth = 0
    assert drafts.propose([[9]]) == [[]]


@pytest.mark.parametrize("version", ["0.26.0", "0.28.1", "0.32.0", "0.32.0+cpu"])
def test_supported_versions(version: str) -> None:
    assert check_version(version) == ""


@pytest.mark.parametrize("version", ["0.25.9", "0.33.0", "1.0.0", "dev"])
def test_unsupported_versions_are_refused_by_name(version: str) -> None:
    assert version in check_version(version)
