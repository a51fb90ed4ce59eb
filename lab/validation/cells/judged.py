"""Errors of predicted cells, and whether contestants are ranked as they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from lab.validation.cells.observed import FIGURES, Cell, depth_shares, figures
from lab.validation.cells.predicted import Prediction, Prices, predict
from specmargin.simulator.results import Slo

DEPTHS = "depths"  # misplaced time
RANKED = ("tok/s", "TPOT p50")
APART = 0.03  # measured difference from which on an order counts
_LEAST = {"waiting": 0.5}  # below it an error is a share of nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One cell: figures measured, and predicted by name of the prices."""

    cell: Cell
    measured: dict[str, float]
    shares: dict[int, float]
    predicted: dict[str, Prediction]

    def error(self, prices: str, figure: str) -> float:
        """Predicted over measured, less one; NaN where nothing was measured."""
        measured = self.measured[figure]
        if not measured > _LEAST.get(figure, 0.0):
            return float("nan")
        return self.predicted[prices].figures[figure] / measured - 1.0

    def misplaced(self, prices: str) -> float:
        """Share of the busy time that is predicted in another depth."""
        predicted = self.predicted[prices].depth_shares
        depths = self.shares.keys() | predicted.keys()
        return sum(abs(self.shares.get(k, 0.0) - predicted.get(k, 0.0)) for k in depths) / 2.0


def judge(cell: Cell, prices: Sequence[Prices], slo: Slo) -> Judged:
    return Judged(
        cell=cell,
        measured=figures(cell.played, cell.window, slo),
        shares=depth_shares(cell.played, cell.window),
        predicted={each.name: predict(cell, each, slo) for each in prices},
    )


def median_errors(cells: Sequence[Judged], prices: str) -> dict[str, float]:
    """Of absolute errors, by figure; NaN if no cell has it."""
    found = {name: np.abs([cell.error(prices, name) for cell in cells]) for name in FIGURES}
    found[DEPTHS] = np.array([cell.misplaced(prices) for cell in cells])
    return {
        name: float(np.nanmedian(errors)) if np.isfinite(errors).any() else float("nan")
        for name, errors in found.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Pairs of contestants at one load that differ by more than `APART`, and how many are predicted in that order. Of
    two folders, arrivals and lengths are drawn apart."""

    figure: str
    pairs: int
    right: int

    def __str__(self) -> str:
        return f"{self.figure}: {self.right} of {self.pairs}"


def rankings(cells: Sequence[Judged], prices: str) -> Iterator[Ranking]:
    for figure in RANKED:
        apart = [
            (one, other)
            for one, other in combinations(cells, 2)
            if one.cell.given["trace"] == other.cell.given["trace"]
            and one.cell.given["contestant"] != other.cell.given["contestant"]
            and abs(np.log(one.measured[figure] / other.measured[figure])) > np.log1p(APART)
        ]
        right = sum(
            (one.measured[figure] > other.measured[figure])
            == (one.predicted[prices].figures[figure] > other.predicted[prices].figures[figure])
            for one, other in apart
        )
        yield Ranking(figure=figure, pairs=len(apart), right=right)
