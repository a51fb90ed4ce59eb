"""The SGLang plug-in inside SGLang's own controller and loader: decisions, ranks, faults, files, metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmargin.compiler import entry
from specmargin.live.board import read_board
from specmargin.live.parts import parts_list
from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import PolicyFile, policy_text
from specmargin.live.sglang.names import KEY
from specmargin.live.sglang.rounds import start
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.decide import choose_depth, observe
from specmargin.policies.kernel.types import Expectation, Kernel
from specmargin.policies.tables import study_table
from specmargin.step import IntArray
from tests.sglang_engine import PARAMS, SIZES, Sglang, Traffic, rounds_of, sglang

DEPTH = 5
SLOTS = {"1": {"candidate_steps": [5]}, "16": {"candidate_steps": [3]}, "40": {"candidate_steps": [0]}}


@pytest.fixture(scope="module")
def policy() -> PolicyFile:
    return make_policy(
        table=study_table(by_pass=True, max_batch=64, max_depth=6),
        survival=0.75 ** np.arange(1.0, 7.0),
        schedule=[(1, 15, 5), (16, 39, 3), (40, 64, 0)],
        model="target",
        drafter="eagle",
        device="test",
        context=512.0,
        sources={"prices": "assumed: test"},
        plan_graphs=True,
    )


@pytest.fixture
def engine() -> Iterator[Sglang]:
    with sglang() as engine:
        engine.load_plugins()
        yield engine


def write(folder: Path, part: Any, slots: Any = SLOTS) -> Path:
    """The file of --speculative-adaptive-config."""
    path = folder / "adaptive.json"
    path.write_text(json.dumps(slots if part is None else {**slots, KEY: part}))
    return path


def adaptive(policy: PolicyFile, **changes: Any) -> dict[str, Any]:
    return {"mode": "adaptive", "policy": json.loads(policy_text(policy)), **changes}


# --- decisions ---


@entry
def play_compiled(
    kernel: Kernel, batches: IntArray, lengths: IntArray, lag: int, nothing: Expectation, depths: IntArray
) -> bool:
    """Decide and learn as the simulator's loop does, in compiled code; whether every outcome was valid."""
    valid = True
    for i in range(batches.size):
        depths[i] = choose_depth(kernel, batches[i])[0]
        if i >= lag:
            drafted = np.full(batches[i - lag], depths[i - lag])
            accepted = np.minimum(lengths[i - lag, : batches[i - lag]], drafted)
            valid &= observe(kernel, drafted, drafted, accepted, 0.01, nothing)
    return valid


def simulated(policy: PolicyFile, traffic: Traffic, steps: tuple[int, ...], lag: int) -> list[int]:
    """Depths of the functions that the simulator's loop calls, for the same rounds."""
    limits = ControllerSettings(candidates=steps, learn_times=False)
    controller = Controller(table=policy.table.table, prior_survival=np.array(policy.survival), settings=limits)
    lengths = np.zeros((len(traffic.lengths), 64), dtype=np.int64)
    for row, values in zip(lengths, traffic.lengths, strict=True):
        row[: len(values)] = values
    depths = np.zeros(len(traffic.lengths), dtype=np.int64)
    nothing = Expectation.nothing(policy.table.table.max_depth)
    assert play_compiled(controller.kernel(), traffic.batches, lengths, lag, nothing, depths)
    chosen: list[int] = depths.tolist()
    return chosen


@pytest.mark.parametrize("lag", [0, 1], ids=["in turn", "overlapped"])
def test_ten_thousand_rounds_are_decided_as_in_the_simulator(
    engine: Sglang, policy: PolicyFile, tmp_path: Path, lag: int
) -> None:
    traffic = Traffic(10_000)
    rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH, sizes=SIZES, lag=lag)
    (depths,) = traffic.play(rank)
    assert depths == simulated(policy, traffic, tuple(rank.controller.candidate_steps), lag)
    assert set(depths) >= {0, 3, 5}
    board = rounds_of(rank).driver.board
    assert rounds_of(rank).driver.guard.faults.total() == 0
    assert board["ignored_outcomes_total"] == 0
    assert board["steps_total"] == 10_000 - lag
    assert board["accepted_tokens_total"] == sum(
        sum(min(length, depth) for length in lengths)
        for lengths, depth in list(zip(traffic.lengths, depths, strict=True))[: 10_000 - lag]
    )


