"""Write the rounds that the page shows beside their predictions, each model by a fit to the others, to the catalog.

python -m lab.fits.held_out_rounds            needs: pip install '.[tables]' scipy
python -m lab.fits.held_out_rounds --check    reports what would change
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from lab import CATALOG
from lab.terminal import parser, run
from lab.validation.rounds.measured import conditions, held_out_rounds
from specmargin.catalog.held_out_rounds import FILE

TARGET = CATALOG / FILE
COLUMNS = ("prices", "model", "batch", "depth", "measured_seconds", "predicted_seconds")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--check", action="store_true", help="compare with the bundled rounds instead of writing them")
    if options.parse_args().check:
        print("unchanged" if TARGET.read_text(encoding="utf-8") == text() else "would change")
    else:
        TARGET.write_text(text(), encoding="utf-8")


def text() -> str:
    """One round per line, for readable diffs."""
    rows = ",\n".join(f"  {json.dumps(row)}" for source in ("tables", "laws") for row in _rows(source))
    head = {
        "schema": "specmargin.held-out-rounds/1",
        "what": "Whole rounds on an H200, drafting included; the engine time of each model is fitted to the others",
        "engine": conditions().partition(";")[0],
        "columns": COLUMNS,
    }
    return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n'


def _rows(source: str) -> Iterator[tuple[str, str, int, int, float, float]]:
    for engine, predicted in held_out_rounds(source):
        for i in np.flatnonzero(engine.captured):
            depth = int(max(engine.depth[i], 0))
            seconds = (_rounded(engine.seconds[i]), _rounded(predicted[i]))
            yield (source, engine.model, int(engine.batch[i]), depth, *seconds)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.5g}")


if __name__ == "__main__":
    run(main)
