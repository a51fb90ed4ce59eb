"""Write which kernels a measured step has verified, by GPU, engine and format, to the catalog.

python -m lab.fits.verified            # needs: pip install 'specmargin[tables]'

A format counts as verified on a GPU where whole steps of an engine agree with prices from tables: ten served rows or
more of one format with a median error of at most 15%, or this project's own steps within 10%.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from lab import CATALOG
from lab.terminal import parser, run
from lab.validation.precisions import measured_runs
from lab.validation.served.engine_time import left_out_seconds
from lab.validation.served.rows import served_rows
from lab.validation.served.tpot import predict
from specmargin.prices.kernels import store
from specmargin.prices.kernels.kinds import DTYPES

TARGET = CATALOG / "verified.json"
SERVED_ROWS, SERVED_ERROR, STEP_ERROR = 10, 0.15, 0.10
Entry = dict[str, Any]


def main() -> None:
    parser(__doc__).parse_args()
    entries = [*_served(), *_steps()]
    lines = ",\n".join("    " + json.dumps(entry) for entry in entries)
    TARGET.write_text(f'{{\n  "schema": "specmargin.verified/1",\n  "verified": [\n{lines}\n  ]\n}}\n')
    for entry in entries:
        print(*entry.values())


def _served() -> Iterator[Entry]:
    """Served rows, each with an engine time that was fitted without its model on its GPU."""
    predictions = predict(served_rows(), "tables").rows
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for prediction, seconds in zip(predictions, left_out_seconds(predictions), strict=True):
        row = prediction.row
        key = (row.device, row.engine, row.expert_weights or row.weights or "bfloat16")
        errors[key].append(abs(float(seconds) / row.tpot_seconds - 1.0))
    for (gpu, engine, dtype), found in sorted(errors.items()):
        median = float(np.median(found))
        if len(found) >= SERVED_ROWS and median <= SERVED_ERROR:
            yield _entry(gpu, engine, dtype, len(found), median, f"served rows of {store.release()}")


def _steps() -> Iterator[Entry]:
    for measured in measured_runs():
        errors = np.abs(measured.errors("tables"))
        if errors.max() <= STEP_ERROR:
            dtype = DTYPES[measured.weights][0]
            evidence = f"plain steps of vLLM 0.32, {measured.name}"
            yield _entry("h200", "vllm", dtype, errors.size, float(np.median(errors)), evidence)


def _entry(gpu: str, engine: str, dtype: str, rows: int, error: float, evidence: str) -> Entry:
    return {
        "gpu": gpu,
        "engine": engine,
        "dtype": dtype,
        "rows": rows,
        "median_error": round(error, 4),
        "evidence": evidence,
    }


if __name__ == "__main__":
    run(main)
