"""From a drafter's confidence to the probability that a token survives.

The calibrated quantity is the probability that the token at depth d is accepted, given that all before it were.
Drafters are over-confident, differently at each depth, and sequences differ: a sequence's last rounds are informative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from specmargin.acceptance.bank import Rounds
from specmargin.errors import AcceptanceError
from specmargin.step import BoolArray, FloatArray, IntArray

KNOTS = np.array([-6.0, -4.0, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 4.0, 6.0])  # logits of confidence
_EDGE = 1e-4  # probabilities are clipped to _EDGE..1 - _EDGE
_RIDGE = 2e-4  # on the mean loss per row
_NEWTON_STEPS, _CLOSE = 50, 1e-14  # ends when the mean loss falls by no more
FORGETTING = 0.8  # decay per round of a sequence's history
_PRIOR_TOKENS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Draft tokens, one row each."""

    depth: IntArray  # from 0
    confidence: FloatArray
    history: FloatArray  # of the sequence, before this round: logit of its decaying mean acceptance
    before: FloatArray  # mean logit of the confidences before it in the round
    accepted: BoolArray
    round: IntArray

    def chosen(self, mask: BoolArray) -> Tokens:
        return Tokens(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})


class Calibrator(Protocol):
    def probability(self, tokens: Tokens) -> FloatArray: ...


def logit(p: FloatArray) -> FloatArray:
    clipped = np.clip(p, _EDGE, 1.0 - _EDGE)
    return np.asarray(np.log(clipped / (1.0 - clipped)))


def sigmoid(x: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0))))


def history_of(rounds: Rounds) -> FloatArray:
    """By round: the logit of its sequence's decaying mean acceptance so far; even odds before the first round."""
    order = np.lexsort((rounds.round_index, rounds.prompt_by_round))
    acceptance = np.empty(rounds.count)
    hits = tries = 0.0
    last = -1
    for i in order:
        if rounds.prompt_by_round[i] != last:
            last, hits, tries = int(rounds.prompt_by_round[i]), 0.0, 0.0
        acceptance[i] = (hits + 0.5 * _PRIOR_TOKENS) / (tries + _PRIOR_TOKENS)
        reached = min(int(rounds.accepted_by_round[i]) + 1, int(rounds.drafted_by_round[i]))
        hits = FORGETTING * hits + float(rounds.accepted_by_round[i])
        tries = FORGETTING * tries + reached
    return logit(acceptance)


def tokens_of(rounds: Rounds) -> Tokens:
    """Every token that was verified after an accepted prefix: accepted ones and the first rejected one."""
    if not rounds.has_confidence:
        raise AcceptanceError(f"{rounds.source}: has no confidences to calibrate; give a bank with speculator.parquet")
    every = every_token_of(rounds)
    reached = np.minimum(rounds.accepted_by_round + 1, rounds.drafted_by_round)
    return every.chosen(every.depth < reached[every.round])


def every_token_of(rounds: Rounds) -> Tokens:
    """Every drafted token as if it were reached: the input of a policy before anything is verified."""
    index, depth = np.indices((rounds.count, rounds.depth)).reshape(2, -1)
    confidence = np.nan_to_num(rounds.confidence_by_round_depth, nan=0.0)  # tokens not drafted are not accepted
    so_far = np.cumsum(logit(confidence), axis=1)
    return Tokens(
        depth=depth,
        confidence=confidence[index, depth],
        history=history_of(rounds)[index],
        before=np.where(depth > 0, so_far[index, np.maximum(depth - 1, 0)] / np.maximum(depth, 1), 0.0),
        accepted=depth < rounds.accepted_by_round[index],
        round=index,
    )


def survival_of(rounds: Rounds, calibrator: Calibrator) -> FloatArray:
    """(rounds, depth): the probability that each token and all before it are accepted."""
    conditional = calibrator.probability(every_token_of(rounds)).reshape(rounds.count, rounds.depth)
    return np.asarray(np.cumprod(conditional, axis=1), dtype=np.float64)


# --- calibrators ---


