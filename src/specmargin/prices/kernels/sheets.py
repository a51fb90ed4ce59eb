"""Ratios of measured to predicted time, interpolated over batch and context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.step import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Ratio of measured to predicted time, interpolated at this shape, and the measurements behind it ("" for none)."""

    factor: FloatArray | float = 1.0
    label: str = ""


NO_CORRECTION = Correction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Log ratios over two axes (batch, context); missing points take the nearest measured ones."""

    log_batch: FloatArray
    log_context: FloatArray
    log_ratio: FloatArray

    @classmethod
    def of(cls, batch: FloatArray, context: FloatArray, ratio_by_batch_context: FloatArray) -> Sheet:
        """NaN where a point was not measured; at least two points on each axis."""
        filled = filled_along_last(np.log(ratio_by_batch_context))
        return cls(log_batch=np.log(batch), log_context=np.log(context + 1.0), log_ratio=filled)

    def interpolate(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        b, c = np.log(np.maximum(batch, 1e-9)), np.log(context + 1.0)
        i, u = cell(self.log_batch, b)
        j, v = cell(self.log_context, c)
        r = self.log_ratio
        low = (1 - v) * r[i, j] + v * r[i, j + 1]
        high = (1 - v) * r[i + 1, j] + v * r[i + 1, j + 1]
        return np.asarray((1 - u) * low + u * high)


def cell(axis: FloatArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """Index of the cell and the fraction inside it, clamped to the ends."""
    index = np.clip(np.searchsorted(axis, value, side="right") - 1, 0, axis.size - 2)
    fraction = (value - axis[index]) / (axis[index + 1] - axis[index])
    return index, np.clip(fraction, 0.0, 1.0)


def filled_along_last(values: FloatArray) -> FloatArray:
    """Missing entries from their neighbours along the last axis; rows without any entry get no correction."""
    flat = values.reshape(-1, values.shape[-1]).copy()
    position = np.arange(values.shape[-1])
    for index in np.flatnonzero(np.isnan(flat).any(axis=1)):
        present = ~np.isnan(flat[index])
        flat[index] = np.interp(position, position[present], flat[index, present]) if present.any() else 0.0
    return flat.reshape(values.shape)
