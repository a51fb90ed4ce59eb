"""Fitting laws to measured rows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from specmargin.prices.kernels.law import Evidence, Law, Terms
from specmargin.step import BoolArray, FloatArray, IntArray

NAMES = tuple(field.name for field in fields(Law) if field.name != "evidence")
_FEATURES = tuple(field.name for field in fields(Terms))
_START = np.array([20e-6, 3e12, 5e14, 1e-7, 1e-8, 1e-12, 0.1])
_NEVER = 1e30  # the rate of a law that has no operations to fit one from


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Measured times with the features of a law, and which shape each row belongs to."""

    seconds: FloatArray
    terms: Terms
    shape: IntArray
    weight: FloatArray
    offset: FloatArray  # seconds that are in the measurement and priced elsewhere (a module's GEMMs)
    bandwidth_limit: float  # of the device: beyond it, the fit attributes something else to bandwidth
    crowding_limit: float = 0.25  # beyond it, a fit to a few shapes attributes compute to crowding

    def where(self, mask: BoolArray) -> Samples:
        return replace(
            self,
            seconds=self.seconds[mask],
            terms=Terms(**{name: _cut(getattr(self.terms, name), mask) for name in _FEATURES}),
            shape=self.shape[mask],
            weight=self.weight[mask],
            offset=_cut(self.offset, mask),
        )


def _cut(array: FloatArray, mask: BoolArray) -> FloatArray:
    return array if array.ndim == 0 else array[mask]


def fit(samples: Samples, evidence: Evidence) -> Law:
    """Minimise the robust relative error over a few non-negative numbers. Absent features are left out."""
    from scipy.optimize import least_squares  # noqa: PLC0415 (an extra)

    present = np.array([True, *(bool(np.any(getattr(samples.terms, name))) for name in _FEATURES)])
    root = np.sqrt(samples.weight)

    def law(logs: FloatArray) -> Law:
        values = np.zeros(len(NAMES))
        values[present] = _START[present] * np.exp(logs)
        if not present[2]:
            values[2] = _NEVER
        return Law(**dict(zip(NAMES, (float(v) for v in values), strict=True)), evidence=evidence)

    def residuals(logs: FloatArray) -> FloatArray:
        return np.asarray(root * np.log((law(logs).seconds(samples.terms) + samples.offset) / samples.seconds))

    upper = np.full(len(NAMES), 9.0)
    upper[1] = np.log(samples.bandwidth_limit / _START[1])
    upper[-1] = np.log(samples.crowding_limit / _START[-1])
    start = np.minimum(np.zeros(int(present.sum())), upper[present] - 0.1)
    result = least_squares(residuals, start, bounds=(-14.0, upper[present]), loss="soft_l1", f_scale=0.05)
    return law(result.x)
