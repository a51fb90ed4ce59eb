"""The driver: for any policy and any signals, it returns None or depths that the engine can use."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmargin.live.board import METRICS
from specmargin.live.driver import Driver, _Planned
from specmargin.live.policy_schema import schedule_of
from specmargin.live.settings_schema import Mode
from specmargin.policies.controller import Controller
from specmargin.policies.kernel import decide
from specmargin.policies.kernel.gains import GateGains
from specmargin.policies.kernel.times import Times
from specmargin.policies.kernel.types import Expectation
from specmargin.policies.policy import Decision, FixedDepth, Outcome
from tests.unit.live import DEPTH, bare, built, done, table

numbers = st.integers(-3, 9) | st.floats() | st.booleans() | st.sampled_from([10**30, np.int64(2), np.uint8(3), np.nan])
arrays = st.builds(
    lambda values, kind, deep: np.array([values] if deep else values, dtype=kind),
    st.lists(st.integers(0, 6), max_size=6),
    st.sampled_from([np.int64, np.int32, np.float64, np.bool_, np.uint8, object]),
    st.booleans(),
)
nonsense: st.SearchStrategy[Any] = (
    numbers | st.none() | st.text(max_size=3) | st.lists(numbers, max_size=6) | arrays | st.just({}) | st.just(object())
)
faults = st.sampled_from([ValueError("no"), KeyError("k"), RuntimeError(), MemoryError(), StopIteration(), OSError(28)])
answers = st.tuples(st.just("returns"), nonsense) | st.tuples(st.just("raises"), faults)
limit_arguments = st.none() | st.fixed_dictionaries({"specmargin_depth": st.integers(0, 5) | nonsense})
confidences = st.one_of(
    st.none(),
    nonsense,
    st.lists(st.lists(st.floats(0.0, 1.0) | st.sampled_from([math.nan, 2.0, -1.0]), min_size=DEPTH, max_size=DEPTH)),
    st.integers(1, 5).map(lambda rows: np.full((rows, DEPTH), 0.7, dtype=np.float32)),
)


class Broken(Controller):
    """Returns or raises whatever the test draws."""

    data: st.DataObject

    def _answer(self) -> Any:
        kind, value = self.data.draw(answers)
        if kind == "raises":
            raise value
        return value

    def draft(self, batch: int) -> Decision:
        gated = self.data.draw(st.booleans())
        return Decision(int(batch > 2) + 2, gated) if self.data.draw(st.booleans()) else self._nonsense()

    def _nonsense(self) -> Any:
        """Something that is not a decision, or a decision with invalid depths."""
        answer = self._answer()
        return Decision(answer, True, answer) if self.data.draw(st.booleans()) else answer

    def observe(self, outcome: Outcome) -> bool:  # noqa: ARG002
        return bool(self._answer())


def broken(data: st.DataObject) -> Broken:
    policy = Broken(table=table(), prior_survival=np.full(DEPTH, 0.5))
    policy.data = data
    return policy


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_answers_are_none_or_depths_whatever_the_policy_does(data: st.DataObject) -> None:
    classes = {"chat": schedule_of([(1, 8, 1)])} if data.draw(st.booleans()) else {}
    driver = bare(broken(data), device_gate=data.draw(st.booleans()), classes=classes)
    names = [f"request {i}" for i in range(data.draw(st.integers(1, 5)))]
    for name in names:
        arguments = data.draw(limit_arguments) or {}
        driver.add(name, arguments | ({"specmargin_class": "chat"} if data.draw(st.booleans()) else {}))
    for _ in range(data.draw(st.integers(1, 4))):
        limits = [driver._requests[name].limit for name in names]
        driver.drafts(names, data.draw(confidences))
        held = [data.draw(st.integers(0, DEPTH)) for _ in names]
        depths = driver.limits(names, held)
        if depths is not None:
            assert len(depths) == len(names)
            assert all(type(depth) is int for depth in depths)
            assert all(0 <= depth <= min(pair) for depth, *pair in zip(depths, held, limits, strict=True))
        depth = driver.draft_depth(names)
        assert depth is None or (type(depth) is int and 0 <= depth <= min(DEPTH, max(limits)))
        verified = depths if depths is not None else held
        seconds = data.draw(st.sampled_from([0.01, math.nan, 0.0]))
        driver.done(done(names, verified, [depth // 2 for depth in verified], seconds=seconds), depth or 0)
    kinds = {"verify decision", "depth decision", "outcome", "request"}
    assert set(driver.guard.faults) <= kinds


@given(st.data())
def test_observing_changes_nothing(data: st.DataObject) -> None:
    policy: Any = data.draw(st.sampled_from(["broken", "controller", "none"]))
    policies = {"broken": broken(data), "controller": Controller(table=table(), prior_survival=np.full(DEPTH, 0.7))}
    driver = bare(policies.get(policy), Mode.OBSERVE, device_gate=True)
    for _ in range(3):
        driver.add("a", {"specmargin_depth": 0})
        driver.drafts(["a"], data.draw(confidences))
        assert driver.limits(["a"], [DEPTH]) is None
        assert driver.draft_depth(["a"]) is None
        driver.done(done(["a"], [DEPTH], [1]), DEPTH)


@pytest.mark.parametrize(
    ("depth", "answer"), [(2, 2), (np.int64(2), 2), (np.uint8(3), 3), (2.0, None), (True, None), (np.int64(-1), None)]
)
def test_a_depth_is_an_integer_of_python_or_numpy(depth: Any, answer: int | None) -> None:
    driver = bare(FixedDepth(depth=depth))
    driver.add("a", None)
    chosen = driver.draft_depth(["a"])
    assert chosen == answer
    assert chosen is None or type(chosen) is int
    assert driver.guard.faults == ({} if answer is not None else {"depth decision": 1})


def test_observing_counts_what_it_would_have_done() -> None:
    driver = bare(FixedDepth(depth=2), Mode.OBSERVE)
    driver.add("a", None)
    for _ in range(3):
        assert driver.draft_depth(["a"]) is None
        driver.done(done(["a"], [DEPTH], [1]), DEPTH)
    assert driver.board.steps_by_depth()[2] == 3
    assert driver.board["draft_tokens_total"] == 3 * DEPTH  # what the engine did


# --- requests ---


def test_opting_out_and_limits() -> None:
    driver = bare(FixedDepth(depth=3))
    driver.add("out", {"specmargin_depth": 0})
    driver.add("one", {"specmargin_depth": 1})
    driver.add("free", None)
    assert driver.limits_requests
    assert driver.limits(["out", "one", "free"], [3, 3, 3]) == [0, 1, 3]
    assert driver.draft_depth(["out", "one", "free"]) == 3
    assert driver.draft_depth(["out", "one"]) == 1
    assert driver.draft_depth(["out"]) == 0
    assert driver.limits(["free"], [3]) == [3]  # nothing to shorten
    assert driver.limits(["unknown"], [2]) == [2]
    assert driver.draft_depth(["unknown"]) == 3


def test_depths_stay_within_the_engines() -> None:
    assert bare(FixedDepth(depth=30)).draft_depth(["a"]) == DEPTH


def test_classes_have_their_own_schedules() -> None:
    classes = {"chat": schedule_of([(1, 2, 2), (3, 8, 0)]), "code": schedule_of([(1, 8, 4)])}
    driver = bare(schedule_of([(1, 8, 1)]), Mode.SCHEDULE, classes=classes)
    for name, group in {"a": "chat", "b": "code", "c": "prose"}.items():
        driver.add(name, {"specmargin_class": group})
    driver.add("d", {"specmargin_class": "code", "specmargin_depth": 3})
    assert driver.draft_depth(["a"]) == 2
    assert driver.draft_depth(["a", "c"]) == 2
    assert driver.draft_depth(["c"]) == 1
    assert driver.draft_depth(["a", "b", "c"]) == 4
    assert driver.limits(["a", "b", "c", "d"], [4, 4, 4, 4]) == [0, 4, 1, 3]


def test_finished_requests_are_forgotten_after_their_last_round() -> None:
    driver = bare(FixedDepth(depth=2))
    driver.add("a", {"specmargin_depth": 1})
    driver.drop("a")
    assert driver.limits(["a"], [2]) == [1]  # its outcome is still to come
    driver.draft_depth(["a"])
    driver.done(done(["a"], [1], [1]), 2)
    assert driver._requests == {}
    assert driver._finished == []


def test_finished_requests_leave_nothing_behind() -> None:
    driver = bare(FixedDepth(depth=2))
    for i in range(500):
        driver.add(f"r{i}", None)
        driver.draft_depth([f"r{i}"])
        driver.drop(f"r{i}")
        driver.done(done([f"r{i}"], [2], [1]), 2)
        driver.drop("aborted before its first step")
    driver.done(done([], [], []), 0)
    assert (len(driver._requests), len(driver._finished), len(driver._planned)) == (0, 0, 0)


# --- signals and outcomes ---


def test_faults_are_counted_and_the_engine_continues() -> None:
    class Raises(FixedDepth):
        def draft(self, batch: int) -> Decision:  # noqa: ARG002
            raise ValueError("broken")

    driver = bare(Raises(depth=2))
    driver.guard.faults_in_a_row = 4
    driver.add("a", None)
    for _ in range(6):
        assert driver.draft_depth(["a"]) is None
        driver.done(done(["a"], [2], [1]), 2)
    assert driver.guard.faults["depth decision"] == 4
    assert driver.board["enabled"] == 0.0
    assert driver.board["steps_total"] == 3  # it counts until it is off


def test_a_broken_controller_is_seen_and_the_engine_keeps_its_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compiled calls fail: every one is a fault, by kind, logged once per kind, and never a depth of 0."""
    log: list[str] = []
    driver = built(tmp_path, {"mode": "adaptive", "faults_in_a_row": 1000}, log=log)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("injected")

    driver.add("a", None)
    driver.draft_depth(["a"])  # one good decision
    for name in ("draft_by_handle", "observe_by_handle"):
        monkeypatch.setattr(decide, name, broken)
    for step in range(50):
        assert driver.draft_depth(["a"]) is None  # the engine's own depth
        driver.done(done(["a"], [DEPTH], [1]), DEPTH)
        assert driver.guard.faults["depth decision"] == step + 1
    driver.settle()
    assert driver.guard.faults == {"depth decision": 50, "outcome": 50}
    assert [line.split(":")[0] for line in log] == [
        f"Specmargin fault ({kind})" for kind in ("depth decision", "outcome")
    ]
    assert all("ZeroDivisionError: injected" in line for line in log)


