"""Draw the figures of docs/results/measured-steps.md from the measurements in the catalog.

python -m lab.validation.draw_measured FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt

from lab.terminal import parser, run
from specmargin.catalog.prices import measured_file
from specmargin.errors import CatalogError
from specmargin.prices.measured_schema import PriceFile
from specmargin.show.figures.files import save

MOE, DENSE = "vllm-0.26-h200-qwen3-30b-a3b", "vllm-0.26-h200-qwen3-4b"
_DEPTHS = ("#555555", "#92c5de", "#2166ac", "#053061")
_WIDTH, _HEIGHT = 300, 240


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path)
    folder: Path = options.parse_args().folder
    files = {"Qwen3-30B-A3B (MoE)": _file(MOE), "Qwen3-4B (dense)": _file(DENSE)}
    save(relative_figure(files), folder / "measured-relative.png")
    for name, target in ((MOE, "measured-residuals.png"), (DENSE, "measured-residuals-dense.png")):
        drawn = ["validate", name, "laws", "--plot", str(folder / target), "--force"]
        subprocess.run([sys.executable, "-m", "specmargin", *drawn], check=True)


def _file(name: str) -> PriceFile:
    file = measured_file(name)
    if file is None:
        raise CatalogError(f"{name} is not in the catalog")
    return file


def relative_figure(files: Mapping[str, PriceFile]) -> alt.HConcatChart:
    """Step time relative to plain decoding at batch 1, by batch: one panel per model, one line per depth."""
    rows_by_title = {title: _relative_rows(file) for title, file in files.items()}
    highest = max(value["relative"] for values in rows_by_title.values() for value in values) * 1.1
    panels = [_relative_panel(title, values, highest) for title, values in rows_by_title.items()]
    title = alt.TitleParams(
        "Measured step time relative to plain decoding of one sequence",
        subtitle="forced drafts of independent tokens, context about 550, full graphs; vLLM 0.26, H200, dummy weights",
    )
    styled: alt.HConcatChart = alt.HConcatChart(hconcat=panels, title=title).configure_title(anchor="start")
    return styled


def _relative_rows(file: PriceFile) -> list[dict[str, Any]]:
    shortest = min(row.prompt for row in file.rows)
    rows = [
        row
        for row in file.rows
        if row.kind in ("none", "strangers") and row.prompt == shortest and row.graph == "full" and row.run != "pieces"
    ]
    one = next(row.seconds for row in rows if row.batch == 1 and row.kind == "none")
    return [{"batch": row.batch, "depth": row.depth, "relative": row.seconds / one} for row in rows]


def _relative_panel(title: str, values: list[dict[str, Any]], highest: float) -> alt.Chart:
    batches = sorted({value["batch"] for value in values})
    depths = sorted({value["depth"] for value in values})
    panel: alt.Chart = (
        alt.Chart(
            alt.InlineData(values=values),
            width=_WIDTH,
            height=_HEIGHT,
            title=alt.TitleParams(title, fontSize=12),
        )
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "batch:Q",
                scale=alt.Scale(type="log", base=2, nice=False, padding=8),
                axis=alt.Axis(values=batches),
                title="sequences",
            ),
            y=alt.Y("relative:Q", scale=alt.Scale(domain=[0, highest]), title="step time, relative"),
            color=alt.Color(
                "depth:O", scale=alt.Scale(domain=depths, range=list(_DEPTHS[: len(depths)])), title="draft depth"
            ),
        )
    )
    return panel


if __name__ == "__main__":
    run(main)
