"""The calibrator compiled for an engine: confidences of a batch to survivals, by table look-up, without allocation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.acceptance.calibration import Logistic, hats, logit
from specmargin.compiling import fast_entry
from specmargin.errors import AcceptanceError
from specmargin.step import FloatArray, IntArray

_LEVELS = 1024  # of confidence, evenly spaced in log-odds
_RANGE = 9.3  # log-odds; confidences beyond it are clipped
_CURVE = 2048  # points of the sigmoid


class CalibratorTables(NamedTuple):
    """The look-up tables of `calibrated`."""

    base: FloatArray  # (depth, level): log-odds of acceptance
    levels: FloatArray  # of confidence, in log-odds
    level_of: IntArray  # index into `levels`, by confidence evenly spaced in 0..1
    curve: FloatArray  # the sigmoid
    history: float  # weight of a sequence's history
    later_history: float  # the same, beyond the first token
    mean_before: float  # weight of the mean confidence of the tokens before
    history_confidence: float  # weight of history times confidence

    @classmethod
    def nothing(cls) -> CalibratorTables:
        return cls(np.zeros((0, 0)), np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0), 0.0, 0.0, 0.0, 0.0)


class CompiledCalibrator:
    """Within 0.005 of the logistic model. A sequence's history is in log-odds, as in `history_of`."""

    def __init__(self, model: Logistic, max_batch: int) -> None:
        if not model.rich:
            raise AcceptanceError("only the rich calibrator is compiled")
        self.depths = model.depths
        levels = np.linspace(-_RANGE, _RANGE, _LEVELS)
        d, w = model.depths, model.weights
        intercept, slope, by_depth = w[:d], w[d], w[d + 1 : 2 * d + 1]
        knots, rest = w[2 * d + 1 : -4], w[-4:]
        curvature = hats(levels) @ knots
        grid = np.linspace(0.0, 1.0, 4 * _LEVELS + 1)
        self.tables = CalibratorTables(
            base=np.ascontiguousarray(
                intercept[:, np.newaxis] + (slope + by_depth[:, np.newaxis]) * levels / 4.0 + curvature
            ),
            levels=levels,
            # From confidence to level without a logarithm.
            level_of=np.round((logit(grid) + _RANGE) / (2 * _RANGE) * (_LEVELS - 1)).astype(np.int64),
            curve=1.0 / (1.0 + np.exp(-np.linspace(-12.0, 12.0, _CURVE))),
            history=float(rest[0]),
            later_history=float(rest[1]),
            mean_before=float(rest[2]) / 4.0,
            history_confidence=float(rest[3]) / 4.0,
        )
        self._survival = np.zeros(max_batch * model.depths)

    def survival(self, confidence: FloatArray, history: FloatArray) -> FloatArray:
        """(sequences, depth), valid until the next call; the caller has checked that confidences lie in 0..1."""
        # Contiguous at any width, so that one compiled signature serves all batches.
        out = self._survival[: confidence.size].reshape(confidence.shape)
        calibrated(confidence, history, self.tables, out)
        return out


@fast_entry
def calibrated(confidence: FloatArray, history: FloatArray, tables: CalibratorTables, out: FloatArray) -> None:
    """Fill `out` with survivals, by sequence and depth."""
    batch, depth = confidence.shape
    cells = tables.level_of.size - 1
    scale = (tables.curve.size - 1) / 24.0
    for i in range(batch):
        alive = 1.0
        before = 0.0
        for d in range(depth):
            level = tables.level_of[int(confidence[i, d] * cells + 0.5)]
            log_odds = tables.levels[level]
            z = tables.base[d, level] + history[i] * (tables.history + tables.history_confidence * log_odds)
            if d > 0:
                z += history[i] * tables.later_history + tables.mean_before * before / d
            alive *= tables.curve[int((min(max(z, -12.0), 12.0) + 12.0) * scale + 0.5)]
            out[i, d] = alive
            before += log_odds
