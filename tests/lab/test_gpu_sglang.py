"""Contestants of `lab/gpu/sglang_swing.py`, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.gpu.report import phase_of
from lab.gpu.sglang_report import main
from lab.gpu.sglang_swing import DEPTHS, TRAFFIC, Fixed, Seat, make


class Learner(Fixed):
    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.outcomes: list[list[int]] = []

    def on_verify_complete(self, accepted: list[int], _: int) -> int:  # type: ignore[override]
        self.outcomes.append(accepted)
        return self.depth


def test_outcomes_go_to_the_policy_that_chose_the_depth() -> None:
    first, second = Learner(3), Learner(5)
    seat = Seat(first)
    assert seat.on_verify_complete([9], 1) is None  # nobody chose
    assert [seat.get_steps_for_batch(1), seat.get_steps_for_batch(1)] == [3, 3]
    assert seat.on_verify_complete([1], 1) == 3
    seat.now = second
    assert seat.get_steps_for_batch(1) == 5
    assert seat.on_verify_complete([2], 1) is None  # of a round of the first: no switch to its depth
    assert seat.on_verify_complete([4], 1) == 5
    assert (first.outcomes, second.outcomes) == ([[1], [2]], [[4]])


def test_the_jobs_name_files_that_exist(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"1": {"candidate_steps": [3]}, "specmargin": {"mode": "adaptive", "policy": {}}}))
    make(tmp_path / "out", policy)
    job = json.loads((tmp_path / "out" / "run.job.json").read_text())["engine"]
    head = json.loads((Path(job["speculative_draft_model_path"]) / "config.json").read_text())
    target = json.loads((Path(job["model_path"]) / "config.json").read_text())
    read = head["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert all(0 <= layer < target["num_hidden_layers"] - 1 for layer in read)  # SGLang reads at the next layer's input
    config = json.loads(Path(job["speculative_adaptive_config"]).read_text())
    assert config["1"]["candidate_steps"] == config["specmargin"]["candidates"] == DEPTHS
    assert job["speculative_num_steps"] == max(DEPTHS)


def test_the_tables_compare_the_controller_with_every_contestant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def turn(depth: int, milliseconds: float, context: float) -> dict[str, Any]:
        return {"seconds": milliseconds / 100, "rounds": 10, "tokens": 0, "depths": {depth: 10}, "context": context}

    def block(number: int) -> dict[str, Any]:
        at = 100.0 + number
        fixed = {f"depth {depth}": turn(depth, 2.0 + depth, at) for depth in (0, 3)}
        return fixed | {"held 3": turn(3, 5.5, at), "controller": turn(3, 4.0, at), "sglang": turn(0, 2.0, at)}

    row = {"batch": 4, "traffic": "code", "table_depth": 3, "blocks": [block(number) for number in range(4)]}
    (tmp_path / "swing.json").write_text(json.dumps({"acceptance": TRAFFIC, "rows": [row]}))
    plain = {"batch": 4, "traffic": "code", "table_depth": 0, "blocks": [{"depth 0": turn(0, 2.0, 100.0)}] * 2}
    (tmp_path / "plain.json").write_text(json.dumps({"rows": [plain]}))
    main(tmp_path)
    said = capsys.readouterr().out
    tokens = 1 + sum(0.85**depth for depth in (1, 2, 3))
    assert f"| 4, code | 2,000 | 2,000 | {4000 * tokens / 5:,.0f} | 2,000 |" in said
    assert "| 4 sequences | 1.250 (1.250 to 1.250) | 1.250 (1.250 to 1.250) |" in said
    assert "+10.0% (+10.0% to +10.0%)" in said
    assert phase_of(plain, "code", [0.0]).speed("depth 0") == pytest.approx(2000.0)  # equal contexts: no slope
