"""80% ranges of predicted speed-ups: from each row's own prices, and with its source left out of what was fitted.

A range has two parts: the error of prices of its kind, which comes from published rows (`lab/fits/ranges.py`), and what
is uncertain about the row's own components and its routing (`decisions/certainty.py`). Acceptance is no part of it: a
row is predicted with its measured accept length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.catalog.accuracy import price_class, price_errors
from specmargin.prices.accuracy import PriceErrors
from specmargin.step import BoolArray, FloatArray
from specmargin.validation.speedups import PredictedPoint

#: 80% of the error of verify over plain steps that a datasheet adds to that of scaled laws, as a logarithm. The medians
#: over nine GPUs are 8.1% and 3.2% (`python -m lab.validation.scaled`): √(0.081² − 0.032²) · 1.2816 / 0.6745.
DATASHEET_EXTRA = 0.14
_LEAST_SOURCES = 4  # of prices of one kind; with fewer, rows of every kind tell how wrong it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """80% ranges of the predicted speed-ups, in the order of the rows."""

    low: FloatArray
    high: FloatArray
    inside: BoolArray  # whether the measured speed-up is

    @property
    def median_width(self) -> float:
        """Median of high over low."""
        return float(np.median(self.high / self.low))


def own_ranges(rows: Sequence[PredictedPoint]) -> Ranges:
    """As `plan` gives them, with the measured acceptance."""
    return _ranges(rows, lambda row: price_errors(row.prices))


def left_out_ranges(rows: Sequence[PredictedPoint]) -> Ranges | None:
    """With the error of its kind of prices from the other sources alone; None where all rows are of one source."""
    sources = dict.fromkeys(row.point.source for row in rows)
    if len(sources) < 2:
        return None
    others = {name: [row for row in rows if row.point.source != name] for name in sources}
    by_key: dict[tuple[str, str], PriceErrors] = {}

    def errors(row: PredictedPoint) -> PriceErrors:
        key = row.point.source, price_class(row.prices)
        if key not in by_key:
            by_key[key] = errors_of_kind(others[key[0]], key[1])
        return by_key[key]

    return _ranges(rows, errors)


def fitted_errors(rows: Sequence[PredictedPoint]) -> PriceErrors:
    """What rows of one kind of prices err beyond what is uncertain about each by itself: 10% of them more on each side.

    A source of n rows counts √n: its rows err alike. Rows that are mostly prefill say nothing about the others.
    """
    kept = [row for row in rows if not row.is_prefill] or list(rows)
    error = np.array([np.log(row.point.speedup / row.speedup) for row in kept])
    rows_by_source = Counter(row.point.source for row in kept)
    weight = np.array([rows_by_source[row.point.source] ** -0.5 for row in kept])
    below, above = (np.array([row.doubt[side] for row in kept]) for side in (0, 1))
    low = np.sqrt(np.maximum(np.minimum(error, 0.0) ** 2 - below**2, 0.0))
    high = np.sqrt(np.maximum(np.maximum(error, 0.0) ** 2 - above**2, 0.0))
    return PriceErrors(
        low=-weighted_quantile(low, weight, 0.9),
        high=weighted_quantile(high, weight, 0.9),
        source=f"{len(kept)} rows of {len(rows_by_source)} sources",
    )


def weighted_quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(cumulative, share)), values.size - 1)])


def errors_of_kind(rows: Sequence[PredictedPoint], kind: str) -> PriceErrors:
    """From rows of this kind of prices; with few sources, from all rows, and wider for a datasheet."""
    alike = [row for row in rows if price_class(row.prices) == kind]
    if len({row.point.source for row in alike}) >= _LEAST_SOURCES:
        return fitted_errors(alike)
    of_all = fitted_errors(rows)
    extra = DATASHEET_EXTRA if kind == "datasheet" else 0.0
    low, high = -float(np.hypot(of_all.low, extra)), float(np.hypot(of_all.high, extra))
    return PriceErrors(low=low, high=high, source=of_all.source)


def _ranges(rows: Sequence[PredictedPoint], errors: Callable[[PredictedPoint], PriceErrors]) -> Ranges:
    measured, predicted = (
        np.array(values) for values in zip(*((r.point.speedup, r.speedup) for r in rows), strict=True)
    )
    kinds = [errors(row) for row in rows]
    below = np.hypot([min(kind.low, 0.0) for kind in kinds], [row.doubt[0] for row in rows])
    above = np.hypot([max(kind.high, 0.0) for kind in kinds], [row.doubt[1] for row in rows])
    low, high = predicted * np.exp(-below), predicted * np.exp(above)
    return Ranges(low=low, high=high, inside=np.asarray((low <= measured) & (measured <= high)))
