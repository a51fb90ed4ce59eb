"""Guard and board: nothing raises, all faults are counted, and counters can be read from another process."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specmargin.errors import EngineError
from specmargin.live.board import DEPTHS, FAULTS, METRICS, Board, boards, read_board
from specmargin.live.guard import Guard


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def broken(detail: str = "broken") -> int:
    raise RuntimeError(detail)


def test_a_call_goes_through_with_its_arguments() -> None:
    lines: list[str] = []
    guard = Guard(log=lines.append)
    assert guard.call("outcome", -1, int, "101", base=2) == 5
    assert (guard.faults.total(), lines, guard.off) == (0, [], False)


def test_faults_fall_back_are_counted_and_logged_once_per_kind() -> None:
    lines: list[str] = []
    guard = Guard(log=lines.append, faults_in_a_row=100)
    for i in range(3):
        assert guard.call("outcome", -1, broken, f"number {i}") == -1
    assert guard.call("confidence", -2, broken) == -2
    assert dict(guard.faults) == {"outcome": 3, "confidence": 1}
    assert len(lines) == 2
    assert "(outcome): RuntimeError: number 0" in lines[0]
    assert "confidence" in lines[1]


def test_several_in_a_row_switch_it_off_for_good() -> None:
    lines: list[str] = []
    guard = Guard(log=lines.append, faults_in_a_row=4)
    for _ in range(2):  # two faults per step
        guard.call("verify decision", None, broken)
        guard.call("depth decision", None, broken)
        guard.step_done()
    assert guard.off
    assert sum("is disabled after 4 faults in a row" in line for line in lines) == 1
    called: list[int] = []
    assert guard.call("outcome", "fallback", called.append, 1) == "fallback"
    assert called == []
    assert len(lines) == 3  # one per kind, and one when disabled


def test_a_step_without_faults_resets_the_count() -> None:
    guard = Guard(log=lambda _: None, faults_in_a_row=3)
    for _ in range(20):
        guard.call("outcome", None, broken)
        guard.step_done()
        guard.call("outcome", None, broken)
        guard.step_done()
        guard.step_done()
    assert not guard.off
    assert guard.faults["outcome"] == 40
    for _ in range(3):
        guard.call("outcome", None, broken)
        guard.step_done()
    assert guard.off


def test_a_slow_call_is_a_fault_but_its_result_is_used() -> None:
    clock = Clock()
    lines: list[str] = []
    guard = Guard(log=lines.append, slowest_seconds=0.02, clock=clock)

    def taking(seconds: float) -> str:
        clock.now += seconds
        return "answer"

    assert guard.call("depth decision", "", taking, 0.019) == "answer"
    assert guard.faults.total() == 0
    assert guard.call("depth decision", "", taking, 0.5) == "answer"
    assert dict(guard.faults) == {"slow depth decision": 1}
    assert "took 500 ms" in lines[0]
    assert guard.decision_seconds == pytest.approx(0.519)
    assert guard.call("depth decision", "", lambda: guard.call("depth decision", "", taking, 0.5)) == "answer"
    assert dict(guard.faults) == {"slow depth decision": 2}  # not 3: the outer call itself was fast


def test_seconds_of_failed_calls_count_too() -> None:
    clock = Clock()
    guard = Guard(log=lambda _: None, clock=clock)

    def fails() -> None:
        clock.now += 0.01
        broken()

    guard.call("outcome", None, fails)
    assert guard.decision_seconds == pytest.approx(0.01)


def test_interrupts_are_not_caught() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(log=lambda _: None).call("outcome", None, interrupted)


# --- the board ---


def test_a_board_is_read_as_it_was_written(tmp_path: Path) -> None:
    board = Board(tmp_path / "new" / "engine-3.board")
    for i, metric in enumerate(METRICS):
        board.put(metric.name, float(i))
    board.add("steps_total", 2.0)
    board.put("distinct_experts", math.nan)
    for depth in (0, 3, 3, DEPTHS + 5, -1):
        board.add_step(2, 3, 1, depth, math.nan)
    guard = Guard(log=lambda _: None)
    guard.call("capture", None, broken)
    guard.call("slow outcome", None, broken)  # a kind without a counter of its own
    board.show_guard(guard)
    ((engine, reading),) = boards(tmp_path / "new")
    assert engine == "3"
    first = {metric.name: i for i, metric in enumerate(METRICS)}
    assert reading.values["steps_total"] == 2.0 + 5 + first["steps_total"]
    assert reading.values["verify_positions_total"] == 5 * 5 + first["verify_positions_total"]
    assert reading.values["committed_tokens_total"] == 5 * 3 + first["committed_tokens_total"]
    assert reading.values["step_seconds_total"] == first["step_seconds_total"]  # they were not timed
    assert reading.values["hurdle"] == board["hurdle"]
    assert "distinct_experts" not in reading.values
    assert reading.steps_by_depth == {0: 2.0, 3: 2.0, DEPTHS - 1: 1.0}
    assert sum(board.steps_by_depth()) == 5
    assert {kind: count for kind, count in reading.faults.items() if count} == {"capture": 1.0, "other": 1.0}
    assert set(reading.faults) == set(FAULTS)


def test_a_disabled_guard_shows_on_the_board() -> None:
    board, guard = Board(), Guard(log=lambda _: None, faults_in_a_row=1)
    assert board["enabled"] == 1.0
    guard.call("outcome", None, broken)
    board.show_guard(guard)
    assert board["enabled"] == 0.0


def test_a_board_is_seen_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.board"
    board = Board(path)
    board.add("steps_total", 7.0)
    code = "import sys; from pathlib import Path; from specmargin.live.board import read_board; "
    code += "print(read_board(Path(sys.argv[1])).values['steps_total'])"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7.0"


def test_smoothing_starts_with_the_first_value() -> None:
    board = Board()
    board.smooth("goodput_tokens_per_second", 100.0, 0.9)
    assert board["goodput_tokens_per_second"] == 100.0
    board.smooth("goodput_tokens_per_second", 200.0, 0.9)
    assert board["goodput_tokens_per_second"] == pytest.approx(110.0)


@pytest.mark.parametrize("size", [0, 1, 8, 100, -8, -1])
def test_truncated_boards_are_refused_and_skipped(tmp_path: Path, size: int) -> None:
    path = tmp_path / "engine-0.board"
    Board(path).add("steps_total")
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    with pytest.raises(EngineError, match="not a board of this version"):
        read_board(path)
    Board(tmp_path / "engine-1.board")
    assert [engine for engine, _ in boards(tmp_path)] == ["1"]


def test_other_files_are_no_boards(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.board"
    Board(path)
    raw = np.fromfile(path, dtype=np.float64)
    raw[0] += 1.0e6  # another layout
    raw.tofile(path)
    with pytest.raises(EngineError, match="not a board of this version"):
        read_board(path)
    with pytest.raises(EngineError, match="cannot be read"):
        read_board(tmp_path / "engine-9.board")
    assert list(boards(tmp_path / "nowhere")) == []


def test_faults_of_unlisted_kinds_add_up(tmp_path: Path) -> None:
    guard, path = Guard(log=lambda _: None), tmp_path / "engine-0.board"
    guard.faults.update({"outcome": 2, "a new kind": 3, "another": 4})
    Board(path).show_guard(guard)
    reading = read_board(path)
    assert reading is not None
    assert {kind: count for kind, count in reading.faults.items() if count} == {"outcome": 2, "other": 7}
