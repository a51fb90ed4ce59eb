"""Bundled times of whole attention modules, by GPU (`lab/fits/modules.py` writes them).

`module_times.npz` has two entries per GPU: an index (JSON: engine, release, signature and axes of every module) and
the logarithms of all times in steps of 0.5%, one module after another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import as_file, files
from typing import Any

import numpy as np

from specmargin.prices.kernels.bounds import ModuleBounds, ModuleTimes
from specmargin.step import FloatArray

FILE = "module_times.npz"
LOG_STEP = 0.005
UNIT_SECONDS = 1e-7  # shorter than any module
MISSING = 0

Times = dict[tuple[str, str], ModuleTimes]  # by engine and signature


def module_bounds(gpu: str) -> ModuleBounds:
    return ModuleBounds(load=partial(module_times, gpu))


@cache
def module_times(gpu: str) -> Mapping[tuple[str, str], ModuleTimes]:
    with as_file(files("specmargin.catalog") / FILE) as path, np.load(path) as packed:
        if f"{gpu}.index" not in packed:
            return {}
        return unpacked(packed[f"{gpu}.index"], packed[f"{gpu}.times"])


def unpacked(index: np.ndarray[Any, Any], steps: np.ndarray[Any, Any]) -> Times:
    times: Times = {}
    start = 0
    for entry in json.loads(index.tobytes()):
        batch, context = np.array(entry["batch"]), np.array(entry["context"])
        end = start + batch.size * context.size
        times[entry["engine"], entry["signature"]] = ModuleTimes(
            version=entry["version"],
            batch=batch,
            context=context,
            seconds_by_batch_context=_seconds(steps[start:end]).reshape(batch.size, context.size),
        )
        start = end
    return times


def _seconds(steps: np.ndarray[Any, Any]) -> FloatArray:
    return np.where(steps == MISSING, np.nan, UNIT_SECONDS * np.exp(LOG_STEP * steps.astype(np.float64)))
