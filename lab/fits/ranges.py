"""The errors of predicted speed-ups, by how prices are known: what the ranges of `plan` are made of.

    python -m lab.fits.ranges             # writes catalog/speedup_errors.json

The narrowest range of ln(measured / predicted) that holds 80% of the published rows of lab/data, beside what is
uncertain about the components and the routing of each row; without rows that are mostly prefill, those of one box, and
those on GPUs whose rounds were measured (their error comes from those). A source of n rows counts √n, because its rows
err alike. A datasheet is wider, by what it adds to the error of scaled laws. `python -m lab.validation.speedups` shows
how many rows the ranges hold if the errors come from the other sources alone.
"""

from __future__ import annotations

import json

from lab import CATALOG, MORE_SPEEDUPS, ONE_BOX, SPEEDUPS
from specmargin.prices.accuracy import PriceErrors
from specmargin.validation.points_schema import read_points
from specmargin.validation.speedup_ranges import general_errors, kind_of, widened
from specmargin.validation.speedups import PredictedPoint, predict

TARGET = CATALOG / "speedup_errors.json"
CLASSES = ("kernels", "scaled", "datasheet")


def main() -> None:
    rows = [row for file in (SPEEDUPS, MORE_SPEEDUPS) for row in predict(read_points(file), file.parent).predicted]
    rows = [row for row in rows if not row.is_prefill and row.point.source not in ONE_BOX and kind_of(row) in CLASSES]
    errors = general_errors(rows)
    entries = {name: _entry(rows, name, widened(errors, name)) for name in CLASSES}
    values = {
        "schema": "specmargin.speedup-errors/1",
        "what": "the narrowest range of ln(measured / predicted speed-up) that holds 80%, by how prices are known",
        "source": f"{len(rows)} published speed-ups (docs/results/speedups.md; lab/fits/ranges.py)",
        "classes": entries,
    }
    TARGET.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(entries))


def _entry(rows: list[PredictedPoint], kind: str, errors: PriceErrors) -> dict[str, float]:
    alike = [row for row in rows if kind_of(row) == kind]
    sources = len({row.point.source for row in alike})
    return {"rows": len(alike), "sources": sources, "low": round(errors.low, 3), "high": round(errors.high, 3)}


if __name__ == "__main__":
    main()
