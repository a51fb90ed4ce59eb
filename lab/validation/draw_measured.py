"""Draw the figures of docs/results/measured-steps.md from the measurements in the catalog.

python -m lab.validation.draw_measured FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from specmargin.catalog.prices import measured_file
from specmargin.cli.validate_sources import compare_sources
from specmargin.errors import CatalogError
from specmargin.figures.files import save
from specmargin.figures.measured import relative_figure
from specmargin.prices.measured_schema import PriceFile

MOE, DENSE = "vllm-0.26-h200-qwen3-30b-a3b", "vllm-0.26-h200-qwen3-4b"


def main(folder: Path) -> None:
    files = {"Qwen3-30B-A3B (MoE)": _file(MOE), "Qwen3-4B (dense)": _file(DENSE)}
    save(relative_figure(files), folder / "measured-relative.png")
    for name, target in ((MOE, "measured-residuals.png"), (DENSE, "measured-residuals-dense.png")):
        compare_sources([name, "laws"], model=None, gpu="h200", figure=folder / target, force=True, json=False)


def _file(name: str) -> PriceFile:
    file = measured_file(name)
    if file is None:
        raise CatalogError(f"{name} is not in the catalog")
    return file


if __name__ == "__main__":
    main(Path(sys.argv[1]))
