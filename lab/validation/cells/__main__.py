"""`simulate` against the cells of a recorded server: throughput, latencies, queue, time in each depth, ranking.

    python -m lab.validation.cells lab/data/measurements/served-cpu
    python -m lab.validation.cells FOLDER [FOLDER …] --prices FILE --launch-microseconds 63.5 --write --plot FILE.png
    python -m lab.validation.cells FOLDER [FOLDER …] --corrected CALIBRATIONS

FOLDER is what `python -m lab.gpu.served play` or `python -m lab.live.served` wrote. Cells are predicted from bundled
prices, or those that their folder holds; nothing is fitted to them. --prices, --launch-microseconds and --corrected add
predictions with what was measured outside of the cells. Tables of several folders are written where the page has
those of the first.
"""

from __future__ import annotations

from pathlib import Path

from lab.terminal import console, parser, run, tracked
from lab.validation.cells.judged import judge
from lab.validation.cells.observed import read_cells
from lab.validation.cells.predicted import Prices
from lab.validation.cells.report import figure, show, write_page
from specmargin.errors import InputError
from specmargin.show.figures.files import check_target, save
from specmargin.simulator.results import Slo


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    options.add_argument("--prices", type=Path, metavar="FILE", help="of `measure vllm`")
    options.add_argument(
        "--launch-microseconds", type=float, metavar="µs", help="per kernel launch of the server's host"
    )
    options.add_argument("--corrected", type=Path, metavar="CALIBRATIONS", help="by other steps of such servers")
    options.add_argument("--ttft-slo", type=float, default=500.0, metavar="MS", help="target of goodput; default 500")
    options.add_argument("--tpot-slo", type=float, default=30.0, metavar="MS", help="target of goodput; default 30")
    options.add_argument("--write", action="store_true", help="the tables into docs/results/served.md")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw predicted against measured")
    options.add_argument("--force", action="store_true", help="overwrite the figure")
    chosen = options.parse_args()
    if chosen.plot is not None:
        check_target(chosen.plot, force=chosen.force)
    slo = Slo(ttft_seconds=chosen.ttft_slo / 1e3, tpot_seconds=chosen.tpot_slo / 1e3)
    cells = [cell for folder in chosen.folders for cell in read_cells(folder)]
    prices = _prices(chosen.prices, chosen.launch_microseconds)
    if chosen.corrected is not None:
        prices += corrected_prices(chosen.corrected)
    judged = [judge(cell, prices, slo) for cell in tracked("cells", cells)]
    show(console(), judged, slo)
    if chosen.write:
        write_page(judged, slo, chosen.folders[0].resolve().name)
    if chosen.plot is not None:
        command = f"python -m lab.validation.cells {' '.join(folder.name for folder in chosen.folders)}"
        save(figure(judged, prices[-1].name, command).chart(), chosen.plot)


def _prices(file: Path | None, launch_microseconds: float | None) -> list[Prices]:
    found = [Prices(name="the cells' own")]
    if launch_microseconds is not None:
        if not 0.0 < launch_microseconds < 1e4:
            raise InputError(f"--launch-microseconds: must be above 0 and below 10,000, got {launch_microseconds:g}")
        named = f"the same with {launch_microseconds:g} µs per launch"
        found.append(Prices(name=named, launch_seconds=launch_microseconds * 1e-6))
    if file is not None:
        found.append(Prices(name=f"measured ({file.name})", file=file))
    return found


def corrected_prices(calibrations: Path) -> list[Prices]:
    around = "corrected by other steps of such servers, launches as just before and after the cell"
    lease = "the same, launches as in all looks at that host"
    return [
        Prices(name=around, corrected=calibrations),
        Prices(name=lease, corrected=calibrations, all_looks=True),
    ]


if __name__ == "__main__":
    run(main)