def test_outcomes_reach_the_policy_and_the_board() -> None:
    class Learns(FixedDepth):
        seen: list[Outcome] = []  # noqa: RUF012 (a test's)

        def observe(self, outcome: Outcome) -> bool:
            self.seen.append(outcome)
            return outcome.seconds > 0.4  # False for NaN

    driver = bare(Learns(depth=2))
    for name in "ab":
        driver.add(name, None)
    driver.draft_depth(["a", "b"])
    driver.done(done(["a", "b"], [2, 1], [1, 0], seconds=0.5), 2)
    driver.done(done(["a"], [2], [2], seconds=0.25, prompt_tokens=64), 2)
    first, second = Learns.seen
    assert (first.verified.tolist(), first.accepted.tolist(), first.seconds) == ([2, 1], [1, 0], 0.5)
    assert math.isnan(second.seconds)  # with a prompt, the time is not that of decoding
    board = driver.board
    assert (board["steps_total"], board["step_seconds_total"]) == (2, 0.75)
    assert (board["draft_tokens_total"], board["accepted_tokens_total"], board["committed_tokens_total"]) == (5, 3, 6)
    assert board["verify_positions_total"] == 8
    assert board["ignored_outcomes_total"] == 1
    assert board["goodput_tokens_per_second"] == pytest.approx(3 / 0.5)


