"""`plan --policy` for SGLang: a file that runs with the plug-in and without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specmargin.cli.main import run
from specmargin.errors import ScheduleError
from tests.sglang_engine import SIZES, Traffic, rounds_of, sglang


def test_the_planned_file_runs_with_the_plug_in_and_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["qwen3.6-35b-a3b", "--gpu", "h200", "--engine", "sglang", "--prices", "laws", "--max-batch", "64"]
    assert run("plan", [*options, "--drafter", "mtp", "--policy", "mine.json", "-o", "plain.json"]) == 0
    shown = capsys.readouterr().out
    assert "--speculative-adaptive --speculative-adaptive-config mine.json" in shown
    assert "Wrote mine.json, SGLang's adaptive configuration with the policy" in shown
    assert len(shown) < 4_000  # not the policy itself
    steps = int(shown.split("--speculative-num-steps ")[1].split()[0])
    traffic = Traffic(200)
    with sglang() as plain:  # no plug-in is loaded
        (depths,) = traffic.play(plain.rank(tmp_path / "mine.json", steps, sizes=SIZES))
        (scheduled,) = traffic.play(plain.rank(tmp_path / "plain.json", steps, sizes=SIZES))
    assert depths == scheduled
    with sglang() as engine:
        engine.load_plugins()
        rank = engine.rank(tmp_path / "mine.json", steps, sizes=SIZES)
        (adapted,) = traffic.play(rank)
        assert rounds_of(rank).driver.guard.faults.total() == 0
        assert rounds_of(rank).driver.board["steps_total"] == 200
    assert adapted != depths
    assert any(text.startswith("Specmargin: mode adaptive; drafts of 0, ") for text in engine.log)


def test_one_depth_for_all_batches_still_takes_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["qwen3.6-35b-a3b", "--gpu", "h200", "--engine", "sglang", "--prices", "laws", "--max-batch", "8"]
    assert run("plan", [*options, "--drafter", "mtp", "--batch", "1", "--policy", "mine.json", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["config"].endswith("--speculative-adaptive --speculative-adaptive-config mine.json")
    slots = [key for key in json.loads(Path("mine.json").read_text()) if key.isdigit()]
    assert slots == ["1"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--drafter", "ngram"], "only EAGLE and MTP adapt"),
        (["--drafter", "mtp", "--dp", "2", "--ep"], "adaptive_unsupported_reason .* DP attention"),
        (["--drafter", "mtp", "--acceptance", "0.01"], "does not pay"),
    ],
)
def test_a_policy_that_sglang_cannot_use_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ["qwen3.6-35b-a3b", "--gpu", "h200", "--engine", "sglang", "--prices", "laws", "--max-batch", "8"]
    with pytest.raises(ScheduleError, match=reason):
        run("plan", [*common, *options, "--policy", "mine.json"])
    assert not Path("mine.json").exists()
