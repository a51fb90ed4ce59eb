"""The driver as an engine builds it from settings and a policy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.live import sequences
from specmargin.live.driver import Driver
from specmargin.live.narrator import Narrator
from specmargin.live.settings_schema import Mode
from specmargin.policies.controller import ControllerSettings
from specmargin.policies.kernel import decide
from tests.unit.live import DEPTH, built, done


def one_step(driver: Driver, names: list[str], generator: np.random.Generator) -> tuple[list[int], int | None]:
    driver.drafts(names, generator.random((len(names), DEPTH)))
    held = [DEPTH] * len(names)
    verified = driver.verify(names, held) or held
    depth = driver.draft_depth(names)
    accepted = [int(generator.integers(0, deep + 1)) for deep in verified]
    driver.done(done(names, verified, accepted), depth if depth is not None else DEPTH)
    return verified, depth


@pytest.mark.parametrize("depths", [DEPTH, DEPTH + 2, DEPTH - 1])
def test_nothing_is_compiled_while_sequences_wait(tmp_path: Path, depths: int) -> None:
    """At any batch, before and after the controller has learned, with a calibrator of any width."""
    driver = built(tmp_path, {"mode": "adaptive"}, calibrator_depths=depths)
    assert driver.survivals is not None
    compiled_functions: tuple[Any, ...] = (
        decide.draft_by_handle,
        decide.verify_by_handle,
        decide.observe_by_handle,
        decide.goodput_by_handle,
        sequences._fill,
        sequences._learn,
    )
    before = [len(function.signatures) for function in compiled_functions]
    generator = np.random.default_rng(0)
    for batch in (5, 1, 2, 8, 3, 1):
        names = [f"{batch} {i}" for i in range(batch)]
        for name in names:
            driver.add(name, None)
        for _ in range(10):
            one_step(driver, names, generator)
    assert [len(function.signatures) for function in compiled_functions] == before
    assert driver.guard.faults.total() == 0
    assert driver.board["calibration_error"] > 0.0
    assert driver.board["hurdle"] > 0.0


def test_an_adaptive_driver_gates_by_confidence(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive"})
    names = ["sure", "hopeless"]
    for name in names:
        driver.add(name, None)
    driver.draft_depth(names)
    driver.drafts(names, [[0.999] * DEPTH, [0.0001] * DEPTH])
    assert driver.verify(names, [DEPTH, DEPTH]) == [DEPTH, 0]
    assert built(tmp_path, {"mode": "adaptive"}, confidence=False).survivals is None
    assert built(tmp_path, {"mode": "adaptive"}, gated=False).survivals is None


def test_gating_is_suspended_while_its_overhead_exceeds_its_gain(tmp_path: Path) -> None:
    """The overhead includes the worker's time to read confidences, which are not read while gating is suspended."""
    driver = built(tmp_path, {"mode": "adaptive"})
    names = ["sure", "hopeless"]
    for name in names:
        driver.add(name, None)

    def step(names: list[str], seconds: float) -> bool:
        confidence = [[0.999] * DEPTH, [0.0001] * DEPTH][: len(names)]
        driver.drafts(names, confidence if driver.wants_confidence() else None, seconds)
        held = [DEPTH] * len(names)
        verified = driver.verify(names, held) or held
        driver.draft_depth(names)
        driver.done(done(names, verified, [DEPTH, 0][: len(names)]), DEPTH)
        driver.settle()
        return verified != held

    driver.draft_depth(names)
    steps = ControllerSettings().gate_steps
    gated = [step(names, 0.0) for _ in range(3 * steps)]  # no overhead but the decision itself
    assert np.mean(gated) > 0.9  # the others time plain steps
    assert driver.wants_confidence()
    for _ in range(8 * steps):
        step(names, 0.005)  # half of a step
    assert not driver.wants_confidence()
    assert not step(names, 0.0)
    assert driver.board["gating"] == 0.0
    gated_by_step = [step(names, 0.0) for _ in range(ControllerSettings().gate_rest + 2)]
    assert gated_by_step[-1]
    assert gated_by_step.index(True) > ControllerSettings().gate_rest - 8 * steps
    assert driver.guard.faults.total() == 0


def test_confidences_are_read_for_a_capture_too(tmp_path: Path) -> None:
    assert not built(tmp_path, {"mode": "schedule"}).wants_confidence()
    assert not built(tmp_path, {"mode": "adaptive"}, gated=False).wants_confidence()
    captured = built(tmp_path, {"mode": "schedule", "capture": str(tmp_path / "bank")})
    assert captured.wants_confidence()
    captured.close()


def test_candidates_hold_without_a_gate(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive", "candidates": [2]}, gated=False)
    generator = np.random.default_rng(0)
    driver.add("a", None)
    assert {one_step(driver, ["a"], generator)[1] for _ in range(200)} <= {0, 2}


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
