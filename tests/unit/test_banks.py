"""Banks of draft rounds: the forms they come in, and one clear sentence for whatever is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from specmargin.acceptance.bank import KEYS, read_bank
from specmargin.acceptance.calibration import history_of, tokens_of
from specmargin.errors import AcceptanceError
from tests.command_line import payload, run


def bank(folder: Path, *, rounds: int = 300, depth: int = 3, seed: int = 0) -> Path:
    """Confidence is the truth: a token is accepted with it."""
    generator = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    confidence = generator.beta(3.0, 1.5, (rounds, depth))
    accepted = (generator.random((rounds, depth)) < confidence).cumprod(axis=1).sum(axis=1)
    keys: dict[str, Any] = {
        "model": ["m"] * rounds,
        "speculator": ["s"] * rounds,
        "config": ["c"] * rounds,
        "category": ["code" if i % 2 else "prose" for i in range(rounds)],
        "prompt_idx": [i // 10 for i in range(rounds)],
        "turn": [0] * rounds,
        "round_idx": [i % 10 for i in range(rounds)],
    }
    flags = {f"acc{d}": (accepted > d).astype(np.int8) for d in range(depth)}
    pl.DataFrame(keys | {"accept": accepted} | flags).write_parquet(folder / "acceptance.parquet")
    beside = {f"conf{d}": confidence[:, d] for d in range(depth)}
    pl.DataFrame(keys | beside).write_parquet(folder / "speculator.parquet")
    return folder


def test_a_bank_is_joined_on_its_keys(tmp_path: Path) -> None:
    folder = bank(tmp_path / "bank")
    shuffled = pl.read_parquet(folder / "speculator.parquet").sample(fraction=1.0, shuffle=True, seed=1)
    shuffled.write_parquet(folder / "speculator.parquet")
    rounds = read_bank([folder])
    assert rounds.count == 300
    assert rounds.depth == 3
    tokens = tokens_of(rounds)
    assert tokens.accepted[tokens.confidence > 0.9].mean() > tokens.accepted[tokens.confidence < 0.5].mean() + 0.2


def test_csv_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "rounds.csv").write_text("commits,category,a0,a1\n1,code,0.2,0.1\n3,code,0.9,0.8\n2,prose,0.9,0.3\n")
    rounds = read_bank([tmp_path / "rounds.csv"])
    assert rounds.accepted_by_round.tolist() == [0, 2, 1]
    requests = [
        {"per_step_drafted": [3, 2], "per_step_accepted": [1, 2]},
        {"per_step_drafted": [3], "per_step_accepted": [0]},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, requests)))
    metrics = read_bank([tmp_path / "metrics.jsonl"])
    assert metrics.drafted_by_round.tolist() == [3, 2, 3]
    assert not metrics.has_confidence
    with pytest.raises(AcceptanceError, match="has no confidences"):
        tokens_of(metrics)


def test_several_files_are_one_bank(tmp_path: Path) -> None:
    rounds = read_bank([bank(tmp_path / "a"), bank(tmp_path / "b", seed=1)])
    assert rounds.count == 600
    assert np.unique(rounds.prompt_by_round).size == 2 * np.unique(read_bank([tmp_path / "a"]).prompt_by_round).size


def _rewritten(folder: Path, name: str, **columns: Any) -> Path:
    frame = pl.read_parquet(folder / name)
    frame.with_columns(**columns).write_parquet(folder / name)
    return folder


def test_wrong_banks_are_refused_by_name(tmp_path: Path) -> None:
    cases = [
        (_rewritten(bank(tmp_path / "a"), "speculator.parquet", conf0=pl.lit(1.5)), "confidences must lie in 0..1"),
        (_rewritten(bank(tmp_path / "b"), "acceptance.parquet", accept=pl.lit(7)), "accepts 7 of 3"),
        (_rewritten(bank(tmp_path / "c"), "speculator.parquet", turn=pl.lit(5)), "do not join"),
        (_rewritten(bank(tmp_path / "d"), "acceptance.parquet", round_idx=pl.lit(0)), "rounds are duplicates"),
        (tmp_path / "nowhere", "no such file"),
    ]
    folder = bank(tmp_path / "e")
    pl.read_parquet(folder / "acceptance.parquet").drop("accept").write_parquet(folder / "acceptance.parquet")
    cases.append((folder, "lacks the column 'accept'"))
    folder = bank(tmp_path / "f")
    (folder / "acceptance.parquet").write_bytes(b"PAR1")
    cases.append((folder, "not a complete Parquet file"))
    folder = bank(tmp_path / "g")
    pl.read_parquet(folder / "speculator.parquet").head(100).write_parquet(folder / "speculator.parquet")
    cases.append((folder, "lacks 200 of the 300 rounds"))
    other = _rewritten(bank(tmp_path / "h"), "acceptance.parquet", speculator=pl.lit("other"))
    _rewritten(other, "speculator.parquet", speculator=pl.lit("other"))
    for path, message in cases:
        with pytest.raises(AcceptanceError, match=message):
            read_bank([path])
    with pytest.raises(AcceptanceError, match="several drafters"):
        read_bank([bank(tmp_path / "i"), other])
    assert len(KEYS) == 7


def test_history_knows_only_the_past(tmp_path: Path) -> None:
    """Changing a round's outcome changes the history of later rounds of its request alone."""
    rounds = read_bank([bank(tmp_path / "bank")])
    changed = rounds.accepted_by_round.copy()
    changed[4] = 3 - changed[4]
    other = type(rounds)(
        **{name: getattr(rounds, name) for name in rounds.__slots__ if name != "accepted_by_round"},
        accepted_by_round=changed,
    )
    moved = np.flatnonzero(np.abs(history_of(rounds) - history_of(other)) > 1e-3)
    same = np.flatnonzero(rounds.prompt_by_round == rounds.prompt_by_round[4])
    assert set(moved.tolist()) <= set(same[same > 4].tolist())
    assert moved.size


