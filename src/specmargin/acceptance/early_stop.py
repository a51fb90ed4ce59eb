"""Drafts that stop early: at the first token whose confidence is below a threshold, as llama.cpp's `--draft-p-min`.

Two curves describe them: the probability that a draft reaches depth d, and that it does and all d tokens are accepted.
A bank with confidences gives both. Without confidences they are assumed: at each depth, given the tokens before it, the
confidence has a Beta distribution whose mean is the acceptance there; it is calibrated (a token of confidence c is
accepted with probability c); and it does not depend on earlier confidences.

The concentration of that Beta distribution is that of the only captured confidences at hand (16,864 rounds of a draft
model of a small MoE; by depth 0.61 to 0.65). In these rounds real drafts of at most 3 are longer than assumed by 0.09
tokens at a threshold of 0.5, 0.13 at 0.75 and 0.15 at 0.9, and drafts of at most 8 by 0.11, 0.36 and 0.42, because
confidences of one round resemble each other. An over-confident drafter gains less from stopping than assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmargin.acceptance.survival import Survival, kaplan_meier
from specmargin.errors import AcceptanceError
from specmargin.sources import Source, SourceKind, assumed
from specmargin.step import FloatArray

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds

CONCENTRATION = 0.6
_EDGE = 1e-6  # mean acceptances are clipped to _EDGE..1 - _EDGE
_POINTS = 4001  # of an integral


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    p_min: float
    drafted: Survival  # by depth d: the draft has at least d tokens
    accepted: Survival  # by depth d: it has, and the target accepts them all
    source: Source

    def __post_init__(self) -> None:
        if not 0.0 <= self.p_min < 1.0:
            raise AcceptanceError(
                f"the confidence at which drafts stop must be at least 0 and below 1, got {self.p_min:g}"
            )

    def mean_drafted(self, depth: int) -> float:
        """Tokens per draft of at most `depth`."""
        return self.mean_drafted_by_depth(depth)[-1]

    def mean_drafted_by_depth(self, depth: int) -> tuple[float, ...]:
        """The same for every depth from 0 on."""
        return tuple(self.drafted.accepted_by_depth(depth).tolist())


def assumed_stop(survival: Survival, p_min: float) -> EarlyStop:
    """Early stop under an acceptance without confidences."""
    before = np.concatenate([[1.0], survival.by_depth[:-1]])
    acceptance = np.divide(survival.by_depth, before, out=np.zeros_like(before), where=before > 0)
    passing, passing_accepted = np.array([_above(float(mean), p_min) for mean in acceptance]).T
    source = assumed(
        f"confidences calibrated, Beta-distributed with concentration {CONCENTRATION:g} around the acceptance at each "
        "depth, independent; give a bank with confidences as --acceptance"
    )
    return _stop(p_min, np.cumprod(passing), np.cumprod(passing_accepted), source)


def _above(mean: float, p_min: float) -> tuple[float, float]:
    """The probability that a confidence reaches `p_min`, and that it does and the token is accepted.

    Integrals over log-odds z from the threshold up and down, where the density is x^a (1 − x)^b with x = σ(z).
    """
    if p_min == 0.0:
        return 1.0, mean
    clipped = min(max(mean, _EDGE), 1.0 - _EDGE)
    a, b = CONCENTRATION * clipped, CONCENTRATION * (1.0 - clipped)
    threshold = np.log(p_min / (1.0 - p_min))
    away = np.sinh(np.linspace(0.0, np.arcsinh(40.0 / min(a, b)), _POINTS))
    weights, means = [], []
    for direction in (1.0, -1.0):
        z = threshold + direction * away
        log_x, log_rest = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
        density = np.exp(a * log_x + b * log_rest)
        weights.append(_integral(density, away))
        means.append(_integral(density * np.exp(log_x), away))
    total = weights[0] + weights[1]
    return weights[0] / total, means[0] / total


def _integral(values: FloatArray, at: FloatArray) -> float:
    return float(((values[1:] + values[:-1]) / 2.0 * np.diff(at)).sum())


def stop_of_rounds(rounds: Rounds, p_min: float) -> EarlyStop:
    """Early stop in captured rounds, with their confidences. Rounds that drafted less are censored at their depth."""
    if not rounds.has_confidence:
        raise AcceptanceError(f"{rounds.source}: has no confidences, which --draft-p-min needs")
    confident = np.logical_and.accumulate(rounds.confidence_by_round_depth >= p_min, axis=1)
    accepted = rounds.accepted_by_round_depth
    source = Source(kind=SourceKind.MEASURED, detail=f"confidences of {rounds.count:,} rounds of {rounds.source}")
    drafted = kaplan_meier(confident, rounds.drafted_by_round)
    return _stop(p_min, drafted, kaplan_meier(confident & accepted, rounds.drafted_by_round), source)


def _stop(p_min: float, drafted: FloatArray, accepted: FloatArray, source: Source) -> EarlyStop:
    return EarlyStop(
        p_min=p_min,
        drafted=Survival(by_depth=np.minimum(drafted, 1.0), source=source),
        accepted=Survival(by_depth=np.minimum(accepted, 1.0), source=source),
        source=source,
    )