@dataclass(frozen=True, slots=True)
class Raw:
    """The drafter's confidence as it is."""

    def probability(self, tokens: Tokens) -> FloatArray:
        return np.clip(tokens.confidence, _EDGE, 1.0 - _EDGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic:
    """Log-odds as a sum: an intercept and a slope per depth, a piecewise linear function of confidence, the sequence's
    history and the confidences before the token."""

    weights: FloatArray
    depths: int

    @classmethod
    def fit(cls, tokens: Tokens, *, depths: int) -> Logistic:
        x, y = _features(tokens, depths), tokens.accepted.astype(np.float64)
        return cls(weights=_minimised(x, y), depths=depths)

    def probability(self, tokens: Tokens) -> FloatArray:
        return sigmoid(_features(tokens, self.depths) @ self.weights)


def _minimised(x: FloatArray, y: FloatArray) -> FloatArray:
    """Weights with the least mean log loss plus ridge, by Newton's method: convex, so halved steps always descend."""

    def loss(w: FloatArray) -> float:
        z = x @ w
        return float(np.mean(np.logaddexp(0.0, z) - y * z)) + _RIDGE * float(w @ w)

    w = np.zeros(x.shape[1])
    value = loss(w)
    for _ in range(_NEWTON_STEPS):
        p = sigmoid(x @ w)
        gradient = x.T @ (p - y) / y.size + 2.0 * _RIDGE * w
        curvature = (x.T * (p * (1.0 - p))) @ x / y.size + 2.0 * _RIDGE * np.eye(w.size)
        step = np.linalg.solve(curvature, gradient)
        while (lower := loss(w - step)) > value and float(step @ step) > _CLOSE:
            step /= 2.0
        w, improved, value = w - step, value - lower, lower
        if improved < _CLOSE:
            break
    return w


def _features(tokens: Tokens, depths: int) -> FloatArray:
    log_odds = logit(tokens.confidence)
    by_depth = (tokens.depth[:, np.newaxis] == np.arange(depths)).astype(np.float64)
    later = (tokens.depth > 0).astype(np.float64)
    columns = [
        by_depth,
        log_odds[:, np.newaxis] / 4.0,
        by_depth * log_odds[:, np.newaxis] / 4.0,
        hats(log_odds),
        tokens.history[:, np.newaxis],
        (tokens.history * later)[:, np.newaxis],
        tokens.before[:, np.newaxis] / 4.0,
        (tokens.history * log_odds)[:, np.newaxis] / 4.0,
    ]
    return np.concatenate(columns, axis=1)


def hats(log_odds: FloatArray) -> FloatArray:
    """Weights of linear interpolation between the knots: two per row, adding up to one."""
    knot = np.interp(log_odds, KNOTS, np.arange(KNOTS.size))
    return np.asarray(np.maximum(1.0 - np.abs(knot[:, np.newaxis] - np.arange(KNOTS.size)), 0.0))


# --- quality ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    calibration_error: float  # expected, over bins of equal mass
    log_loss: float
    brier: float


def quality(probability: FloatArray, accepted: BoolArray, bins: int = 15) -> Quality:
    y = accepted.astype(np.float64)
    p = np.clip(probability, _EDGE, 1.0 - _EDGE)
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if part.size]
    error = sum(part.size * abs(float(p[part].mean() - y[part].mean())) for part in parts) / p.size
    return Quality(
        calibration_error=float(error),
        log_loss=float(-np.mean(y * np.log(p) + (1.0 - y) * np.log1p(-p))),
        brier=float(np.mean((p - y) ** 2)),
    )


# --- held out ---


def held_out_quality(
    rounds: Rounds,
    *,
    splits: int,
    seed: int = 0,
    others: Mapping[str, Callable[[Tokens], Calibrator]] | None = None,
) -> dict[int, dict[str, Quality]]:
    """Quality of conditional acceptance by depth, averaged over splits by request: raw, calibrated, and `others`, each
    of which is fitted to one half and judged on the other."""
    tokens = tokens_of(rounds)
    requests = np.unique(rounds.prompt_by_round)
    if requests.size < 2:
        return {}  # nothing to hold out
    fits: dict[str, Callable[[Tokens], Calibrator]] = {
        "raw": lambda _: Raw(),
        "calibrated": lambda learn: Logistic.fit(learn, depths=rounds.depth),
        **(others or {}),
    }
    qualities: dict[int, dict[str, list[Quality]]] = {}
    for split in range(splits):
        half = np.random.default_rng([seed, split]).permutation(requests)[: requests.size // 2]
        in_half = np.isin(rounds.prompt_by_round, half)[tokens.round]
        learn, judge = tokens.chosen(in_half), tokens.chosen(~in_half)
        for name, fit in fits.items():
            probability = fit(learn).probability(judge)
            for depth in np.unique(judge.depth).tolist():
                at_depth = judge.depth == depth
                held_out = quality(probability[at_depth], judge.accepted[at_depth])
                qualities.setdefault(depth + 1, {}).setdefault(name, []).append(held_out)
    return {
        depth: {name: _mean(parts) for name, parts in by_name.items()} for depth, by_name in sorted(qualities.items())
    }


def _mean(qualities: Sequence[Quality]) -> Quality:
    means = {field.name: float(np.mean([getattr(q, field.name) for q in qualities])) for field in fields(Quality)}
    return Quality(**means)
