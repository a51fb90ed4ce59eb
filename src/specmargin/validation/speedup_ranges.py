"""80% ranges of predicted speed-ups: from each row's own prices, and with its source left out of what was fitted.

A range has two parts: a general error, which comes from published rows (`lab/fits/ranges.py`; from measured rounds on
GPUs that have them), and what is uncertain about the row's own components and its routing (`decisions/certainty.py`).
Acceptance is no part of it: a row is predicted with its measured accept length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.catalog.accuracy import LLAMACPP, OWN, ROUNDS, price_class, price_errors
from specmargin.prices.accuracy import PriceErrors
from specmargin.step import BoolArray, FloatArray
from specmargin.validation.speedups import PredictedPoint

#: 80% of the error of verify over plain steps that a datasheet adds to that of scaled laws, as a logarithm. The medians
#: over nine GPUs are 8.1% and 3.2% (`python -m lab.validation.scaled`): √(0.081² − 0.032²) · 1.2816 / 0.6745.
DATASHEET_EXTRA = 0.14
_HELD = 0.8
_OF_OTHER_ROWS = (OWN, ROUNDS, LLAMACPP)  # kinds of prices whose errors are fitted to none of the rows of the others


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
    return _ranges(rows, lambda row: price_errors(row.prices, row.pricer.scenario.device.name))


def left_out_ranges(rows: Sequence[PredictedPoint]) -> Ranges | None:
    """With the error of its kind of prices from the other sources alone; None where all rows are of one source.

    llama.cpp's errors are those that the catalog has without the row's source: few files hold several sources of it. So
    are those of rows to which no other source is left.
    """
    sources = dict.fromkeys(row.point.source for row in rows)
    if len(sources) < 2:
        return None
    fitted_to = [row for row in rows if kind_of(row) not in _OF_OTHER_ROWS]
    others = {name: [row for row in fitted_to if row.point.source != name] for name in sources}
    general = {name: general_errors(left) for name, left in others.items() if left}

    def errors(row: PredictedPoint) -> PriceErrors:
        fitted, kind = general.get(row.point.source), kind_of(row)
        if fitted is None or kind in _OF_OTHER_ROWS:
            return price_errors(row.prices, row.pricer.scenario.device.name, without=row.point.source)
        return widened(fitted, kind)

    return _ranges(rows, errors)


def kind_of(row: PredictedPoint) -> str:
    """How its prices are known."""
    return price_class(row.prices, row.pricer.scenario.device.name)


def general_errors(rows: Sequence[PredictedPoint]) -> PriceErrors:
    """The narrowest range that holds 80% of the rows, together with what is uncertain about each by itself.

    A source of n rows counts √n: its rows err alike. Rows on a GPU whose rounds were measured, and those that are
    mostly prefill, say nothing about the others. Kinds of prices differ by what is uncertain about their components.
    """
    kept = [row for row in rows if not row.is_prefill and kind_of(row) not in (OWN, ROUNDS)] or list(rows)
    error = np.array([np.log(row.point.speedup / row.speedup) for row in kept])
    rows_by_source = Counter(row.point.source for row in kept)
    weight = np.array([rows_by_source[row.point.source] ** -0.5 for row in kept])
    below, above = (np.array([row.doubt[side] for row in kept]) for side in (0, 1))
    low, high = narrowest(
        np.sqrt(np.maximum(np.minimum(error, 0.0) ** 2 - below**2, 0.0)),
        np.sqrt(np.maximum(np.maximum(error, 0.0) ** 2 - above**2, 0.0)),
        weight,
    )
    return PriceErrors(low=-low, high=high, source=f"{len(kept)} rows of {len(rows_by_source)} sources")


def narrowest(below: FloatArray, above: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """The smallest sum of two reaches that hold 80% of the weight: of values that need `below` or `above`."""
    found = []
    for low in np.unique(below):
        held = np.where(below <= low, weight, 0.0) / weight.sum()
        order = np.argsort(above)
        enough = np.flatnonzero(np.cumsum(held[order]) >= _HELD * (1.0 - 1e-12))
        if enough.size:
            found.append((float(low), float(above[order][enough[0]])))
    return min(found, key=sum)


def widened(errors: PriceErrors, kind: str) -> PriceErrors:
    """For a datasheet, none of whose components says how uncertain it is."""
    extra = DATASHEET_EXTRA if kind == "datasheet" else 0.0
    low, high = -float(np.hypot(errors.low, extra)), float(np.hypot(errors.high, extra))
    return PriceErrors(low=low, high=high, source=errors.source)


def _ranges(rows: Sequence[PredictedPoint], errors: Callable[[PredictedPoint], PriceErrors]) -> Ranges:
    measured, predicted = (
        np.array(values) for values in zip(*((r.point.speedup, r.speedup) for r in rows), strict=True)
    )
    kinds = [errors(row) for row in rows]
    below = np.hypot([min(kind.low, 0.0) for kind in kinds], [row.doubt[0] for row in rows])
    above = np.hypot([max(kind.high, 0.0) for kind in kinds], [row.doubt[1] for row in rows])
    low, high = predicted * np.exp(-below), predicted * np.exp(above)
    return Ranges(low=low, high=high, inside=np.asarray((low <= measured) & (measured <= high)))
