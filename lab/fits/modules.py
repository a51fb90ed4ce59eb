"""Pack the measured times of whole attention modules into the catalog: what a sum of their parts never exceeds.

python -m lab.fits.modules            # needs: pip install 'specmargin[tables]'
python -m lab.fits.modules --check    # packs again and reports what would change
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from rich.progress import track

from lab import CATALOG
from lab.tables.modules import measured_times
from lab.terminal import parser, run
from specmargin.catalog.module_bounds import FILE, LOG_STEP, MISSING, UNIT_SECONDS, Times
from specmargin.prices.kernels import store
from specmargin.step import FloatArray

TARGET = CATALOG / FILE


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--check", action="store_true", help="compare with the shipped times instead of writing them")
    arguments = options.parse_args()
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for gpu in track(store.SYSTEMS, description="packing"):
        times = measured_times(gpu)
        if times:
            arrays[f"{gpu}.index"], arrays[f"{gpu}.times"] = packed(times)
    if arguments.check:
        print("unchanged" if _is_shipped(arrays) else "would change")
    else:
        np.savez_compressed(TARGET, allow_pickle=False, **arrays)


def packed(times: Times) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Index and times of one GPU, as arrays of bytes and of 16-bit numbers."""
    index = [
        {
            "engine": engine,
            "version": module.version,
            "signature": signature,
            "batch": module.batch.tolist(),
            "context": module.context.tolist(),
        }
        for (engine, signature), module in times.items()
    ]
    steps = [_steps(module.seconds_by_batch_context).ravel() for module in times.values()]
    return np.frombuffer(json.dumps(index).encode(), np.uint8), np.concatenate(steps)


def _steps(seconds: FloatArray) -> np.ndarray[Any, Any]:
    """Rounded down: a bound is never above what was measured."""
    steps = np.floor(np.log(np.maximum(np.nan_to_num(seconds), UNIT_SECONDS) / UNIT_SECONDS) / LOG_STEP)
    return np.asarray(np.where(np.isnan(seconds), MISSING, steps).astype(np.uint16))


def _is_shipped(arrays: dict[str, np.ndarray[Any, Any]]) -> bool:
    with np.load(TARGET) as shipped:
        return set(shipped) == set(arrays) and all(np.array_equal(shipped[name], arrays[name]) for name in arrays)


if __name__ == "__main__":
    run(main)
