"""Rounds to replay: the tokens that the target accepts of each draft, and the signal that the policy sees.

Every request starts at a random round of its category and continues in order, which preserves correlation between
consecutive rounds; after the last round of the captured sequence it starts again. Rounds are drawn from survival curves
beforehand, so that curves and captures share one path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.errors import AcceptanceError
from specmargin.policies.tables import to_depth
from specmargin.step import FloatArray, IntArray

_DRAWN = 16_384  # rounds per category


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBank:
    """Rounds in order, grouped by sequence; sequences grouped by category."""

    categories: tuple[str, ...]
    accepted: IntArray  # by round, at the full depth of the bank
    survival: FloatArray  # (round, depth): the signal that a policy sees
    next_by_round: IntArray  # the round after it; after the last of its sequence, the first
    first_by_category: IntArray  # (categories + 1): rounds of a category are contiguous
    informative: bool  # whether the signal differs between rounds
    prior: FloatArray  # survival by depth, known to policies in advance
    sample: FloatArray  # (round, depth): signals known to policies in advance
    source: str

    def __post_init__(self) -> None:
        if self.survival.shape[0] != self.accepted.size:
            raise AcceptanceError("a round bank needs a signal for every round")
        for array in (self.accepted, self.survival, self.next_by_round, self.first_by_category):
            array.flags.writeable = False

    @property
    def depth(self) -> int:
        return int(self.survival.shape[1])

    def starts(self, category: IntArray, generator: np.random.Generator) -> IntArray:
        """A random first round for each request, by its category."""
        first, last = self.first_by_category[category], self.first_by_category[category + 1]
        return np.asarray(first + (generator.random(category.size) * (last - first)).astype(np.int64))

    def deep(self, depth: int) -> RoundBank:
        """The same rounds at this depth; tokens deeper than the bank are never accepted."""
        return replace(
            self,
            accepted=np.minimum(self.accepted, depth),
            survival=np.ascontiguousarray(to_depth(self.survival, depth)),
            prior=to_depth(self.prior[np.newaxis], depth)[0],
            sample=np.ascontiguousarray(to_depth(self.sample, depth)),
        )


def drawn_rounds(curves: Mapping[str, Survival], depth: int, *, seed: int = 0, rounds: int = _DRAWN) -> RoundBank:
    """Draw rounds from survival curves: every quantile once, in random order, so that means equal the curve.

    The signal is the curve itself: it depends on the category of a sequence, not on the round.
    """
    if not curves:
        raise AcceptanceError("drawing rounds needs at least one survival curve")
    generator = np.random.default_rng([seed, 7])
    accepted, survival = [], []
    for curve in curves.values():
        curve_survival = curve.up_to(depth)
        quantile = (generator.permutation(rounds) + 0.5) / rounds
        accepted.append((quantile[:, np.newaxis] < curve_survival).sum(axis=1))
        survival.append(np.broadcast_to(curve_survival, (rounds, depth)))
    count = len(curves)
    return RoundBank(
        categories=tuple(curves),
        accepted=np.concatenate(accepted).astype(np.int64),
        survival=np.concatenate(survival).astype(np.float64),
        next_by_round=_in_circles(np.arange(count) * rounds, count * rounds),
        first_by_category=np.arange(count + 1) * rounds,
        informative=False,
        prior=np.array(survival)[:, 0].mean(axis=0),
        sample=np.array(survival)[:, 0],
        source="; ".join(dict.fromkeys(f"rounds drawn from {curve.source}" for curve in curves.values())),
    )


def captured_rounds(
    categories: Sequence[str],
    sequence_by_round: IntArray,
    accepted: IntArray,
    survival: FloatArray,
    source: str,
    *,
    names: tuple[str, ...] = (),
) -> RoundBank:
    """Rounds of a captured bank, in its order. `categories`: of each round; `names`: those to keep, all if none."""
    names = names or tuple(dict.fromkeys(categories))
    index_by_name = {name: index for index, name in enumerate(names)}
    category = np.array([index_by_name.get(name, -1) for name in categories])
    order = np.lexsort((np.arange(category.size), sequence_by_round, category))
    order = order[category[order] >= 0]
    category, sequence = category[order], sequence_by_round[order]
    is_first = np.concatenate([[True], (np.diff(sequence) != 0) | (np.diff(category) != 0)])
    return RoundBank(
        categories=names,
        accepted=accepted[order].astype(np.int64),
        survival=np.ascontiguousarray(survival[order], dtype=np.float64),
        next_by_round=_in_circles(np.flatnonzero(is_first), sequence.size),
        first_by_category=np.searchsorted(category, np.arange(len(names) + 1)),
        informative=True,
        prior=np.array([(accepted > d).mean() for d in range(survival.shape[1])]),
        sample=survival,
        source=source,
    )


def _in_circles(firsts: IntArray, rounds: int) -> IntArray:
    """The round after each one, where sequences begin at `firsts`."""
    following = np.arange(1, rounds + 1)
    following[np.append(firsts[1:], rounds) - 1] = firsts
    return following
