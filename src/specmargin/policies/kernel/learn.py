"""What a controller learns while it runs: each part small, bounded, and able to forget. Compiled; changed in place.

The functions take plain arrays, so that an engine's plug-in and the simulator run the very same code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specmargin.compiling import compiled
from specmargin.step import FloatArray, IntArray

# Prices: forgetting a step, weight of the prior in steps (on an offset as large as a step; on a scale off by one), and
# the relative error from which on a step counts for less. An engine's fixed time is as likely to be off as its speed.
_PRICE_FORGETTING, _OFFSET_STEPS, _SCALE_STEPS, _OUTLIER = 0.995, 1.0, 0.4, 0.25
# Level: the weight of the last step in it, and within what it may be: what is further off is no mood of the machine.
_LEVEL_RATE, _FASTEST, _SLOWEST = 0.1, 0.5, 2.0
# Acceptance: forgetting a step where a depth was tried and where nobody tried it, rounds that are remembered at least
# (few sequences make few rounds a step, and chance would choose), and weight of the prior in rounds.
_FORGETTING, _UNTRIED, _LEAST_ROUNDS, _PRIOR_ROUNDS = 0.94, 0.985, 64.0, 8.0
# Confidence: how fast its shift is learned, and how it goes back to none.
_SHIFT_RATE, _SHIFT_FORGETTING, _LARGEST_SHIFT = 0.5, 0.995, 4.0


@dataclass(kw_only=True)
class PriceCorrection:
    """Measured step seconds against the table: an offset, a scale for experts and for the rest, and a level of it all.

    The level follows the machine from step to step and changes no decision: it is the same at every depth. The others
    say how steps of different kinds compare, and are learned from that: least squares with forgetting, pulled to the
    prior (0, 1, 1); a step far off what was expected counts for less.
    """

    normal: FloatArray = field(default_factory=lambda: np.zeros((3, 3)))
    right: FloatArray = field(default_factory=lambda: np.zeros(3))
    values: FloatArray = field(default_factory=lambda: np.array([0.0, 1.0, 1.0, 1.0]))

    def seconds(self, rest: float, experts: float) -> float:
        return float(corrected_seconds(self.values, rest, experts))

    def learn(self, rest: float, experts: float, seconds: float) -> None:
        learn_prices(self.normal, self.right, self.values, rest, experts, seconds)


@dataclass(kw_only=True)
class AcceptanceTracker:
    """Conditional acceptance by depth, forgetting, pulled to a prior curve; rounds cut short are censored."""

    prior: FloatArray  # conditional acceptance by depth
    tried: FloatArray = field(init=False)
    taken: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.tried, self.taken = np.zeros(self.prior.size), np.zeros(self.prior.size)

    def learn(self, verified: IntArray, accepted: IntArray) -> None:
        learn_acceptance(self.tried, self.taken, verified, accepted, np.zeros((2, self.prior.size)))

    @property
    def conditional(self) -> FloatArray:
        known = (self.prior, self.tried, self.taken)
        shift = acceptance_shift(*known)
        return np.array([conditional_acceptance(*known, depth, shift) for depth in range(self.prior.size)])

    @property
    def survival(self) -> FloatArray:
        return np.asarray(np.cumprod(self.conditional), dtype=np.float64)


@dataclass(kw_only=True)
class ConfidenceShift:
    """How much likelier tokens are to be accepted than the profile says, in log-odds; forgets towards none."""

    held: FloatArray = field(default_factory=lambda: np.zeros(1))

    @property
    def value(self) -> float:
        return float(self.held[0])

    def learn(self, expected: float, observed: float, tokens: float) -> None:
        """`expected`, `observed`: accepted tokens among `tokens` that were reached."""
        learn_shift(self.held, expected, observed, tokens)


# --- compiled ---


@compiled
def corrected_seconds(values, rest, experts):  # type: ignore[no-untyped-def]  # Numba reads the types
    return values[3] * (values[0] + values[1] * rest + values[2] * experts)


@compiled
def learn_prices(normal, right, values, rest, experts, seconds):  # type: ignore[no-untyped-def]
    shape = values[0] + values[1] * rest + values[2] * experts
    if not (0.0 < seconds < 100.0 and 0.0 < shape < 100.0):
        return
    # The mean of the first steps, then of the last ones.
    gain = max(_LEVEL_RATE, 1.0 / (1.0 + normal[0, 0] * shape**2))
    values[3] = min(max(values[3] * (seconds / (values[3] * shape)) ** gain, _FASTEST), _SLOWEST)
    seconds /= values[3]
    error = abs(seconds / shape - 1.0)
    weight = (1.0 if error <= _OUTLIER else _OUTLIER / error) / shape**2
    x = (1.0, rest, experts)
    for i in range(3):
        right[i] = _PRICE_FORGETTING * right[i] + weight * x[i] * seconds
        for j in range(3):
            normal[i, j] = _PRICE_FORGETTING * normal[i, j] + weight * x[i] * x[j]
    # Three equations, positive definite thanks to the prior: no pivoting, no memory.
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
    values[0] = min(max(offset, -0.5 * shape), 5.0 * shape)
    values[1] = min(max(y, 0.2), 5.0)
    values[2] = min(max(z, 0.2), 5.0)


@compiled
def learn_acceptance(tried, taken, verified, accepted, unseen):  # type: ignore[no-untyped-def]
    """`unseen`: tries and takes, by depth, that a gate expected of the drafts it left out. Without them only drafts
    that it was sure of would count, and every depth would look better than it is."""
    remembered = max(_FORGETTING, 1.0 - verified.size / _LEAST_ROUNDS)
    for depth in range(tried.size):
        tries, takes = unseen[0, depth], unseen[1, depth]
        for i in range(verified.size):
            if verified[i] > depth and accepted[i] >= depth:
                tries += 1
            if accepted[i] > depth:
                takes += 1
        keep = remembered if tries > 0 else _UNTRIED  # what is not tried goes stale, slowly
        tried[depth] = keep * tried[depth] + tries
        taken[depth] = keep * taken[depth] + min(takes, tries)


@compiled
def acceptance_shift(prior, tried, taken):  # type: ignore[no-untyped-def]
    """How much likelier than the prior tokens were accepted, over all depths."""
    tries = takes = expected = 0.0
    for depth in range(prior.size):
        tries += tried[depth]
        takes += taken[depth]
        expected += tried[depth] * prior[depth]
    return (takes + 1e-9) / max(expected, 1e-9) if tries > 4 else 1.0


@compiled
def conditional_acceptance(prior, tried, taken, depth, shift):  # type: ignore[no-untyped-def]
    """Of the token at `depth`; depths that were hardly tried follow the shift of those that were."""
    likely = min(max(prior[depth] * shift, 0.0), 0.999)
    return (taken[depth] + _PRIOR_ROUNDS * likely) / (tried[depth] + _PRIOR_ROUNDS)


@compiled
def learn_shift(held, expected, observed, tokens):  # type: ignore[no-untyped-def]
    if tokens <= 0.0:
        return
    spread = max(expected * (1.0 - expected / tokens), 0.05 * tokens)
    step = _SHIFT_RATE * (observed - expected) / (spread + 8.0)
    held[0] = min(max(_SHIFT_FORGETTING * held[0] + step, -_LARGEST_SHIFT), _LARGEST_SHIFT)
