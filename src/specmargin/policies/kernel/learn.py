"""What a controller learns while it runs: small, bounded estimates that decay. Compiled, updated in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.compiler import compiled
from specmargin.policies.kernel.gains import GateGains
from specmargin.policies.kernel.times import Times
from specmargin.policies.kernel.tuning import Tuning
from specmargin.records import Rows, rows_of
from specmargin.step import FloatArray, IntArray

# Limits of arithmetic: texts that are exactly alike would be infinitely alike, and certain tokens have no variance.
_LEAST_EXCESS, _LEAST_TOKEN_VARIANCE = 0.01, 0.05


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
    """Everything that changes while a controller runs, and what it is tuned by."""

    tuning: Rows[Tuning]  # constant
    tried: FloatArray  # by depth: tokens reached, a decaying sum
    taken: FloatArray  # by depth: tokens accepted, a decaying sum
    recent: FloatArray  # (2, depth): both of the recent rounds only
    counts: FloatArray  # scratch: (2, depth), both of one step
    texts: Rows[Texts]
    times: Times
    credit: FloatArray  # by depth, from 0: tokens per token that knowing it better could have won since its last probe
    shift: FloatArray  # (1,): log-odds by which tokens are likelier to be accepted than their confidence says
    marks: Rows[Marks]
    guard: Rows[GuardSums]
    gate: GateGains

    @classmethod
    def nothing(
        cls, max_batch: int, max_depth: int, tuning: Rows[Tuning], *, times: bool = True, gated_batch: int = 0
    ) -> Learned:
        """`times`: prices will be corrected by the times of steps. `gated_batch`: sequences of the largest batch whose
        drafts are gated in the engine's workers."""
        start = Times.nothing if times else Times.as_priced
        return cls(
            tuning=tuning,
            tried=np.zeros(max_depth),
            taken=np.zeros(max_depth),
            recent=np.zeros((2, max_depth)),
            counts=np.zeros((2, max_depth)),
            texts=rows_of(Texts, square=tuning[0].first_square),
            times=start(max_batch, max_depth, tuning),
            credit=np.zeros(max_depth + 1),
            shift=np.zeros(1),
            marks=rows_of(Marks, depth=-1, state=-1, off_until=-1),
            guard=rows_of(GuardSums),
            gate=GateGains.nothing(gated_batch, max_depth, tuning[0].recent_rounds),
        )


# --- acceptance ---


@compiled
def learn_acceptance(learned: Learned, verified: IntArray, accepted: IntArray, unseen: FloatArray) -> None:
    """Rounds cut short are censored. `unseen`: tries and takes, by depth, that a gate expected of the drafts it left
    out; without them only confident drafts would count, and every depth would look better than it is."""
    tuning, tried, taken, recent = learned.tuning[0], learned.tried, learned.taken, learned.recent
    counts = learned.counts
    deepest = 0
    for i in range(verified.size):
        deepest = max(deepest, min(accepted[i] + 1, verified[i]))
    for depth in range(tried.size):
        tries, takes = unseen[0, depth], unseen[1, depth]
        rounds = verified.size if depth < deepest else 0
        for i in range(rounds):  # without a branch on the outcome, which would be mispredicted
            tries += 1.0 if depth < min(accepted[i] + 1, verified[i]) else 0.0
            takes += 1.0 if depth < accepted[i] else 0.0
        counts[0, depth], counts[1, depth] = tries, takes
    keep_recent = max(1.0 - tuning.recent_forgetting, 1.0 - verified.size / tuning.least_rounds)
    keep_long = 1.0 - (1.0 - keep_recent) / tuning.longer
    for depth in range(tried.size):
        tries = counts[0, depth]
        takes = min(counts[1, depth], tries)
        keep = keep_long if tries > 0 else 1.0 - tuning.untried_forgetting  # an untried depth decays slowly
        tried[depth] = keep * tried[depth] + tries
        taken[depth] = keep * taken[depth] + takes
        recent[0, depth] = keep_recent * recent[0, depth] + tries
        recent[1, depth] = keep_recent * recent[1, depth] + takes
    difference, deviation = _difference(learned)
    texts, square = learned.texts[0], (difference / deviation) ** 2 / _chance(learned)
    texts.square += (1.0 - keep_recent) / tuning.texts_slower * (min(square, tuning.largest_square) - texts.square)
    texts.window = verified.size / (1.0 - keep_recent)
    if abs(difference) > tuning.changed * deviation:
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
def _chance(learned: Learned) -> float:
    """What chance alone makes of the square of that difference, in variances: recent rounds are a part of all."""
    longer = learned.tuning[0].longer
    return 0.5 + 0.5 / longer - 2.0 / (1.0 + longer)


@compiled
def rounds_of_all(learned: Learned) -> float:
    """How many recent rounds the mean of all rounds counts for: few where texts differ by more than chance."""
    texts = learned.texts[0]
    return float(max(0.5 * texts.window / (_chance(learned) * max(texts.square - 1.0, _LEAST_EXCESS)), 1.0))


@compiled
def acceptance_shift(prior: FloatArray, learned: Learned) -> float:
    """How much likelier than the prior tokens were accepted, over all depths."""
    tries = takes = expected = 0.0
    for depth in range(prior.size):
        tries += learned.tried[depth]
        takes += learned.taken[depth]
        expected += learned.tried[depth] * prior[depth]
    return (takes + 1e-9) / max(expected, 1e-9) if tries > learned.tuning[0].shift_tries else 1.0


@compiled
def conditional_acceptance(prior: FloatArray, learned: Learned, depth: int, shift: float, rounds: float) -> float:
    """Acceptance of the token at `depth`, by the recent rounds, drawn towards the mean of all, which counts for
    `rounds` (as in empirical Bayes: the fewer, the more texts differ). Depths with few tries follow the shift of the
    others."""
    likely = min(max(prior[depth] * shift, 0.0), 0.999)
    prior_rounds = learned.tuning[0].prior_rounds
    mean = (learned.taken[depth] + prior_rounds * likely) / (learned.tried[depth] + prior_rounds)
    return float((learned.recent[1, depth] + rounds * mean) / (learned.recent[0, depth] + rounds))


# --- confidence ---


@compiled
def learn_shift(learned: Learned, expected: float, observed: float, tokens: float) -> None:
    """`expected`, `observed`: accepted tokens among `tokens` that were reached."""
    if tokens <= 0.0:
        return
    tuning, shift = learned.tuning[0], learned.shift
    spread = max(expected * (1.0 - expected / tokens), _LEAST_TOKEN_VARIANCE * tokens)
    step = tuning.shift_rate * (observed - expected) / (spread + tuning.shift_rounds)
    moved = (1.0 - tuning.shift_forgetting) * shift[0] + step
    shift[0] = min(max(moved, -tuning.largest_shift), tuning.largest_shift)
