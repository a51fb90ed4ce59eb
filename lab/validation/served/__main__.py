"""Predicted time between tokens against 3,619 served rows that third parties measured, and against AIConfigurator.

python -m lab.validation.served                   by model, GPU and engine; under a minute
python -m lab.validation.served --peer 200        with AIConfigurator's own estimate of the same rows; ten minutes
python -m lab.validation.served --plot FILE       FILE.png, .svg, .html or .json
"""

from __future__ import annotations

from pathlib import Path

from lab.terminal import console, parser, run
from lab.validation.served.peer import aiconfigurator
from lab.validation.served.report import report
from specmargin.show.figures.files import check_target


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--peer", type=int, default=0, metavar="ROWS", help="needs: pip install aiconfigurator")
    options.add_argument("--seed", type=int, default=0, help="of the sample for --peer")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw predicted against measured")
    options.add_argument("--force", action="store_true", help="overwrite the figure")
    chosen = options.parse_args()
    if chosen.plot is not None:  # whatever could stop a long run is checked before it starts
        check_target(chosen.plot, force=chosen.force)
    if chosen.peer:
        aiconfigurator()
    report(console(), peer=chosen.peer, seed=chosen.seed, figure=chosen.plot)


if __name__ == "__main__":
    run(main)
