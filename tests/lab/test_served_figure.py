"""The figure of served rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lab.validation.served.errors import ServedReport
from lab.validation.served.figure import predicted_against_measured
from lab.validation.served.rows import ServedRow

from specmargin.hardware.layout import Layout
from specmargin.show.figures.files import save


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
        prompt_tokens=1024,
        output_tokens=1024,
        concurrency=8,
        layout=Layout(gpus=8),
        tpot_seconds=0.01 * (index + 1),
        ttft_seconds=1.0,
    )
