"""The driver as an engine builds it from settings and a policy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.live.driver import Agreed, Driver
from specmargin.live.gate_messages import Returned, expectation
from specmargin.live.narrator import Narrator
from specmargin.live.settings_schema import Mode
from specmargin.policies.controller import Controller
from specmargin.policies.kernel import decide
from tests.unit.live import DEPTH, built, done


def one_step(driver: Driver, names: list[str], generator: np.random.Generator) -> int | None:
    """Half of what was drafted is verified where there is a gate."""
    depth = driver.draft_depth(names)
    driver.gate_order(len(names), depth or 0)
    drafted = np.full(len(names), DEPTH)
    verified = drafted // 2 if driver.device_gate else drafted
    step = done(names, verified.tolist(), [int(generator.integers(0, deep + 1)) for deep in verified])
    if driver.device_gate:
        acceptance = generator.random((len(names), DEPTH)).astype(np.float32)
        step.expected = expectation(Returned(verified.astype(np.int32), acceptance), drafted, verified, DEPTH)
    driver.done(step, depth if depth is not None else DEPTH)
    return depth


@pytest.mark.parametrize(("device_gate", "votes"), [(False, False), (True, False), (False, True)])
def test_nothing_is_compiled_while_sequences_wait(tmp_path: Path, device_gate: bool, votes: bool) -> None:
    """At any batch, before and after the controller has learned; among ranks that vote, also after their votes end."""
    agreed = Agreed(depth=lambda: 2, loads=lambda: (3, 1)) if votes else None
    driver = built(tmp_path, {"mode": "adaptive"}, device_gate=device_gate, agreed=agreed)
    compiled_functions: tuple[Any, ...] = (
        decide.draft_by_handle,
        decide.count_by_handle,
        decide.probe_by_handle,
        decide.observe_by_handle,
        decide.goodput_by_handle,
        decide.factors_by_handle,
        decide.acceptance_by_handle,
    )
    before = [len(function.signatures) for function in compiled_functions]
    generator = np.random.default_rng(0)
    for batch in (5, 1, 2, 8, 3, 1):
        names = [f"{batch} {i}" for i in range(batch)]
        for name in names:
            driver.add(name, None)
        for _ in range(10):
            one_step(driver, names, generator)
            assert not votes or driver.vote(batch) is not None
        if batch == 1:
            driver.agreed = None
    assert [len(function.signatures) for function in compiled_functions] == before
    assert driver.guard.faults.total() == 0
    assert (driver.board["calibration_error"] > 0.0) == device_gate
    assert driver.board["hurdle"] > 0.0


def test_a_rank_drafts_as_agreed_and_its_steps_count(tmp_path: Path) -> None:
    depth, generator = 3, np.random.default_rng(0)
    driver = built(tmp_path, {"mode": "adaptive"}, agreed=Agreed(depth=lambda: depth, loads=tuple))
    assert isinstance(driver.policy, Controller)
    for name in "ab":
        driver.add(name, None)
    before = driver.policy.kernel().learned.marks[0].step
    assert {one_step(driver, ["a", "b"], generator) for _ in range(20)} == {3}
    assert driver.policy.kernel().learned.marks[0].step == before + 20
    depth = 0
    assert one_step(driver, ["a", "b"], generator) == 0


@pytest.mark.parametrize("device_gate", [False, True])
def test_candidates_hold(tmp_path: Path, device_gate: bool) -> None:
    driver = built(tmp_path, {"mode": "adaptive", "candidates": [2]}, device_gate=device_gate)
    generator = np.random.default_rng(0)
    for name in "ab":
        driver.add(name, None)
    assert {one_step(driver, ["a", "b"], generator) for _ in range(200)} <= {0, 2}


def test_a_schedule_comes_from_the_settings_or_from_the_policy(tmp_path: Path) -> None:
    from_policy = built(tmp_path, {"mode": "schedule"})
    assert [from_policy.draft_depth(["a"] * batch) for batch in (1, 2, 3, 8, 20)] == [3, 3, 1, 1, 1]
    from_settings = built(tmp_path, {"mode": "schedule", "schedule": [[1, 4, 2], [9, 16, 0]]})
    assert [from_settings.draft_depth(["a"] * batch) for batch in (1, 4, 5, 8, 9, 99)] == [2, 2, 2, 2, 0, 0]


def test_the_narrator_logs_one_line_per_interval(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive"})
    lines: list[str] = []
    narrator = Narrator(driver=driver, every_seconds=60.0, log=lines.append)
    narrator.look(0.0)
    driver.add("a", None)
    generator = np.random.default_rng(0)
    for _ in range(20):
        one_step(driver, ["a"], generator)
    driver.settle()
    narrator.look(59.0)
    assert lines == []
    narrator.look(60.0)
    (line,) = lines
    assert line.startswith("Specmargin (adaptive): 20 steps")
    assert line.endswith("no faults.")
    assert "expected now" in line
    narrator.look(121.0)  # a minute in which nothing happened
    assert "0 steps" in lines[1]
    assert "no depth chosen" in lines[1]


def test_the_mode_is_on_the_board(tmp_path: Path) -> None:
    assert [built(tmp_path, {"mode": str(mode)}).board["mode"] for mode in Mode] == [0.0, 1.0, 2.0]
