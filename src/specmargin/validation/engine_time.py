"""What served rows take beyond their kernels, by engine: a constant, a part per sequence and a part per layer.

Fitted numbers are judged where they were not fitted: every row under a fit that saw nothing of its model on its GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from specmargin.step import BoolArray, FloatArray
from specmargin.validation.tpot import Prediction

_ROUNDS = 40
_FLOOR = 0.02  # relative error below which a row has no more say


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """Seconds a step, a sequence and a layer, and how far they move when one model on one GPU is left out."""

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
        ours = data.engine == engine
        inside = ours & (data.group == group)
        seconds[inside] += data.features[inside] @ _fit(data, ours & (data.group != group))
    return seconds


def engine_fits(predictions: Sequence[Prediction]) -> list[EngineFit]:
    """The numbers that are shipped: fitted to all rows of an engine."""
    data = _data(predictions)
    return [_engine_fit(data, str(engine)) for engine in np.unique(data.engine)]


def _engine_fit(data: _Data, engine: str) -> EngineFit:
    ours = data.engine == engine
    best = _fit(data, ours)
    without = np.array([_fit(data, ours & (data.group != group)) for group in np.unique(data.group[ours])])
    return EngineFit(
        engine=engine,
        rows=int(ours.sum()),
        step_seconds=float(best[0]),
        sequence_seconds=float(best[1]),
        layer_seconds=float(best[2]),
        lowest=_three(without.min(axis=0)),
        highest=_three(without.max(axis=0)),
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
    """Non-negative numbers with the least absolute relative error, by reweighting; nothing where there are no rows."""
    if not rows.any():
        return np.zeros(data.features.shape[1])
    measured, features = data.measured[rows], data.features[rows]
    missing = measured - data.kernels[rows]
    weight = np.ones(measured.size)
    found = np.zeros(features.shape[1])
    for _ in range(_ROUNDS):
        scale = weight / measured
        found, _ = nnls(features * scale[:, np.newaxis], missing * scale)
        error = np.abs(features @ found - missing) / measured
        weight = 1.0 / np.sqrt(np.maximum(error, _FLOOR))
    return np.asarray(found)
