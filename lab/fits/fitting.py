"""Laws with their evidence: errors on shapes that a fit has not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specmargin.prices.kernels.fit import NAMES, Samples, fit
from specmargin.prices.kernels.law import Evidence, Law
from specmargin.step import BoolArray, FloatArray


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
    rounded = {name: float(f"{getattr(law, name):.4g}") for name in NAMES}
    return Law(**rounded, evidence=evidence)


def write_or_compare(target: Path, text: str, *, compare: bool) -> None:
    if compare:
        print("unchanged" if target.read_text() == text else "would change")
    else:
        target.write_text(text)
