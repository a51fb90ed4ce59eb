"""The turns of the gates on a GPU, with a stand-in for the engine: what is recorded, repaired and reported."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab.gpu import gate_turns, replay, report, turns

torch = pytest.importorskip("torch", reason="vLLM is not installed here")
SPEED = {"vllm": 1.0, "vllm honest": 1.1, "specmargin": 1.2, "whole": 1.05}


class _Engine:
    """Rounds take next to no time; a gate's tokens per round are its own."""

    def __init__(self, depth: int) -> None:
        estimator = SimpleNamespace(
            slope=torch.tensor([0.6]),
            intercepts=torch.zeros(depth),
            info=torch.zeros(depth, 3),
            grad=torch.zeros(depth, 2),
            counts=torch.zeros(depth),
            _steps_since_refit=0,
        )
        self.runner = SimpleNamespace(speculator=SimpleNamespace(acceptance_estimator=estimator))
        self.gate, self.batch, self.ruin = "vllm", 0, 0

    def requests(self) -> list[int]:
        return list(range(self.batch))

    def fill(self, batch: int, _: int) -> None:
        self.batch = batch
        if self.ruin:
            self.ruin -= 1
            self.runner.speculator.acceptance_estimator.intercepts.fill_(-900.0)

    def clear(self) -> None:
        self.batch = 0

    def context(self) -> float:
        return 100.0

    def rounds(self, _: int) -> tuple[float, int]:
        time.sleep(1e-4)
        return 1e-4, round(1000 * SPEED[self.gate])


class _Scheduler:
    dynamic_sd_lookup = _driver = None

    def _update_after_schedule(self, output: Any) -> None: ...


def _swing() -> Any:
    swing: Any = object.__new__(gate_turns.GateSwing)
    swing.engine, swing.bank = _Engine(5), replay.synthetic_bank(5, rounds=200)
    swing.table, swing.steps = [0, 5, 5, 3, 3], []
    swing.replay = SimpleNamespace(kind_of=None, rewind=lambda _: None)
    swing.gates = SimpleNamespace(use=lambda gate: setattr(swing.engine, "gate", gate))
    swing.scheduler = _Scheduler()
    swing.driver = swing.ungated = None
    return swing


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_turns, "GATE_TURN_SECONDS", {})
    monkeypatch.setattr(gate_turns, "GATE_LATER_SECONDS", 0.002)
    monkeypatch.setattr(gate_turns, "GATE_LEARNING_SECONDS", 0.002)
    monkeypatch.setattr(turns, "SETTLE_SECONDS", 0.0)


def test_the_report_has_ratios_of_what_was_played(tmp_path: Path) -> None:
    swing = _swing()
    swing.learn(4)
    rows = [swing.play_soundly(batch, kind, 0.1) for batch in (1, 128) for kind in (0, 1)]
    assert [row["traffic"] for row in rows] == ["code", "prose"] * 2
    least, most = gate_turns.GATE_BLOCKS
    assert {len(row["blocks"]) for row in rows} <= set(range(least, most + 1))
    for row in rows:  # every contestant of a load plays the same rounds
        assert len({turn["rounds"] for block in row["blocks"] for turn in block.values()}) == 1
    assert set(rows[0]["blocks"][0]) >= {"vllm gate", "vllm gate, honest curve", "specmargin gate", "controller"}
    survival = {name: swing.bank.survival(kind) for kind, name in enumerate(swing.bank.names)}
    (tmp_path / "gates.json").write_text(json.dumps({"rows": rows, "bank": {"survival": survival}}))
    phases = report.read_gates(tmp_path / "gates.json")
    for name, expected in (("vllm gate", 1.2), ("vllm gate, honest curve", 1.2 / 1.1), ("controller", 1.2 / 1.05)):
        ratio, low, high = report.paired_over(phases, report.OURS, lambda _, name=name: name)  # type: ignore[misc]
        assert low <= ratio <= high
        assert ratio == pytest.approx(expected, rel=0.25)
    tables = report.gates_tables(phases, phases)
    assert tables.count("1, code") == 1
    assert "whole swing" in tables
    assert "| 128 | vllm gate, honest curve (code)" in tables
    assert "| 1 | 5 | 1.000 |" in tables


def test_a_diverged_estimator_is_restarted_and_the_load_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    swing = _swing()
    swing.engine.ruin = 1
    row = swing.play_soundly(4, 0, 0.01)
    assert row["played_again"]
    assert row["estimator_sound"]
    assert "DIVERGED" in capsys.readouterr().out
    swing.engine.ruin = 1
    swing.learn(4)
    swing.engine.ruin = 100
    with pytest.raises(SystemExit, match="diverges twice"):
        swing.learn(4)


@pytest.mark.parametrize(
    ("stalled", "repeats"), [(0, 0), (1, 1), (1 + gate_turns.MOST_REPEATS, gate_turns.MOST_REPEATS)]
)
def test_a_turn_that_waited_for_a_compiler_is_played_again(stalled: int, repeats: int) -> None:
    """Where it never ends, the turn counts as it is."""
    swing, stalls = _swing(), [0.5] * stalled

    def turn(_: int, block: int, rounds: int = 1) -> dict[str, Any]:
        stall = stalls.pop() if stalls and block == 1 else 0.0
        return {"stall": stall, "seconds": 0.1 * rounds, "rounds": rounds}

    swing._replayed_turn = turn
    blocks = swing.play_gates(4, 0, 0.0)["blocks"]
    repeated = [[turn["repeats"] for turn in block.values()] for block in blocks]
    assert [sum(counts) for counts in repeated] == [0, repeats, 0]
    assert repeated[1][0] == repeats
    assert not stalls


def test_no_contestant_is_always_first() -> None:
    names: Any = [(str(i), None) for i in range(7)]
    orders = [[name for name, _ in gate_turns._order(names, block)] for block in range(14)]
    assert all(sorted(order) == [name for name, _ in names] for order in orders)
    places = {name: [order.index(name) for order in orders] for name, _ in names}
    assert {sum(place) for place in places.values()} == {7 * 6}  # on average in the middle


def test_a_bank_is_cut_to_what_the_engine_drafts() -> None:
    bank = replay.synthetic_bank(7, rounds=100)
    cut = bank.cut(5)
    assert cut.survival(0) == bank.survival(0)[:5]
    assert int(cut.accepted.max()) == cut.confidence.shape[1] == 5
    with pytest.raises(ValueError, match="the bank has 5 depths, not 7"):
        cut.cut(7)


def test_the_banks_fit_is_that_of_its_confidences() -> None:
    generator = np.random.default_rng(0)
    odds = generator.normal(0.5, 2.0, (20_000, 3))
    hit = generator.random(odds.shape) < 1.0 / (1.0 + np.exp(-(0.6 * odds + np.array([-0.3, 0.1, 0.4]))))
    accepted = np.cumprod(hit, axis=1).sum(axis=1)
    slope, intercepts = replay.fitted(replay.Bank.of("test", {"all": (accepted, 1.0 / (1.0 + np.exp(-odds)))}))
    assert slope == pytest.approx(0.6, abs=0.03)
    assert intercepts == pytest.approx([-0.3, 0.1, 0.4], abs=0.06)
    assert replay.is_sound((slope, intercepts))
    assert not replay.is_sound((slope, [-51.0, 0.0, 0.0]))
    assert not replay.is_sound((3.0, [0.0, 0.0, 0.0]))
