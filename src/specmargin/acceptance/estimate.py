"""Survival curves from rounds, with their uncertainty. Rounds cut short by a small depth are censored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.acceptance.bank import Rounds
from specmargin.acceptance.survival import EIGHTY_PERCENT, Survival, kaplan_meier
from specmargin.sources import Source, SourceKind
from specmargin.step import FloatArray

_GROUPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalEstimate:
    rounds: int
    survival: FloatArray
    standard_error: FloatArray  # over requests: rounds of the same request are correlated

    def curve(self, detail: str) -> Survival:
        error = EIGHTY_PERCENT * float(self.standard_error[0])
        source = Source(kind=SourceKind.MEASURED, detail=detail)
        return Survival(by_depth=self.survival, source=source, shift_range=(-error, error))


def survival_estimate(rounds: Rounds) -> SurvivalEstimate:
    """Product-limit (Kaplan-Meier): S_d is the product over depths of tokens accepted over tokens reached. Its error is
    a jackknife that leaves out one twentieth of the requests at a time."""
    whole = product_limit(rounds)
    groups = rounds.prompt_by_round % _GROUPS
    parts = [product_limit(rounds.chosen(groups != group)) for group in np.unique(groups) if (groups != group).any()]
    count = len(parts)
    error = np.zeros_like(whole)
    if count > 1:
        padded = np.array([np.pad(part, (0, whole.size - part.size)) for part in parts])
        error = np.sqrt((count - 1) / count * ((padded - padded.mean(axis=0)) ** 2).sum(axis=0))
    return SurvivalEstimate(rounds=rounds.count, survival=whole, standard_error=error)


def product_limit(rounds: Rounds) -> FloatArray:
    """Survival at depth 1, 2, …, to the deepest draft."""
    return kaplan_meier(rounds.accepted_by_round_depth, rounds.drafted_by_round)


def accepted_histogram(rounds: Rounds) -> FloatArray:
    """Share of rounds by accepted tokens, 0 to the depth."""
    counts = np.bincount(rounds.accepted_by_round, minlength=rounds.depth + 1)
    return np.asarray(counts / rounds.count)


def joint_table(rounds: Rounds, survival: FloatArray) -> FloatArray:
    """Share of rounds by accepted tokens (rows) and by the rounded number that the signal predicts (columns)."""
    predicted = np.clip(np.round(survival.sum(axis=1)), 0, rounds.depth).astype(np.int64)
    table = np.zeros((rounds.depth + 1, rounds.depth + 1))
    np.add.at(table, (rounds.accepted_by_round, predicted), 1.0 / rounds.count)
    return table
