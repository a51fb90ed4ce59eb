"""`specmargin validate`: refusals and the figure. The numbers are tested in published/."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from tests.command_line import run
from tests.conftest import ROOT

MEASURED = "vllm-0.26-h200-qwen3-4b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "validate needs one or two price sources"),
        (("laws", "tables", "datasheet"), "validate needs one or two price sources"),
        ((MEASURED, "--plot", "out.gif"), "the name of a figure must end in .png"),
        ((MEASURED, "--plot", "nowhere/out.png"), "the folder nowhere does not exist"),
        (("everything",), "'everything' is not a price source"),
        (("speedups",), "Missing argument 'FILE.csv'; see `specmargin validate speedups --help`"),
        (("speedups", "absent.csv"), "absent.csv: cannot be read (no such file)"),
    ],
)
def test_invalid_arguments_are_refused_before_the_work(arguments: tuple[str, ...], message: str) -> None:
    assert message in run("validate", *arguments, code=2).err


def test_a_figure_is_overwritten_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "there.png"
    path.write_text("mine")
    assert "give --force" in run("validate", MEASURED, "--plot", str(path), code=2).err
    assert path.read_text() == "mine"


def test_steps_are_drawn_beside_every_source(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    path = tmp_path / "steps.json"
    table = run("validate", MEASURED, "laws", "--plot", str(path)).out
    spec = json.loads(path.read_text())
    rows = spec["datasets"]["rows"]
    assert {row["prices"] for row in rows} == {MEASURED, "laws", "datasheet"}
    own = [abs(row["predicted"] / row["measured"] - 1.0) for row in rows if row["prices"] == MEASURED]
    assert f"{median(own):.1%}" in table
    assert f"{MEASURED} {median(own):.1%}" in " ".join(spec["title"]["subtitle"])


@pytest.mark.parametrize("part", ["kernels", "modules", "steps", "rounds", "scaled", "served"])
def test_parts_that_moved_name_their_command(part: str) -> None:
    error = run("validate", part, code=2).err
    assert f"python -m lab.validation.{part}" in error
    assert "make lab" in error
    assert len(error.strip().splitlines()) <= 3  # one sentence, wrapped
    module = ROOT / "lab" / "validation" / part
    assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