@pytest.mark.parametrize("release", parts_list("sglang").tested)
def test_every_tested_release_takes_the_decisions(release: str, policy: PolicyFile, tmp_path: Path) -> None:
    traffic = Traffic(1_000)
    with sglang(release=release) as engine:
        engine.load_plugins()
        assert import_module("sglang.version").__version__ == release
        rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH, sizes=SIZES, lag=1)
        (depths,) = traffic.play(rank)
    assert depths == simulated(policy, traffic, tuple(rank.controller.candidate_steps), 1)


def test_ranks_decide_alike_however_slow_one_of_them_is(
    engine: Sglang, policy: PolicyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, adaptive(policy))
    ranks = [engine.rank(file, DEPTH, sizes=SIZES, lag=1) for _ in range(2)]
    clock = iter(range(10**9))
    monkeypatch.setattr(rounds_of(ranks[1]).driver.guard, "clock", lambda: float(next(clock)))  # a second per call
    one, other = Traffic(2_000, seed=1).play(*ranks)
    assert one == other
    assert rounds_of(ranks[1]).decides
    assert rounds_of(ranks[1]).driver.guard.decision_seconds > 1_000


def test_it_starts_on_all_ranks_or_on_none(
    engine: Sglang, policy: PolicyFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, adaptive(policy))
    alike = rounds_of(engine.rank(file, DEPTH)).fingerprint
    other = rounds_of(engine.rank(write(tmp_path, adaptive(policy, candidates=[1])), DEPTH)).fingerprint
    engine.others = [alike]
    assert rounds_of(engine.rank(write(tmp_path, adaptive(policy)), DEPTH)).fingerprint == alike
    assert not caplog.records
    for differs in ("", other):  # one that could not start; one with another file
        engine.others = [alike, differs]
        assert rounds_of(engine.rank(file, DEPTH)) is None
    assert [record.getMessage() for record in caplog.records] == [
        "Specmargin: ranks differ in their CPU, their packages or their files, or one of them could not start. "
        "SGLang's own parameters decide."
    ] * 2


def test_it_follows_acceptance_where_sglang_would_keep_the_schedule(
    engine: Sglang, policy: PolicyFile, tmp_path: Path
) -> None:
    rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH)
    for share, expected in ((1, 5), (0, 0), (1, 5)):
        depths = [rank.round([DEPTH * share] * 32) for _ in range(1200)]
        assert np.mean(np.array(depths[1000:]) == expected) > 0.9


def test_observing_changes_no_depth_and_prepares_no_more(engine: Sglang, policy: PolicyFile, tmp_path: Path) -> None:
    """Not even where SGLang's own steps follow acceptance."""
    ladder = {"1": {"candidate_steps": [1, 3, 5]}, "16": {"candidate_steps": [0, 1, 3]}}
    observed = engine.rank(write(tmp_path, adaptive(policy, mode="observe"), ladder), DEPTH, sizes=SIZES, lag=1)
    plain = engine.rank(write(tmp_path, None, ladder), DEPTH, sizes=SIZES, lag=1)
    depths = Traffic(2_000).play(observed, plain)
    assert depths[0] == depths[1]
    assert set(depths[0]) == {0, 1, 3, 5}
    assert observed.worker == plain.worker
    assert rounds_of(plain) is None
    assert rounds_of(observed).driver.board["steps_total"] == 1_999


def test_a_schedule_is_followed_at_every_batch(engine: Sglang, tmp_path: Path) -> None:
    """SGLang's own slots pad a batch of 9 to 10 before they are looked up."""
    part = {"mode": "schedule", "schedule": [[1, 9, 5], [10, 30, 2], [31, 64, 9]]}
    rank = engine.rank(write(tmp_path, part), DEPTH, sizes=SIZES)
    assert [rank.round([0] * batch) for batch in (1, 9, 10, 30)] == [5, 5, 2, 2]
    assert rank.round([0] * 40) == 5  # as deep as SGLang's buffers are
    assert rank.worker.sizes_by_steps[2] == [size for size in SIZES if 10 <= size <= 30]


# --- what SGLang prepares ---


def test_candidates_are_those_of_the_file_and_of_the_policy(engine: Sglang, policy: PolicyFile, tmp_path: Path) -> None:
    rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH, sizes=SIZES)
    expected = {0, 3, 5} | {depth for depth in policy.graph_depths if depth <= DEPTH}
    assert rank.controller.candidate_steps == sorted(expected)
    few = engine.rank(write(tmp_path, adaptive(policy, candidates=[1])), DEPTH, sizes=SIZES)
    assert few.controller.candidate_steps == [0, 1, 3, 5]
    assert {few.round([DEPTH] * 4) for _ in range(100)} <= {0, 1}