def learned(driver: Driver) -> list[Any]:
    """The learned state of its controller, as plain numbers."""
    assert isinstance(driver.policy, Controller)
    learned = driver.policy.kernel().learned
    parts = [*learned.times, *learned.gate, *(part for part in learned if not isinstance(part, Times | GateGains))]
    return [np.asarray(part).tolist() for part in parts]


def test_learning_every_few_steps_learns_the_same(tmp_path: Path) -> None:
    """Each outcome is still matched with its decision, and the board is exact after `settle`."""
    at_once, later = (built(tmp_path, {"mode": "adaptive"}, device_gate=True) for _ in range(2))
    at_once.learn_every, later.learn_every = 1, 4
    generator = np.random.default_rng(3)
    names = ["a", "b", "c"]
    for driver in (at_once, later):
        for name in names:
            driver.add(name, None)
    for step in range(40):
        rows = generator.random((3, DEPTH)) ** 0.2
        accepted = generator.integers(0, DEPTH + 1, 3)
        verified = generator.integers(0, DEPTH + 1, 3).tolist()
        taken = np.minimum(accepted, verified).tolist()
        for driver in (at_once, later):
            expected = Expectation(
                np.array(verified), float(sum(taken)) * 0.9, float(sum(verified)) + 1.0, rows[:2] / 9.0, rows
            )
            driver._planned.append(_Planned(decision=Decision(2, True, expected=expected)))
            driver.done(done(names, verified, taken, seconds=0.01 + 0.001 * (step % 3)), 2)
        assert len(later._unlearned) == (step + 1) % 4
    for driver in (at_once, later):
        driver.settle()
        assert isinstance(driver.policy, Controller)
        assert driver.policy.kernel().learned.times.seen[:, 0].sum() == 40
    assert learned(at_once) == learned(later)
    for metric in METRICS:
        if metric.name != "decision_seconds_total":
            assert at_once.board[metric.name] == pytest.approx(later.board[metric.name], nan_ok=True), metric.name


def test_a_request_id_that_is_reused_before_settling_is_a_new_request() -> None:
    driver = bare(FixedDepth(depth=2))
    driver.learn_every = 8
    driver.add("a", {"specmargin_depth": 1})
    driver.draft_depth(["a"])
    driver.done(done(["a"], [1], [1]), 2)
    driver.drop("a")
    driver.add("a", None)
    assert driver.board["steps_total"] == 1  # finished steps are learned from first
    for _ in range(8):
        driver.done(done(["a"], [2], [1]), 2)
    assert driver._requests["a"].limit > 2
