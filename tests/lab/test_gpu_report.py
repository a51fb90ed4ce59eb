"""Ratios of the GPU benchmark's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.gpu import report

RESULTS = Path(__file__).parents[2] / "lab/results/vllm-0.32-h200"


def _phase(generator: np.random.Generator, blocks: int, speeds: dict[str, float]) -> report.Phase:
    """Tokens per second by contestant, with 2% of noise."""
    noise = {name: np.exp(generator.normal(0.0, 0.02, blocks)) for name in speeds}
    return report.Phase(
        batch=1,
        traffic="code",
        table_depth=1,
        seconds={name: np.full(blocks, 1.0) for name in speeds},
        tokens={name: speed * noise[name] for name, speed in speeds.items()},
    )


def test_the_luckiest_of_equals_is_not_better() -> None:
    """In hindsight the best of many that are alike is ahead; chosen by other blocks it is not."""
    generator = np.random.default_rng(1)
    alike = {report.OURS: 1.0, "controller": 1.0, **{f"depth {depth}": 1.0 for depth in range(8)}}
    phases = [_phase(generator, 6, alike) for _ in range(40)]
    in_hindsight, _, _ = report.paired_over(phases, report.OURS, report.Phase.best_other)
    by_halves, low, high = report.over_best_of_other_half(phases)
    assert in_hindsight < by_halves - 0.005
    assert low < 1.0 < high
    assert by_halves == pytest.approx(1.0, abs=0.004)


def test_a_contestant_that_is_better_is_found_in_either_half() -> None:
    generator = np.random.default_rng(2)
    phase = _phase(generator, 20, {report.OURS: 1.0, "controller": 2.0, "depth 1": 0.8, "depth 2": 1.25})
    ratio, low, high = report.over_best_of_other_half([phase])
    assert ratio == pytest.approx(0.8, rel=0.02)
    assert low <= ratio <= high


def test_runs_of_several_machines_count_together(tmp_path: Path) -> None:
    def run(name: str, batch: int, seconds: float) -> Path:
        turn: dict[str, Any] = {"seconds": seconds, "rounds": 10, "tokens": 20, "depths": {"1": 10}, "context": 100.0}
        blocks = [{report.OURS: turn, "depth 1": turn}] * 3
        row = {"batch": batch, "traffic": "code", "table_depth": 1, "blocks": blocks, "estimator_sound": True}
        path = tmp_path / name
        path.write_text(json.dumps({"rows": [row], "bank": {"survival": {"code": [0.5]}}}))
        return path

    phases = report.read_gates(run("a.json", 4, 1.0), run("b.json", 1, 1.0), run("c.json", 4, 2.0))
    assert [phase.batch for phase in phases] == [1, 4]
    assert phases[1].seconds["depth 1"].tolist() == [0.1] * 3 + [0.2] * 3


def test_the_gate_keeps_up_with_the_best_contestant_at_every_load() -> None:
    """What docs/results says of the committed runs."""
    phases = report.read_gates(*sorted(RESULTS.glob("gates*.json")))
    for batch in (1, 4, 16, 64, 128, 256):
        chosen = [phase for phase in phases if phase.batch == batch]
        assert len(chosen) == 2
        for ratio, low, _ in (
            report.paired_over(chosen, report.OURS, report.Phase.best_other),
            report.over_best_of_other_half(chosen),
        ):
            assert ratio >= 0.99
            assert low >= 0.97
    assert report.paired_over(phases, report.OURS, lambda _: "vllm gate")[1] > 1.0
    assert report.paired_over(phases, report.OURS, lambda _: "vllm gate, honest curve")[1] > 1.0
    assert report.paired_over(phases, report.OURS, report.Phase.best_fixed)[1] > 1.0
