"""What a controller learns while it runs: small, bounded estimates that decay. Compiled, updated in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.compiler import compiled
from specmargin.policies.kernel.gains import GateGains
from specmargin.policies.kernel.times import Times
from specmargin.records import Rows, rows_of
from specmargin.step import FloatArray, IntArray

# Acceptance: decay per step of the recent rounds, the minimum number of rounds in them (a small batch has few rounds,
# and noise would decide), how many times as long all rounds are remembered, decay per step for depths that were
# not tried, and weight of the prior in rounds.
_FORGETTING, _LEAST_ROUNDS, _LONGER, _UNTRIED, PRIOR_ROUNDS = 0.94, 64.0, 8.0, 0.998, 8.0
_CHANGED = 2.5  # standard deviations by which recent rounds differ from all of them where acceptance has changed
# How much acceptance differs from text to text: how many times slower it is learned than recent rounds are forgotten,
# its start, its limit, and what chance alone makes of a square (recent rounds are a part of all).
_TEXTS_SLOWER, _FIRST_SQUARE, _LARGEST_SQUARE = 32.0, 3.0, 25.0
_CHANCE = 0.5 + 0.5 / _LONGER - 2.0 / (1.0 + _LONGER)
# Confidence: how fast its shift is learned, how fast it decays, and its limit.
_SHIFT_RATE, _SHIFT_FORGETTING, _LARGEST_SHIFT = 0.5, 0.995, 4.0


class Marks:
    """State of the controller. Steps are counted where a depth is chosen; −1: none."""

    depth: int  # the current one
    step: int
    state: int  # of the learned times
    off_until: int  # step at which drafting is tried again


class Texts:
    """How much acceptance differs from text to text."""

    square: float  # of the difference between recent rounds and all, in variances of chance: 1 where texts are alike
    window: float  # rounds among the recent ones, at this batch


class GuardSums:
    """Decaying sums over gated steps: tokens committed, what plain decoding would have committed, squares."""

    committed: float
    plain: float
    squares: float
    steps: float


class Learned(NamedTuple):
    """Everything that changes while a controller runs."""

    tried: FloatArray  # by depth: tokens reached, a decaying sum
    taken: FloatArray  # by depth: tokens accepted, a decaying sum
    recent: FloatArray  # (2, depth): both of the recent rounds only
    texts: Rows[Texts]
    times: Times
    credit: FloatArray  # by depth, from 0: tokens per token that knowing it better could have won since its last probe
    shift: FloatArray  # (1,): log-odds by which tokens are likelier to be accepted than their confidence says
    marks: Rows[Marks]
    guard: Rows[GuardSums]
    gate: GateGains

    @classmethod
    def nothing(cls, max_depth: int, *, times: bool = True, gated_batch: int = 0) -> Learned:
        """`times`: prices will be corrected by the times of steps. `gated_batch`: sequences of the largest batch whose
        drafts are gated in the engine's workers."""
        return cls(
            tried=np.zeros(max_depth),
            taken=np.zeros(max_depth),
            recent=np.zeros((2, max_depth)),
            texts=rows_of(Texts, square=_FIRST_SQUARE),
            times=Times.nothing(max_depth) if times else Times.as_priced(max_depth),
            credit=np.zeros(max_depth + 1),
            shift=np.zeros(1),
            marks=rows_of(Marks, depth=-1, state=-1, off_until=-1),
            guard=rows_of(GuardSums),
            gate=GateGains.nothing(gated_batch, max_depth),
        )


# --- acceptance ---