def test_every_chosen_depth_has_a_graph_of_its_padded_batch(engine: Sglang, policy: PolicyFile, tmp_path: Path) -> None:
    rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH, sizes=SIZES)
    traffic = Traffic(3_000, seed=2)
    sizes = {DEPTH: SIZES, **rank.worker.sizes_by_steps}  # SGLang captures its first depth at every size
    for batch, depth in zip(traffic.batches.tolist(), traffic.play(rank)[0], strict=True):
        padded = next(size for size in SIZES if size >= batch)
        assert padded in (sizes[depth] or [])


def test_without_cuda_graphs_none_are_asked_for(engine: Sglang, policy: PolicyFile, tmp_path: Path) -> None:
    rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH, sizes=None)
    assert set(rank.worker.sizes_by_steps.values()) == {None}


def test_graphs_are_planned_up_to_the_deepest_plausible_depth(policy: PolicyFile) -> None:
    """Each graph takes memory, so that a depth that cannot be the best at a batch has none there."""
    deepest = np.array(policy.table.graph_depth_by_batch)
    scheduled = np.repeat([5, 3, 0], [16, 24, 25])
    assert (deepest[1:] >= scheduled[1:]).all()
    assert set(deepest) - {0} <= set(range(7))


# --- faults ---


def own_depths(engine: Sglang, folder: Path, traffic: Traffic) -> list[int]:
    (depths,) = traffic.play(engine.rank(write(folder, None), DEPTH, sizes=SIZES))
    return depths


def test_faults_hand_over_to_sglang(
    engine: Sglang,
    policy: PolicyFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    traffic = Traffic(50)
    expected = own_depths(engine, tmp_path, traffic)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    rank = engine.rank(write(tmp_path, adaptive(policy, faults_in_a_row=3)), DEPTH, sizes=SIZES)

    def broken(batch: int) -> int:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(rounds_of(rank).driver.policy, "draft", broken)
    (depths,) = traffic.play(rank)
    assert depths == expected
    assert not rounds_of(rank).decides
    warnings = [record.getMessage() for record in caplog.records if "Specmargin" in record.getMessage()]
    assert warnings == [
        "Specmargin fault (depth decision): ZeroDivisionError: broken. "
        "The engine continues; further faults are only counted.",
        "Specmargin is disabled after 3 faults in a row; the engine continues without it.",
    ]
    reading = read_board(tmp_path / "specmargin" / "engine-0.board")
    assert reading.values["enabled"] == 0.0
    assert reading.faults["depth decision"] == 3.0


@pytest.mark.parametrize("invalid", [-1, 2.5, True, "3", None, 4])
def test_a_depth_that_sglang_has_not_prepared_never_reaches_it(
    engine: Sglang, policy: PolicyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invalid: Any
) -> None:
    from specmargin.policies.policy import Decision  # noqa: PLC0415

    rank = engine.rank(write(tmp_path, adaptive(policy, candidates=[1])), DEPTH)
    monkeypatch.setattr(rounds_of(rank).driver.policy, "draft", lambda _: Decision(invalid))
    assert rank.round([0] * 4) == 5
    assert rounds_of(rank).driver.guard.faults["depth decision"] == 1


def test_outcomes_that_cannot_be_are_ignored(engine: Sglang, policy: PolicyFile, tmp_path: Path) -> None:
    rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH)
    rounds = rounds_of(rank)
    for accepted in (DEPTH + 2, -1):
        rank.decide(4)
        rank.controller.on_verify_complete([accepted] * 4, 4)
    rank.controller.on_verify_complete([1] * 7, 7)  # no such round
    assert rounds.driver.board["ignored_outcomes_total"] == 3
    rank.decide(3)  # its outcome never comes
    rank.round([1] * 4)
    assert rounds.driver.board["steps_total"] == 3
    assert rounds.driver.guard.faults.total() == 0
    rank.decide(2)
    rank.controller.on_verify_complete(["two", None], 2)
    assert rounds.driver.guard.faults["outcome"] == 1
    assert rounds.decides


EVENTS = st.one_of(
    st.integers(0, 80),  # decide for such a batch
    st.tuples(st.integers(0, 80), st.lists(st.integers(-2, 9), max_size=80)),  # an outcome, of this or no round
)


@pytest.fixture(scope="module")
def config(policy: PolicyFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("config"), adaptive(policy, faults_in_a_row=10**6))


