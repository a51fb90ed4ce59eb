"""What can be asked besides the plan: every batch at every depth, what drafts cost in memory, another acceptance."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import specmargin
from specmargin.acceptance.survival import parse_acceptance
from tests.command_line import payload, run

ASKED = ("plan", "qwen3.6-35b-a3b", "--gpu", "h100", "--prices", "laws", "--batch", "1,4,16", "--depth", "5")


# --- every batch at every depth ---


def test_the_grid_agrees_with_the_plan_at_its_depths() -> None:
    answer = payload(*ASKED, "--grid")
    cells = {(row["batch"], row["depth"]): row for row in answer["grid"]}
    assert len(cells) == 3 * 6
    for row in answer["rows"]:
        cell = cells[row["batch"], row["depth"]]
        assert cell["speedup"] == pytest.approx(row["speedup"])
        assert cell["tokens_per_second"] == pytest.approx(row["goodput_tokens_per_second"])
        assert cell["tpot_seconds"] == pytest.approx(row["tpot_seconds"])
        assert cell["fits"] is row["fits"]
        assert cell["round_seconds"] == pytest.approx(cell["tpot_seconds"] * cell["tokens_per_round"])
        plain = cells[row["batch"], 0]
        assert plain["speedup"] == 1.0
        assert plain["tokens_per_second"] == pytest.approx(row["no_spec_tokens_per_second"])
    assert cells[16, 0]["fits"]
    assert not cells[16, 5]["fits"]  # states of drafts: 2 sequences fit on an H100
    assert "grid" not in payload(*ASKED)


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_the_grid_as_a_file(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"grid.{ending}"
    text = run(*ASKED, "--grid", "-o", str(path)).out
    assert "speed-up by batch and draft depth" in text
    expected = payload(*ASKED, "--grid")["grid"]
    if ending == "csv":
        with path.open() as file:
            rows: list[dict[str, Any]] = [{"speedup": float(row["speedup"])} for row in csv.DictReader(file)]
    elif ending == "json":
        rows = json.loads(path.read_text())
    else:
        rows = pl.read_parquet(path).to_dicts()
    assert len(rows) == len(expected) == 18
    assert [row["speedup"] for row in rows] == [row["speedup"] for row in expected]


def test_the_grid_in_python_and_of_several_gpus() -> None:
    options: dict[str, Any] = {"prices": "laws", "batch": "1,4", "depth": 2}
    alone = specmargin.plan("qwen3.6-35b-a3b", gpu="h200", **options).grid()
    both = specmargin.plan("qwen3.6-35b-a3b", gpu="h100,h200", **options).grid()
    assert [{name: value for name, value in row.items() if name != "machine"} for row in both[6:]] == alone
    assert [row["machine"] for row in both] == ["h100"] * 6 + ["h200"] * 6


def test_a_grid_needs_the_name_of_a_table(tmp_path: Path) -> None:
    complaint = run(*ASKED, "--grid", "-o", str(tmp_path / "grid.txt"), code=2).err
    assert "must end in .csv, .parquet or .json" in complaint


# --- memory ---


def test_what_drafts_cost_in_memory() -> None:
    """Qwen3.6's recurrent layers keep a state per position of a round: with drafts of 4, five instead of one."""
    answer = payload(*ASKED)
    memory = answer["memory"]
    plain, drafting, depth = memory["plain"], memory["drafting"], memory["depth"]
    assert drafting["state_bytes"] == pytest.approx((depth + 1) * plain["state_bytes"])
    assert drafting["kv_bytes"] - plain["kv_bytes"] == pytest.approx(depth * plain["kv_bytes"] / 1025)
    assert plain["drafter_bytes"] == 0.0
    assert drafting["drafter_bytes"] > 0.0  # the MTP layer's own KV cache
    for side in (plain, drafting):
        assert side["total_bytes"] == pytest.approx(side["kv_bytes"] + side["state_bytes"] + side["drafter_bytes"])
    room = memory["usable_bytes"] - memory["weight_bytes"]
    assert memory["no_spec_largest_batch"] == answer["no_spec_largest_batch"] == int(room // plain["total_bytes"])
    left = room - memory["drafter_weight_bytes"]
    assert memory["largest_batch"] == answer["largest_batch"] == int(left // drafting["total_bytes"])


def test_explain_shows_what_drafts_cost_in_memory() -> None:
    text = run(*ASKED, "--explain").out
    assert "memory of each GPU, at a context of 1,024" in text
    (states,) = (line for line in text.splitlines() if line.startswith("recurrent states"))
    assert "64.4 MB" in states  # 30 layers of 32 heads of 128 × 128 in fp32, and their convolutions
    assert "one sequence" in text
    dense = run("plan", "llama-3.1-8b", "--gpu", "h100", "--prices", "laws", "--batch", "1", "--explain").out
    assert "recurrent states" not in dense


# --- another acceptance ---


def test_twice_as_good_halves_the_rejections_at_every_position() -> None:
    better = parse_acceptance("0.8,0.56,0.28").rejecting_less(2.0)
    conditional = np.divide(better.by_depth, [1.0, *better.by_depth[:-1]])
    assert conditional == pytest.approx([0.9, 0.85, 0.75])
    assert parse_acceptance("0.8").rejecting_less(0.1).by_depth == pytest.approx([0.0])  # never below 0
    assert parse_acceptance("0.8,0.56").rejecting_less(1.0).by_depth == pytest.approx([0.8, 0.56])


def test_comparing_with_an_acceptance_is_the_plan_with_it() -> None:
    other = payload(*ASKED, "--compare", "acceptance:0.9")["other_acceptance"]
    plan = payload(*ASKED, "--acceptance", "0.9")
    assert other["config"] == plan["config"]
    assert [row["other_speedup"] for row in other["rows"]] == [row["speedup"] for row in plan["rows"]]
    assert [row["other_depth"] for row in other["rows"]] == [row["depth"] for row in plan["rows"]]


def test_a_better_drafter_gains_and_the_same_one_does_not() -> None:
    better = payload(*ASKED, "--compare", "acceptance:x2")["other_acceptance"]
    assert all(row["gain"] > 0.1 for row in better["rows"])
    assert better["meaning"] == "twice as good: half as many rejections at every position"
    same = payload(*ASKED, "--compare", "acceptance:x1")["other_acceptance"]
    assert [row["gain"] for row in same["rows"]] == pytest.approx([0.0] * 3)


def test_the_comparison_says_what_twice_as_good_means() -> None:
    text = run(*ASKED, "--compare", "acceptance:x2").out
    assert "the same drafter, twice as good: half as many rejections at every position" in text
    assert "flags with this acceptance:" in text


def test_a_load_is_simulated_with_both() -> None:
    load = ("--concurrency", "4", "--isl", "256", "--osl", "64")
    asked = [word for word in ASKED if word not in ("--batch", "1,4,16")]
    other = payload(*asked, *load, "--compare", "acceptance:0.9,0.8,0.7")["other_acceptance"]
    assert other["service"]["speedup"] > 0
    assert other["survival"][:3] == [0.9, 0.8, 0.7]


@pytest.mark.parametrize("spec", ["acceptance:x0", "acceptance:xyz", "acceptance:x-2", "acceptance:1.5", "acceptance:"])
def test_an_acceptance_that_is_none_is_refused(spec: str) -> None:
    assert "acceptance" in run(*ASKED, "--compare", spec, code=2).err
