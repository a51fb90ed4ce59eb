"""`specmargin validate`: parts, figure and refusals. The numbers are tested in published/."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specmargin.figures.files import save
from specmargin.figures.validation import predicted_against_measured
from specmargin.hardware.layout import Layout
from specmargin.validation.report import ServedReport
from specmargin.validation.served import ServedRow
from tests.command_line import payload, run


def test_steps_alone() -> None:
    result = payload("validate", "steps")
    assert result["schema"] == "specmargin.validate/1"
    assert {line["source"] for line in result["steps"]} == {"tables", "laws", "datasheet"}
    shown = run("validate", "steps").out
    assert "vLLM 0.26.0" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_kernels_name_their_misses() -> None:
    shown = run("validate", "kernels").out
    assert "miss the target (rows: median ≤ 3%" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("steps", "--plot", "out.png"), "add `served`"),
        (("served", "--plot", "out.gif"), "the name of a figure must end in .png"),
        (("served", "--plot", "nowhere/out.png"), "the folder nowhere does not exist"),
        (("everything",), "'everything'"),
    ],
)
def test_invalid_arguments_are_refused_before_the_work(arguments: tuple[str, ...], message: str) -> None:
    assert message in run("validate", *arguments, code=2).err


def test_a_figure_is_overwritten_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "there.png"
    path.write_text("mine")
    assert "give --force" in run("validate", "served", "--plot", str(path), code=2).err
    assert path.read_text() == "mine"


@pytest.mark.parametrize("ending", ["png", "svg", "html", "json"])
def test_the_figure_is_drawn_in_every_format_without_a_network(tmp_path: Path, ending: str) -> None:
    rows = tuple(_row(index) for index in range(4))
    measured = np.array([row.tpot_seconds for row in rows])
    report = ServedReport(
        rows=rows,
        measured_seconds=measured,
        predicted_seconds={"tables": measured * 1.1, "datasheet": measured * 0.4},
        refused={},
        moe_rows=4,
    )
    path = tmp_path / f"figure.{ending}"
    save(predicted_against_measured(report).chart(), path)
    assert path.stat().st_size > 1000
    if ending == "html":
        assert "cdn" not in path.read_text().partition("<body")[0].lower()


def _row(index: int) -> ServedRow:
    return ServedRow(
        identity=str(index),
        model="deepseek-ai/DeepSeek-R1",
        engine="vllm",
        version="",
        device="h200",
        weights="fp8",
        expert_weights="fp8",
        input_tokens=1024,
        output_tokens=1024,
        concurrency=8,
        layout=Layout(gpus=8),
        tpot_seconds=0.01 * (index + 1),
    )