@settings(deadline=None, max_examples=50)
@given(events=st.lists(EVENTS, max_size=60))
def test_no_order_of_events_raises_or_chooses_another_depth(config: Path, events: list[Any]) -> None:
    started = start(config, [0, 3, 5], engine="0", board=None, log=print, warn=print)
    for event in events:
        if isinstance(event, int):
            assert started.steps_for(event, lambda _: 3) in started.steps
        else:
            started.learn(event[1], event[0])
    learned = started.driver.policy
    assert learned is not None
    survival = learned.mean_survival()
    assert ((survival >= 0.0) & (survival <= 1.0)).all()
    assert started.driver.guard.faults.total() == 0


# --- files ---

BAD = {
    "text": ("yes", "must be a table of settings"),
    "no policy": ({"mode": "adaptive"}, "mode adaptive needs 'policy'"),
    "unknown mode": ({"mode": "fast"}, "mode must be"),
    "unknown setting": ({"mode": "observe", "speed": 3}, "speed is not a known field"),
    "missing file": ({"mode": "adaptive", "policy": "missing.policy.json"}, "missing.policy.json: cannot be read"),
    "not a policy": ({"mode": "adaptive", "policy": {"model": "m"}}, "drafter is missing"),
    "a capture": ({"mode": "observe", "capture": "bank"}, "capture is not available in SGLang"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_part_is_told_in_one_sentence_and_sglang_decides(
    engine: Sglang, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    part, complaint = BAD[name]
    traffic = Traffic(50)
    expected = own_depths(engine, tmp_path, traffic)
    rank = engine.rank(write(tmp_path, part), DEPTH, sizes=SIZES)
    (message,) = [record.getMessage() for record in caplog.records if "Specmargin" in record.getMessage()]
    assert complaint in message
    assert message.endswith(". SGLang's own parameters decide.")
    assert "\n" not in message
    assert "Error" not in message
    assert traffic.play(rank)[0] == expected
    assert rank.controller.candidate_steps == [0, 3, 5]
    assert read_board(tmp_path / "specmargin" / "engine-0.board").faults["configuration"] == 1.0


def test_what_sglang_refuses_it_still_refuses(engine: Sglang, tmp_path: Path, policy: PolicyFile) -> None:
    with pytest.raises(ValueError, match="candidate_steps"):
        engine.rank(write(tmp_path, adaptive(policy), {"1": {"candidate_steps": []}}), DEPTH)
    with pytest.raises(FileNotFoundError):
        engine.rank(tmp_path / "missing.json", DEPTH)


def test_without_the_key_sglang_is_as_it_was(engine: Sglang, tmp_path: Path) -> None:
    base = import_module(PARAMS).AdaptiveSpeculativeParams.__mro__[1]
    for file in (None, write(tmp_path, None, {**SLOTS, "1": {"candidate_steps": [1, 3, 5]}})):
        rank = engine.rank(file, 3, sizes=SIZES)
        plain = base(initial_steps=3, cfg_path=None if file is None else str(file))
        plain.set_cuda_graph_bs(SIZES)
        assert rank.controller.candidate_steps == plain.candidate_steps
        for batch, lengths in zip(Traffic(500).batches.tolist(), Traffic(500).lengths, strict=True):
            depth = plain.get_steps_for_batch(batch)
            assert rank.round(lengths) == depth
            plain.on_verify_complete([min(length, depth) for length in lengths], batch)


def test_the_policy_may_be_a_file_of_its_own(engine: Sglang, tmp_path: Path, policy: PolicyFile) -> None:
    named = tmp_path / "mine.policy.json"
    named.write_text(policy_text(policy))
    inside = engine.rank(write(tmp_path, adaptive(policy)), DEPTH)
    outside = engine.rank(write(tmp_path, {"mode": "adaptive", "policy": str(named)}), DEPTH)
    one, other = Traffic(300).play(inside, outside)
    assert one == other


def test_only_the_first_rank_shows_metrics(
    engine: Sglang, policy: PolicyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "metrics"))
    engine.tp_rank = 1
    engine.rank(write(tmp_path, adaptive(policy)), DEPTH)
    assert not (tmp_path / "metrics").exists()
    engine.tp_rank = 0
    rank = engine.rank(write(tmp_path, adaptive(policy)), DEPTH)
    rank.round([1] * 4)
    reading = read_board(tmp_path / "metrics" / "specmargin" / "engine-0.board")
    assert reading.values["steps_total"] == 1.0
    assert reading.values["mode"] == 2.0