@compiled
def learn_acceptance(learned: Learned, verified: IntArray, accepted: IntArray, unseen: FloatArray) -> None:
    """Rounds cut short are censored. `unseen`: tries and takes, by depth, that a gate expected of the drafts it left
    out; without them only confident drafts would count, and every depth would look better than it is."""
    tried, taken, recent = learned.tried, learned.taken, learned.recent
    keep_recent = max(_FORGETTING, 1.0 - verified.size / _LEAST_ROUNDS)
    keep_long = 1.0 - (1.0 - keep_recent) / _LONGER
    for depth in range(tried.size):
        tries, takes = unseen[0, depth], unseen[1, depth]
        for i in range(verified.size):
            if verified[i] > depth and accepted[i] >= depth:
                tries += 1
            if accepted[i] > depth:
                takes += 1
        takes = min(takes, tries)
        keep = keep_long if tries > 0 else _UNTRIED  # an untried depth decays slowly
        tried[depth] = keep * tried[depth] + tries
        taken[depth] = keep * taken[depth] + takes
        recent[0, depth] = keep_recent * recent[0, depth] + tries
        recent[1, depth] = keep_recent * recent[1, depth] + takes
    difference, deviation = _difference(learned)
    texts, square = learned.texts[0], (difference / deviation) ** 2 / _CHANCE
    texts.square += (1.0 - keep_recent) / _TEXTS_SLOWER * (min(square, _LARGEST_SQUARE) - texts.square)
    texts.window = verified.size / (1.0 - keep_recent)
    if abs(difference) > _CHANGED * deviation:
        for depth in range(tried.size):
            tried[depth], taken[depth] = recent[0, depth], recent[1, depth]


@compiled
def _difference(learned: Learned) -> tuple[float, float]:
    """By how many accepted tokens the recent rounds differ from all of them, and its standard deviation."""
    difference = variance = 0.0
    for depth in range(learned.tried.size):
        if learned.tried[depth] > 0.0:
            share = learned.taken[depth] / learned.tried[depth]
            difference += learned.recent[1, depth] - learned.recent[0, depth] * share
            variance += learned.recent[0, depth] * share * (1.0 - share)
    return difference, np.sqrt(variance + 1.0)


@compiled
def _rounds_of_all(learned: Learned) -> float:
    """How many recent rounds the mean of all rounds counts for: few where texts differ by more than chance."""
    texts = learned.texts[0]
    return float(max(0.5 * texts.window / (_CHANCE * max(texts.square - 1.0, 0.01)), 1.0))


@compiled
def acceptance_shift(prior: FloatArray, learned: Learned) -> float:
    """How much likelier than the prior tokens were accepted, over all depths."""
    tries = takes = expected = 0.0
    for depth in range(prior.size):
        tries += learned.tried[depth]
        takes += learned.taken[depth]
        expected += learned.tried[depth] * prior[depth]
    return (takes + 1e-9) / max(expected, 1e-9) if tries > 4 else 1.0


@compiled
def conditional_acceptance(prior: FloatArray, learned: Learned, depth: int, shift: float) -> float:
    """Acceptance of the token at `depth`, by the recent rounds, drawn towards the mean of all (as in empirical Bayes:
    the less, the more texts differ). Depths with few tries follow the shift of the others."""
    likely = min(max(prior[depth] * shift, 0.0), 0.999)
    mean = (learned.taken[depth] + PRIOR_ROUNDS * likely) / (learned.tried[depth] + PRIOR_ROUNDS)
    rounds = _rounds_of_all(learned)
    return float((learned.recent[1, depth] + rounds * mean) / (learned.recent[0, depth] + rounds))


# --- confidence ---


@compiled
def learn_shift(learned: Learned, expected: float, observed: float, tokens: float) -> None:
    """`expected`, `observed`: accepted tokens among `tokens` that were reached."""
    if tokens <= 0.0:
        return
    shift = learned.shift
    spread = max(expected * (1.0 - expected / tokens), 0.05 * tokens)
    step = _SHIFT_RATE * (observed - expected) / (spread + 8.0)
    shift[0] = min(max(_SHIFT_FORGETTING * shift[0] + step, -_LARGEST_SHIFT), _LARGEST_SHIFT)


@compiled
def shift_survival(survival: FloatArray, by: float) -> None:
    """Every token's odds times e^by, in place."""
    if by == 0.0:
        return
    odds = np.exp(-by)
    for i in range(survival.shape[0]):
        before, alive = 1.0, 1.0
        for d in range(survival.shape[1]):
            p = min(max(survival[i, d] / max(before, 1e-12), 1e-6), 1.0 - 1e-6)
            before = survival[i, d]
            alive *= 1.0 / (1.0 + (1.0 - p) / p * odds)
            survival[i, d] = alive
