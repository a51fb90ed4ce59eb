"""Engine time of served rows beyond their kernels, by engine: a constant, a part per sequence and a part per layer.

The fits are validated out of sample: every row is predicted by a fit without the rows of its model on its GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from lab.validation.served.tpot import Prediction
from specmargin.step import BoolArray, FloatArray

_ITERATIONS = 40
_ERROR_FLOOR = 0.02  # relative errors below it weigh the same


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """Seconds per step, sequence and layer, and their ranges when any one model on one GPU is left out."""

    engine: str
    rows: int
    step_seconds: float
    sequence_seconds: float
    layer_seconds: float
    lowest: tuple[float, float, float]
    highest: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Data:
    measured: FloatArray
    kernels: FloatArray
    features: FloatArray  # rows × (1, sequences, layers)
    engine: np.ndarray[tuple[int], np.dtype[np.str_]]
    group: np.ndarray[tuple[int], np.dtype[np.str_]]


def left_out_seconds(predictions: Sequence[Prediction]) -> FloatArray:
    """Time between tokens of every row, with engine time from rows of other models or other GPUs only."""
    data = _data(predictions)
    seconds = data.kernels.copy()
    for engine, group in sorted({(str(e), str(g)) for e, g in zip(data.engine, data.group, strict=True)}):
        of_engine = data.engine == engine
        of_group = of_engine & (data.group == group)
        seconds[of_group] += data.features[of_group] @ _fit(data, of_engine & (data.group != group))
    return seconds


def engine_fits(predictions: Sequence[Prediction]) -> list[EngineFit]:
    """The bundled numbers: fitted to all rows of an engine."""
    data = _data(predictions)
    return [_engine_fit(data, str(engine)) for engine in np.unique(data.engine)]


def _engine_fit(data: _Data, engine: str) -> EngineFit:
    of_engine = data.engine == engine
    best = _fit(data, of_engine)
    left_out_fits = np.array(
        [_fit(data, of_engine & (data.group != group)) for group in np.unique(data.group[of_engine])]
    )
    return EngineFit(
        engine=engine,
        rows=int(of_engine.sum()),
        step_seconds=float(best[0]),
        sequence_seconds=float(best[1]),
        layer_seconds=float(best[2]),
        lowest=_three(left_out_fits.min(axis=0)),
        highest=_three(left_out_fits.max(axis=0)),
    )


def _three(values: FloatArray) -> tuple[float, float, float]:
    return float(values[0]), float(values[1]), float(values[2])


def _data(predictions: Sequence[Prediction]) -> _Data:
    return _Data(
        measured=np.array([p.row.tpot_seconds for p in predictions]),
        kernels=np.array([p.kernel_seconds for p in predictions]),
        features=np.array([(1.0, p.sequences, p.layers) for p in predictions]),
        engine=np.array([p.row.engine for p in predictions]),
        group=np.array([f"{p.row.family} {p.row.device}" for p in predictions]),
    )


def _fit(data: _Data, rows: BoolArray) -> FloatArray:
    """Non-negative coefficients with the least absolute relative error, by iterated reweighting; zeros without rows."""
    if not rows.any():
        return np.zeros(data.features.shape[1])
    measured, features = data.measured[rows], data.features[rows]
    unexplained = measured - data.kernels[rows]
    weight = np.ones(measured.size)
    coefficients = np.zeros(features.shape[1])
    for _ in range(_ITERATIONS):
        scale = weight / measured
        coefficients, _ = nnls(features * scale[:, np.newaxis], unexplained * scale)
        error = np.abs(features @ coefficients - unexplained) / measured
        weight = 1.0 / np.sqrt(np.maximum(error, _ERROR_FLOOR))
    return np.asarray(coefficients)
