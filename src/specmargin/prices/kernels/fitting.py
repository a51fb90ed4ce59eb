"""Fitting laws to measured rows, and their errors on held-out shapes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from specmargin.prices.kernels.law import Evidence, Law, Terms
from specmargin.step import BoolArray, FloatArray, IntArray

_NAMES = (
    "fixed_seconds",
    "bytes_per_second",
    "operations_per_second",
    "unit_seconds",
    "resident_seconds",
    "element_seconds",
    "crowding",
)
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
        terms = Terms(**{name: _cut(getattr(self.terms, name), mask) for name in _FEATURES})
        return Samples(
            seconds=self.seconds[mask],
            terms=terms,
            shape=self.shape[mask],
            weight=self.weight[mask],
            offset=_cut(self.offset, mask),
            bandwidth_limit=self.bandwidth_limit,
            crowding_limit=self.crowding_limit,
        )


_FEATURES = ("bytes", "operations", "units", "residents", "elements", "crowded")


def _cut(array: FloatArray, mask: BoolArray) -> FloatArray:
    return array if array.ndim == 0 else array[mask]


def fit(samples: Samples, evidence: Evidence) -> Law:
    """Minimise the robust relative error over a few non-negative numbers. Absent features are left out."""
    present = np.array([True, *(bool(np.any(getattr(samples.terms, name))) for name in _FEATURES)])
    root = np.sqrt(samples.weight)

    def law(logs: FloatArray) -> Law:
        values = np.zeros(len(_NAMES))
        values[present] = _START[present] * np.exp(logs)
        if not present[2]:
            values[2] = _NEVER
        return Law(**dict(zip(_NAMES, (float(v) for v in values), strict=True)), evidence=evidence)

    def residuals(logs: FloatArray) -> FloatArray:
        return np.asarray(root * np.log((law(logs).seconds(samples.terms) + samples.offset) / samples.seconds))

    upper = np.full(len(_NAMES), 9.0)
    upper[1] = np.log(samples.bandwidth_limit / _START[1])
    upper[-1] = np.log(samples.crowding_limit / _START[-1])
    start = np.minimum(np.zeros(int(present.sum())), upper[present] - 0.1)
    result = least_squares(residuals, start, bounds=(-14.0, upper[present]), loss="soft_l1", f_scale=0.05)
    return law(result.x)


def held_out_errors(samples: Samples, folds: int = 5, seed: int = 0) -> FloatArray:
    """Relative error of every row under a fit without its shape."""
    shapes, index = np.unique(samples.shape, return_inverse=True)
    fold_of_shape = np.random.default_rng(seed).permutation(shapes.size) % folds
    fold = fold_of_shape[index]
    no_evidence = Evidence(version="", rows=0, shapes=0, median_error=0.0, p90_error=0.0)
    errors = np.full(samples.seconds.size, np.nan)
    for held_out in range(min(folds, shapes.size)):
        test = fold == held_out
        law = fit(samples.where(~test), no_evidence)
        part = samples.where(test)
        errors[test] = (law.seconds(part.terms) + part.offset) / part.seconds - 1.0
    return errors


def fitted_law(samples: Samples, version: str, *, judged: BoolArray, note: str = "") -> Law:
    """A law with its evidence; errors are over the `judged` rows (the memory-bound ones)."""
    shapes = int(np.unique(samples.shape).size)
    errors = np.abs(held_out_errors(samples))[judged] if shapes > 1 else np.array([np.nan])
    evidence = Evidence(
        version=version,
        rows=int(samples.seconds.size),
        shapes=shapes,
        median_error=round(float(np.median(errors)), 4),
        p90_error=round(float(np.quantile(errors, 0.9)), 4),
        note=note,
    )
    law = fit(samples, evidence)
    rounded = {name: float(f"{getattr(law, name):.4g}") for name in _NAMES}
    return Law(**rounded, evidence=evidence)
