"""Rounds to replay: what the target would accept of each draft, and what the drafter's confidence says of it.

Every request starts at a random round of its category and goes on in order, so that streaks stay streaks; at the end of
the captured sequence it starts again. Curves are made into rounds beforehand, so that there is one path for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.errors import AcceptanceError
from specmargin.policies.tables import to_depth
from specmargin.step import FloatArray, IntArray

_DRAWN = 16_384  # rounds a category


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBank:
    """Rounds by sequence, sequences by category, all in order."""

    categories: tuple[str, ...]
    accepted: IntArray  # by round, at the full depth of the bank
    survival: FloatArray  # (round, depth): the signal that a policy sees
    first_by_round: IntArray  # where the sequence of a round begins
    length_by_round: IntArray  # rounds of it
    first_by_category: IntArray  # (categories + 1): rounds of a category are next to each other
    informative: bool  # whether the signal differs from round to round
    prior: FloatArray  # survival by depth, and signals of some rounds: what policies know beforehand
    sample: FloatArray
    source: str

    def __post_init__(self) -> None:
        if self.survival.shape[0] != self.accepted.size:
            raise AcceptanceError("a bank needs a signal for every round")
        for array in (self.accepted, self.survival, self.first_by_round, self.length_by_round, self.first_by_category):
            array.flags.writeable = False

    @property
    def depth(self) -> int:
        return int(self.survival.shape[1])

    def mean_accepted(self, depth: int) -> float:
        """Draft tokens that a round of this depth commits, over all rounds alike."""
        return float(np.minimum(self.accepted, depth).mean())

    def starts(self, category: IntArray, generator: np.random.Generator) -> IntArray:
        """A round to begin with, for each request."""
        first, last = self.first_by_category[category], self.first_by_category[category + 1]
        return np.asarray(first + (generator.random(category.size) * (last - first)).astype(np.int64))

    def deep(self, depth: int) -> RoundBank:
        """The same rounds with a signal of this depth: tokens beyond the bank are never accepted."""
        return replace(
            self,
            accepted=np.minimum(self.accepted, depth),
            survival=np.ascontiguousarray(to_depth(self.survival, depth)),
            prior=to_depth(self.prior[np.newaxis], depth)[0],
            sample=np.ascontiguousarray(to_depth(self.sample, depth)),
        )

    def only(self, names: Sequence[str]) -> RoundBank:
        """These categories, in this order."""
        places = [self.categories.index(name) for name in names]
        parts = [np.arange(self.first_by_category[at], self.first_by_category[at + 1]) for at in places]
        starts = np.concatenate([[0], np.cumsum([part.size for part in parts])])
        moved = [self.first_by_round[part] - part[0] + start for part, start in zip(parts, starts, strict=False)]
        chosen = np.concatenate(parts)
        return replace(
            self,
            categories=tuple(names),
            accepted=self.accepted[chosen],
            survival=np.ascontiguousarray(self.survival[chosen]),
            first_by_round=np.concatenate(moved),
            length_by_round=self.length_by_round[chosen],
            first_by_category=starts.astype(np.int64),
        )


def drawn_rounds(curves: Mapping[str, Survival], depth: int, *, seed: int = 0, rounds: int = _DRAWN) -> RoundBank:
    """From survival curves: every quantile of a curve exactly once, in random order, so that means are the curve's own.

    The signal is the curve itself: it knows the category of a sequence, and nothing of the round.
    """
    if not curves:
        raise AcceptanceError("rounds are drawn from at least one curve")
    generator = np.random.default_rng([seed, 7])
    accepted, survival = [], []
    for curve in curves.values():
        known = curve.at(depth)
        quantile = (generator.permutation(rounds) + 0.5) / rounds
        accepted.append((quantile[:, np.newaxis] < known).sum(axis=1))
        survival.append(np.broadcast_to(known, (rounds, depth)))
    count = len(curves)
    return RoundBank(
        categories=tuple(curves),
        accepted=np.concatenate(accepted).astype(np.int64),
        survival=np.concatenate(survival).astype(np.float64),
        first_by_round=np.repeat(np.arange(count) * rounds, rounds),
        length_by_round=np.full(count * rounds, rounds),
        first_by_category=np.arange(count + 1) * rounds,
        informative=False,
        prior=np.array(survival)[:, 0].mean(axis=0),
        sample=np.array(survival)[:, 0],
        source="; ".join(dict.fromkeys(f"rounds drawn from {curve.source}" for curve in curves.values())),
    )


def captured_rounds(
    categories: Sequence[str], sequence_by_round: IntArray, accepted: IntArray, survival: FloatArray, source: str
) -> RoundBank:
    """From a bank, in its order; `categories`: of each round."""
    names = tuple(dict.fromkeys(categories))
    place = {name: index for index, name in enumerate(names)}
    category = np.array([place[name] for name in categories])
    order = np.lexsort((np.arange(category.size), sequence_by_round, category))
    category, sequence = category[order], sequence_by_round[order]
    new = np.concatenate([[True], (np.diff(sequence) != 0) | (np.diff(category) != 0)])
    firsts = np.flatnonzero(new)
    which = np.cumsum(new) - 1
    lengths = np.diff(np.concatenate([firsts, [sequence.size]]))
    return RoundBank(
        categories=names,
        accepted=accepted[order].astype(np.int64),
        survival=np.ascontiguousarray(survival[order], dtype=np.float64),
        first_by_round=firsts[which],
        length_by_round=lengths[which],
        first_by_category=np.searchsorted(category, np.arange(len(names) + 1)),
        informative=True,
        prior=np.array([(accepted > d).mean() for d in range(survival.shape[1])]),
        sample=survival,
        source=source,
    )
