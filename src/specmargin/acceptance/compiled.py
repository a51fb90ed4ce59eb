"""The calibrator as an engine runs it: confidences of a batch into survivals, by table look-up, without allocating."""

from __future__ import annotations

import numba as nb
import numpy as np

from specmargin.acceptance.calibration import Logistic, hats, logit
from specmargin.errors import AcceptanceError
from specmargin.step import FloatArray, IntArray

_LEVELS = 1024  # of confidence, evenly spaced in log-odds
_RANGE = 9.3  # log-odds beyond which nothing changes
_CURVE = 2048  # of the sigmoid


class CompiledCalibrator:
    """Within 0.005 of the model it was made from. A sequence's history is given in log-odds, as `history_of` has it."""

    def __init__(self, model: Logistic, max_batch: int) -> None:
        if not model.rich:
            raise AcceptanceError("only the rich calibrator is compiled")
        self.depths = model.depths
        levels = np.linspace(-_RANGE, _RANGE, _LEVELS)
        d, w = model.depths, model.weights
        intercept, slope, by_depth = w[:d], w[d], w[d + 1 : 2 * d + 1]
        knots, rest = w[2 * d + 1 : -4], w[-4:]
        bent = hats(levels) @ knots
        self._base = np.ascontiguousarray(
            intercept[:, np.newaxis] + (slope + by_depth[:, np.newaxis]) * levels / 4.0 + bent
        )
        self._rest = np.array([rest[0], rest[1], rest[2] / 4.0, rest[3] / 4.0])
        self._levels = levels
        # From confidence to level without a logarithm.
        grid = np.linspace(0.0, 1.0, 4 * _LEVELS + 1)
        self._level_of = np.round((logit(grid) + _RANGE) / (2 * _RANGE) * (_LEVELS - 1)).astype(np.int64)
        self._curve = 1.0 / (1.0 + np.exp(-np.linspace(-12.0, 12.0, _CURVE)))
        self._survival = np.zeros(max_batch * model.depths)

    @property
    def tables(self) -> tuple[FloatArray, FloatArray, FloatArray, IntArray, FloatArray]:
        """What `calibrated` looks up in."""
        return self._base, self._rest, self._levels, self._level_of, self._curve

    def survival(self, confidence: FloatArray, history: FloatArray) -> FloatArray:
        """(sequences, depth), valid until the next call; the caller has checked that confidences lie in 0..1."""
        # Contiguous whatever the width, so that what is compiled for one batch is compiled for all.
        out = self._survival[: confidence.size].reshape(confidence.shape)
        calibrated(confidence, history, self.tables, out)
        return out


@nb.njit(cache=True, nogil=True, fastmath=True)
def calibrated(confidence, history, tables, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    base, rest, levels, level_of, curve = tables
    batch, depth = confidence.shape
    cells = level_of.size - 1
    scale = (curve.size - 1) / 24.0
    for i in range(batch):
        alive = 1.0
        before = 0.0
        for d in range(depth):
            level = level_of[int(confidence[i, d] * cells + 0.5)]
            at = levels[level]
            z = base[d, level] + history[i] * (rest[0] + rest[3] * at)
            if d > 0:
                z += history[i] * rest[1] + rest[2] * before / d
            place = int((min(max(z, -12.0), 12.0) + 12.0) * scale + 0.5)
            alive *= curve[place]
            out[i, d] = alive
            before += at
