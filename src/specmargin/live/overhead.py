"""What the plug-in adds to whole rounds, measured in the running engine.

The time of the plug-in's own code is not what it adds: with async scheduling most of that code runs while the GPU is
busy. So, once in a few hundred rounds, a handful of rounds run without that code, at the depth that was chosen last
(*bare* rounds), and their time is compared with the rounds before and after them. Only rounds without prompts count, at
the same depth and with (nearly) as many sequences: probes and joining requests are left out, and a change for good ends
the comparison. The median of many comparisons has an interval by the sign test, without assumptions on how step times
vary.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean
from typing import NamedTuple

_LEVEL = 0.05
_FEWEST = 6  # comparisons for an interval of 95%
_KEPT = 101  # comparisons
_MOST_ROUNDS = 64  # that bare rounds, or those after them, may take to come together
_BATCHES_APART = 32  # sequences may change by one in so many


class Shape(NamedTuple):
    """Rounds of the same shape take the same time, but for the number of sequences."""

    verified: int  # positions per sequence
    drafted: int  # tokens at the end of the round
    gated: bool


class Difference(NamedTuple):
    """Time of a round with the plug-in over that of one without, minus one: median and interval."""

    ratio: float
    low: float
    high: float
    comparisons: int


class Comparisons:
    """Collects rounds and decides which are bare."""

    def __init__(self, *, window: int = 8, every: int = 512) -> None:
        """`window`: rounds of each kind that are compared, a multiple of those that are learned from at once. `every`:
        rounds between comparisons."""
        self.window, self.every = window, every
        self.bare = False  # whether the next round should run without the plug-in's work
        self.shape: Shape | None = None  # of the rounds that are compared
        self._ratios: deque[float] = deque(maxlen=_KEPT)
        self._since = 0
        self._restart(None, 0)

    def _restart(self, shape: Shape | None, batch: int) -> None:
        self.bare = False
        self.shape, self._batch, self._waited, self._votes = shape, batch, 0, 0
        self._before: deque[float] = deque(maxlen=self.window)
        self._without: list[float] = []
        self._after: list[float] = []

    def add(self, seconds: float, shape: Shape | None, batch: int, *, bare: bool | None) -> bool:
        """A finished round; whether it completed a comparison. `shape` None: it had prompts or unequal drafts. `bare`
        None: only a part of the plug-in's work fell into it."""
        self._since += 1
        if self._without or self.bare:
            self._waited += 1
            if self._waited > _MOST_ROUNDS:
                self._restart(None, 0)
        if shape is None or bare is None or math.isnan(seconds):
            return False
        if shape != self.shape or abs(batch - self._batch) * _BATCHES_APART > self._batch:
            self._votes -= 1
            if self._votes > 0:
                return False
            self._restart(shape, batch)
        self._votes = min(self._votes + 1, self.window)  # a shape that most rounds have stays
        return self._count(seconds, bare=bare)

    def _count(self, seconds: float, *, bare: bool) -> bool:
        if self.bare:
            if bare:
                self._without.append(seconds)
                self.bare = len(self._without) < self.window
            return False
        if bare:  # one more than was asked for
            return False
        if not self._without:
            self._before.append(seconds)
            self.bare = self._since >= self.every and len(self._before) == self.window
            return False
        self._after.append(seconds)
        if len(self._after) < self.window:
            return False
        self._ratios.append((fmean(self._before) + fmean(self._after)) / (2.0 * fmean(self._without)) - 1.0)
        self._since = 0
        self._restart(self.shape, self._batch)
        return True

    def difference(self) -> Difference | None:
        """None: too few comparisons for an interval."""
        ordered = sorted(self._ratios)
        count = len(ordered)
        if count < _FEWEST:
            return None
        rank = _rank(count)
        middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2.0
        return Difference(middle, ordered[rank], ordered[count - 1 - rank], count)


def _rank(count: int) -> int:
    """How many values may lie outside of the interval on each side: the median lies beyond more of them with less than
    half of the level."""
    outside, rank = 0.5**count, 0
    while outside + math.comb(count, rank + 1) * 0.5**count <= _LEVEL / 2.0:
        rank += 1
        outside += math.comb(count, rank) * 0.5**count
    return rank
