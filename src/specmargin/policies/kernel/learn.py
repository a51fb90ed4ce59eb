"""What a controller learns while it runs: small, bounded estimates that decay. Compiled, updated in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.compiling import compiled
from specmargin.records import Rows, rows_of
from specmargin.step import FloatArray, IntArray

# Prices: decay per step, weight of the prior in steps (for an offset as large as a step; for a scale off by one), and
# the relative error above which a step counts less. An engine's fixed time is as likely to be off as its speed.
_PRICE_FORGETTING, _OFFSET_STEPS, _SCALE_STEPS, _OUTLIER = 0.995, 1.0, 0.4, 0.25
# Level: weight of the last step, and its range; a larger deviation is not the machine's speed.
_LEVEL_RATE, _FASTEST, _SLOWEST = 0.1, 0.5, 2.0
# Acceptance: decay per step for depths that were tried and for those that were not, the minimum number of rounds to
# remember (a small batch has few rounds per step, and noise would decide), and weight of the prior in rounds.
_FORGETTING, _UNTRIED, _LEAST_ROUNDS, _PRIOR_ROUNDS = 0.94, 0.985, 64.0, 8.0
# Confidence: how fast its shift is learned, how fast it decays, and its limit.
_SHIFT_RATE, _SHIFT_FORGETTING, _LARGEST_SHIFT = 0.5, 0.995, 4.0


class Correction:
    """Measured step seconds against the table: level · (offset + rest_scale · rest + expert_scale · experts).

    The level follows the machine's speed from step to step. It is the same at every depth, so it changes no decision.
    The other three say how steps of different shapes compare.
    """

    offset: float
    rest_scale: float
    expert_scale: float
    level: float


class Marks:
    """State of the controller. Steps are counted where a depth is chosen; −1: none."""

    depth: int  # the current one
    step: int
    off_until: int  # step at which drafting is tried again
    whole_until: int  # step at which gating is tried again
    whole_batch: int  # batch at which gating was suspended


class GuardSums:
    """Decaying sums over drafting steps: tokens committed, what plain decoding would have committed, squares."""

    committed: float
    plain: float
    squares: float
    steps: float


class GateSums:
    """Tokens gained over verifying whole drafts, minus the cost of gating; and steps."""

    net: float
    steps: float


class Learned(NamedTuple):
    """Everything that changes while a controller runs."""

    tried: FloatArray  # by depth: tokens reached, a decaying sum
    taken: FloatArray  # by depth: tokens accepted, a decaying sum
    normal: FloatArray  # (3, 3): normal equations of the correction
    right: FloatArray  # (3,)
    correction: Rows[Correction]
    shift: FloatArray  # (1,): log-odds by which tokens are likelier to be accepted than their confidence says
    marks: Rows[Marks]
    guard: Rows[GuardSums]
    gate: Rows[GateSums]

    @classmethod
    def nothing(cls, max_depth: int) -> Learned:
        return cls(
            tried=np.zeros(max_depth),
            taken=np.zeros(max_depth),
            normal=np.zeros((3, 3)),
            right=np.zeros(3),
            correction=rows_of(Correction, rest_scale=1.0, expert_scale=1.0, level=1.0),
            shift=np.zeros(1),
            marks=rows_of(Marks, depth=-1, off_until=-1, whole_until=-1),
            guard=rows_of(GuardSums),
            gate=rows_of(GateSums),
        )


# --- prices ---


@compiled
def corrected_seconds(learned: Learned, rest: float, experts: float) -> float:
    c = learned.correction[0]
    return c.level * (c.offset + c.rest_scale * rest + c.expert_scale * experts)


@compiled
def learn_prices(learned: Learned, rest: float, experts: float, seconds: float) -> None:
    """Decaying least squares, regularised to the prior (0, 1, 1); a step far from the expected time counts less."""
    normal, right, c = learned.normal, learned.right, learned.correction[0]
    shape = c.offset + c.rest_scale * rest + c.expert_scale * experts
    if not (0.0 < seconds < 100.0 and 0.0 < shape < 100.0):
        return
    # The mean of the first steps, then of the last ones.
    gain = max(_LEVEL_RATE, 1.0 / (1.0 + normal[0, 0] * shape**2))
    c.level = min(max(c.level * (seconds / (c.level * shape)) ** gain, _FASTEST), _SLOWEST)
    seconds /= c.level
    error = abs(seconds / shape - 1.0)
    weight = (1.0 if error <= _OUTLIER else _OUTLIER / error) / shape**2
    x = (1.0, rest, experts)
    for i in range(3):
        right[i] = _PRICE_FORGETTING * right[i] + weight * x[i] * seconds
        for j in range(3):
            normal[i, j] = _PRICE_FORGETTING * normal[i, j] + weight * x[i] * x[j]
    # Three equations, positive definite because of the prior: solved without pivoting or allocation.
    a00, a01, a02 = normal[0, 0] + _OFFSET_STEPS / shape**2, normal[0, 1], normal[0, 2]
    first, second = a01 / a00, a02 / a00
    a11, a12 = normal[1, 1] + _SCALE_STEPS - first * a01, normal[1, 2] - first * a02
    third = a12 / a11
    a22 = normal[2, 2] + _SCALE_STEPS - second * a02 - third * a12
    b1 = right[1] + _SCALE_STEPS - first * right[0]
    b2 = right[2] + _SCALE_STEPS - second * right[0] - third * b1
    z = b2 / a22
    y = (b1 - a12 * z) / a11
    offset = (right[0] - a01 * y - a02 * z) / a00
    c.offset = min(max(offset, -0.5 * shape), 5.0 * shape)
    c.rest_scale = min(max(y, 0.2), 5.0)
    c.expert_scale = min(max(z, 0.2), 5.0)


# --- acceptance ---


@compiled
def learn_acceptance(learned: Learned, verified: IntArray, accepted: IntArray, unseen: FloatArray) -> None:
    """Rounds cut short are censored. `unseen`: tries and takes, by depth, that a gate expected of the drafts it left
    out; without them only confident drafts would count, and every depth would look better than it is."""
    tried, taken = learned.tried, learned.taken
    remembered = max(_FORGETTING, 1.0 - verified.size / _LEAST_ROUNDS)
    for depth in range(tried.size):
        tries, takes = unseen[0, depth], unseen[1, depth]
        for i in range(verified.size):
            if verified[i] > depth and accepted[i] >= depth:
                tries += 1
            if accepted[i] > depth:
                takes += 1
        keep = remembered if tries > 0 else _UNTRIED  # an untried depth decays slowly
        tried[depth] = keep * tried[depth] + tries
        taken[depth] = keep * taken[depth] + min(takes, tries)


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
    """Acceptance of the token at `depth`; depths with few tries follow the shift of the others."""
    likely = min(max(prior[depth] * shift, 0.0), 0.999)
    return float((learned.taken[depth] + _PRIOR_ROUNDS * likely) / (learned.tried[depth] + _PRIOR_ROUNDS))


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
