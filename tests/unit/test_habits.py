"""What people expect of a command line: pipes, completion, tables in files, examples that can be pasted."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from specmargin.architecture.precision import precision_named
from specmargin.cli.main import run as run_verb
from specmargin.errors import ArchitectureError
from specmargin.verbs.sweep import EXAMPLE
from tests.conftest import ROOT

MOE = "qwen3.6-35b-a3b"
COMMAND = [sys.executable, "-m", "specmargin"]


@pytest.mark.parametrize("arguments", ["models --json", "coverage " + MOE, "plan --help"], ids=str.split)
def test_a_closed_pipe_is_no_failure(arguments: str) -> None:
    """The reader is gone before anything is written: `| head` on a slow machine."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *arguments.split()], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_python_dash_m() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("specmargin ")


# --- tables in files ---

TABLES = {
    "plan": ("qwen3-8b", "--gpu", "h200", "--batch", "1,8", "--prices", "laws"),
    "price": ("qwen3-8b", "--gpu", "h200", "--prices", "laws"),
    "coverage": (MOE, "--positions", "1,8"),
    "duel": (MOE, "--gpu", "h200", "--alpha", "0.5", "--prices", "laws"),
    "design": (MOE, "--gpu", "h200", "--experts", "128", "--experts-per-token", "8", "--prices", "datasheet"),
    "simulate": (MOE, "--gpu", "h200", "--prices", "datasheet", "--qps", "4", "--requests", "8", "--policy", "none"),
    "models": ("qwen3.6",),
    "gpus": ("h",),
}
_ROWS = {"plan": "rows", "price": "components", "coverage": "positions", "design": "rows", "simulate": "policies"}


@pytest.mark.parametrize("verb", TABLES)
def test_a_table_in_a_file(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many rows as the JSON has, with the same numbers."""
    assert run_verb(verb, [*TABLES[verb], "-o", str(tmp_path / "t.csv"), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    with (tmp_path / "t.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if verb == "duel":
        assert float(rows[0]["step_seconds"]) == answer["width"]["step_seconds"]
        return
    expected = answer[_ROWS.get(verb, verb)]
    assert len(rows) == len(expected)
    name = next(key for key, value in expected[0].items() if isinstance(value, float | int) and key in rows[0])
    assert [float(row[name]) for row in rows] == [float(row[name]) for row in expected]
    assert answer["version"]


def test_a_table_as_parquet(tmp_path: Path) -> None:
    run_verb("coverage", [MOE, "--positions", "1,8", "-o", str(tmp_path / "t.parquet")])
    assert pl.read_parquet(tmp_path / "t.parquet")["positions"].to_list() == [1, 8]


# --- completion ---


def completed(words: str) -> list[str]:
    """What bash offers, as Typer's script asks for it."""
    asked = {"_SPECMARGIN_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    shown = subprocess.run(COMMAND, capture_output=True, text=True, check=True, env=os.environ | asked)
    return shown.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("specmargin pl", ["plan"]),
        ("specmargin plan qwen3.6-35", [MOE]),
        ("specmargin plan x --gpu h100-p", ["h100-pcie"]),
        ("specmargin plan x --gpu-h", ["--gpu-hour-price"]),
        ("specmargin plan x --engine s", ["sglang"]),
        ("specmargin profile ro", ["routing"]),
        ("specmargin profile routing --exp", ["--experts"]),
        ("specmargin nonsense x", []),
    ],
)
def test_completion(words: str, expected: list[str]) -> None:
    assert completed(words) == expected


# --- examples and names ---


def test_the_grid_of_the_help_page_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    run_verb("sweep", ["--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    grid = "\n".join(line for line in lines if re.match(r"(base|grid)\.", line))
    assert tomllib.loads(grid) == tomllib.loads(EXAMPLE)


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_verb("sweep", ["--example"])
    (tmp_path / "grid.toml").write_text(capsys.readouterr().out)
    assert run_verb("sweep", [str(tmp_path / "grid.toml"), "--workers", "1", "--table", str(tmp_path / "t.csv")]) == 0
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 9


@pytest.mark.parametrize(
    ("name", "known"),
    [("Q4_K_M", "q4_k_m"), ("q4-k-m", "q4_k_m"), ("Q8_0", "q8_0"), ("F16", "fp16"), ("AWQ", "int4-g128")],
)
def test_names_of_weights(name: str, known: str) -> None:
    assert precision_named(name).name == known


def test_a_mix_of_block_formats_is_larger_than_its_main_format() -> None:
    assert precision_named("Q4_K_M").bytes_per_parameter > precision_named("Q4_K").bytes_per_parameter
    with pytest.raises(ArchitectureError, match="nearest: q4_k"):
        precision_named("Q4_K_Z")


def test_every_extra_that_a_message_names_exists() -> None:
    """And every one of them is in `[all]`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert len(extras) <= 5
    named: set[str] = set()
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for names in re.findall(r"specmargin\[([\w,-]+)\]", file.read_text()):
            named.update(names.split(","))
    assert named <= set(extras)
    assert named >= {"fast", "page", "tables", "live"}
    assert set(re.findall(r"[\w-]+", extras["all"][0])) - {"specmargin"} == set(extras) - {"all"}
    page = (ROOT / "docs" / "guide" / "install.md").read_text()
    assert all(f"| `{name}` |" in page for name in extras)
