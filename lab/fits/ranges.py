"""The errors of predicted speed-ups, by how prices are known: what the ranges of `plan` are made of.

    python -m lab.fits.ranges             # writes catalog/speedup_errors.json

Quantiles of ln(measured / predicted) over the published rows of lab/data, without those that are mostly prefill; a
source of n rows counts √n, because its rows err alike.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

from lab import CATALOG, SPEEDUPS
from specmargin.validation.points_schema import read_points
from specmargin.validation.speedups import predict, weighted_quantile

TARGET = CATALOG / "speedup_errors.json"
CLASSES = {"kernels": ("tables", "laws"), "scaled": ("scaled",), "datasheet": ("datasheet",)}


def main() -> None:
    rows = [row for row in predict(read_points(SPEEDUPS), SPEEDUPS.parent).predicted if not row.is_prefill]
    entries = {}
    for name, prices in CLASSES.items():
        chosen = [row for row in rows if row.prices in prices]
        error = np.array([np.log(row.point.speedup / row.speedup) for row in chosen])
        by_source = Counter(row.point.source for row in chosen)
        weight = np.array([by_source[row.point.source] ** -0.5 for row in chosen])
        low, high = (weighted_quantile(error, weight, share) for share in (0.1, 0.9))
        entries[name] = {"rows": len(chosen), "sources": len(by_source), "low": round(low, 3), "high": round(high, 3)}
    values = {
        "schema": "specmargin.speedup-errors/1",
        "what": "10th and 90th percentile of ln(measured / predicted speed-up), by how prices are known",
        "source": f"{len(rows)} published speed-ups (docs/results/speedups.md; lab/fits/ranges.py)",
        "classes": entries,
    }
    TARGET.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(entries))


if __name__ == "__main__":
    main()
