"""What a controller learns while it runs: each part small, bounded, and able to forget."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specmargin.step import FloatArray, IntArray

_UNTRIED = 0.985  # a step: beliefs about depths that nobody drafts


@dataclass(kw_only=True)
class PriceCorrection:
    """Measured step seconds against the table: an offset, and a scale for experts and for the rest.

    Least squares with forgetting, pulled to the prior (0, 1, 1); a step far off what was expected counts for less.
    """

    forgetting: float = 0.98
    prior_weight: float = 20.0  # steps
    outlier: float = 0.25  # relative error from which on a step loses weight
    _normal: FloatArray = field(default_factory=lambda: np.zeros((3, 3)))
    _right: FloatArray = field(default_factory=lambda: np.zeros(3))
    values: FloatArray = field(default_factory=lambda: np.array([0.0, 1.0, 1.0]))

    def seconds(self, rest: float, experts: float) -> float:
        return float(self.values[0] + self.values[1] * rest + self.values[2] * experts)

    def learn(self, rest: float, experts: float, seconds: float) -> None:
        expected = self.seconds(rest, experts)
        if not (0.0 < seconds < 100.0 and 0.0 < expected < 100.0):
            return
        error = abs(seconds / expected - 1.0)
        weight = (1.0 if error <= self.outlier else self.outlier / error) / expected**2
        x = np.array([1.0, rest, experts])
        self._normal = self.forgetting * self._normal + weight * np.outer(x, x)
        self._right = self.forgetting * self._right + weight * x * seconds
        pull = self.prior_weight * np.diag([25.0 / expected**2, 0.04, 0.04])  # an offset is the least likely
        found = np.linalg.solve(self._normal + pull, self._right + pull @ np.array([0.0, 1.0, 1.0]))
        self.values = np.clip(found, [-0.5 * expected, 0.2, 0.2], [5.0 * expected, 5.0, 5.0])


@dataclass(kw_only=True)
class AcceptanceTracker:
    """Conditional acceptance by depth, forgetting, pulled to a prior curve; rounds cut short are censored."""

    prior: FloatArray  # conditional acceptance by depth
    prior_rounds: float = 8.0
    forgetting: float = 0.94  # a step
    _tried: FloatArray = field(init=False)
    _taken: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._tried, self._taken = np.zeros(self.prior.size), np.zeros(self.prior.size)

    def learn(self, verified: IntArray, accepted: IntArray) -> None:
        depth = np.arange(self.prior.size)
        tried = ((verified[:, np.newaxis] > depth) & (accepted[:, np.newaxis] >= depth)).sum(axis=0)
        taken = (accepted[:, np.newaxis] > depth).sum(axis=0)
        keep = np.where(tried > 0, self.forgetting, _UNTRIED)  # what is not tried goes stale, slowly
        self._tried = keep * self._tried + tried
        self._taken = keep * self._taken + np.minimum(taken, tried)

    @property
    def conditional(self) -> FloatArray:
        """Depths that were hardly tried follow the shift of those that were."""
        shift = (self._taken.sum() + 1e-9) / max(float((self._tried * self.prior).sum()), 1e-9)
        likely = np.clip(self.prior * (shift if self._tried.sum() > 4 else 1.0), 0.0, 0.999)
        return np.asarray((self._taken + self.prior_rounds * likely) / (self._tried + self.prior_rounds))

    @property
    def survival(self) -> FloatArray:
        return np.asarray(np.cumprod(self.conditional), dtype=np.float64)


@dataclass(kw_only=True)
class ConfidenceShift:
    """How much likelier tokens are to be accepted than the profile says, in log-odds; forgets towards none."""

    rate: float = 0.5
    forgetting: float = 0.995
    value: float = 0.0

    def learn(self, expected: float, observed: float, tokens: float) -> None:
        """`expected`, `observed`: accepted tokens among `tokens` that were reached."""
        if tokens <= 0:
            return
        spread = max(expected * (1.0 - expected / tokens), 0.05 * tokens)
        step = self.rate * (observed - expected) / (spread + 8.0)
        self.value = float(np.clip(self.forgetting * self.value + step, -4.0, 4.0))