def test_profile_acceptance_and_plan(tmp_path: Path) -> None:
    folder = bank(tmp_path / "bank")
    result = payload("profile", "acceptance", str(folder), "--splits", "1")
    assert set(result["categories"]) == {"code", "prose", "all"}
    assert {"ece_raw", "ece_calibrated", "log_loss_raw", "log_loss_calibrated"} <= set(result["calibration"][0])
    shown = run("profile", "acceptance", str(folder), "--splits", "1").out
    assert max(map(len, shown.splitlines())) <= 100
    shared = ("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--batch", "1")
    target = tmp_path / "mine.acceptance.json"
    run("profile", "acceptance", str(folder), "--splits", "1", "-o", str(target))
    kept = payload(*shared, "--acceptance", f"{target}:code")
    assert "give --force" in run("profile", "acceptance", str(folder), "-o", str(target), code=2).err
    assert "no category 'cod'" in run(*shared, "--acceptance", f"{target}:cod", code=2).err
    plan = payload(*shared, "--acceptance", f"{folder}:code")
    assert kept["rows"] == plan["rows"]
    assert plan["sources"]["acceptance"].startswith("measured: 150 rounds of bank, code")
    assert "no category 'cod'; nearest: code" in run(*shared, "--acceptance", f"{folder}:cod", code=2).err
    assert "--plot draws the ladder" in run("profile", "acceptance", str(folder), "--plot", "x.png", code=2).err
    assert "known prices are" in run("profile", "acceptance", str(folder), "--at", "mars", code=2).err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commits,category,a0,a1\n", "has no rounds"),
        ("commits,a0\nmany,0.5\n", "must hold whole numbers"),
        ("commits,drafted,a0\n1,5,0.5\n", "drafts 5 tokens, but there are 1 depths"),
        ("category,a0\ncode,0.5\n", "lacks the column 'commits'"),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text(text)
    assert message in run("profile", "acceptance", str(path), code=2).err


def test_blank_confidences_and_single_requests(tmp_path: Path) -> None:
    """Rounds that draft less have blanks; a bank of one request has nothing to hold out."""
    path = tmp_path / "rounds.csv"
    path.write_text("commits,drafted,category,prompt,a0,a1\n1,1,7,1,0.2,\n3,2,7,1,0.9,0.8\n2,2,7,1,0.9,0.3\n")
    result = payload("profile", "acceptance", str(path))
    assert set(result["categories"]) == {"7", "all"}
    assert result["calibration"] == []
    assert "two requests" in run("profile", "acceptance", str(path), "--ladder", code=2).err
    plain = tmp_path / "plain.csv"
    plain.write_text("commits\n1\n1\n1\n")
    assert payload("profile", "acceptance", str(plain))["categories"]["all"]["survival"] == [0.0]
