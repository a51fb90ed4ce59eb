"""Rounds priced as a sum of a part per batch size and a part per token count, fitted to the scenario's prices.

SGLang's DSpark takes prices in this form: `bias + α(sequences) + θ(tokens)`, both linear between probes and constant
outside of them. Neither part ever falls, since a longer or wider step never costs less. The fit is of relative errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.errors import ScenarioError
from specmargin.step import BoolArray, FloatArray, IntArray, Step

_RATIO = 1.25  # between probes, where they are not consecutive numbers
_SHARES = 17  # token counts per batch size that are priced, from no draft token to all
_TINY = 1e-9  # seconds: SGLang refuses a bias of 0
_A_ROUND = 1e-9  # draft tokens per sequence: hardly any


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditivePrices:
    """Seconds of a round with b sequences, of which m tokens are verified."""

    bias_seconds: float
    batches: IntArray
    batch_seconds: FloatArray
    tokens: IntArray
    token_seconds: FloatArray

    def seconds(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        by_batch = np.interp(batch, self.batches, self.batch_seconds)
        return np.asarray(self.bias_seconds + by_batch + np.interp(tokens, self.tokens, self.token_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveFit:
    """The fitted prices, and how far they are from the scenario's."""

    prices: AdditivePrices
    median_error: float
    worst_error: float
    worst_batch: int
    worst_tokens: int


def fit_additive(pricer: Pricer, *, max_batch: int, depth: int) -> AdditiveFit:
    """Over all batches to `max_batch` that verify between no and all of `depth` draft tokens of each sequence.

    The drafter always drafts them all. Where ranks have sequences of their own, batches and tokens are those of a rank.
    """
    if depth < 1:
        raise ScenarioError("a table of verify prices needs drafts of at least 1 token: raise --depth")
    batches, tokens = probes(max_batch), probes(max_batch * (depth + 1))
    batch, count = _feasible(batches, depth)
    seconds = ragged_round_seconds(pricer, batch, count, depth)
    fitted = _fit(batches, tokens, batch, count, seconds)
    between = (batches[1:] + batches[:-1]) // 2  # half-way between probes, and the probes
    batch, count = _feasible(np.unique(np.concatenate([batches, between])), depth)
    error = np.abs(fitted.seconds(batch, count) / ragged_round_seconds(pricer, batch, count, depth) - 1.0)
    worst = int(error.argmax())
    return AdditiveFit(
        prices=fitted,
        median_error=float(np.median(error)),
        worst_error=float(error[worst]),
        worst_batch=int(batch[worst]),
        worst_tokens=int(count[worst]),
    )


def probes(largest: int) -> IntArray:
    """1, 2, 3, … and then about every 25%, up to and including `largest`."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(max(sizes[-1] + 1, int(sizes[-1] * _RATIO)), largest))
    return np.array(sizes)


def ragged_round_seconds(pricer: Pricer, batch: FloatArray, tokens: FloatArray, depth: int) -> FloatArray:
    """Drafting `depth` tokens, and verifying `tokens` in all, spread evenly over the sequences of each rank.

    A step that verifies no draft token has drafted too: it takes the engine's time of a round, not of a plain step.
    """
    context, sequences = pricer.scenario.context, batch * pricer.scenario.layout.sequence_ranks
    verified = np.maximum(tokens / batch - 1.0, _A_ROUND)
    step = Step.uniform(batch=sequences, depth=verified, context=context)
    return np.asarray(pricer.verify(step).total_seconds + pricer.draft_seconds(sequences, float(depth), context))


def _feasible(batches: IntArray, depth: int) -> tuple[FloatArray, FloatArray]:
    """Pairs of a batch size and a token count that it can verify."""
    shares = [np.unique(np.linspace(size, size * (depth + 1), _SHARES).round()) for size in batches]
    batch = np.repeat(batches.astype(np.float64), [len(counts) for counts in shares])
    return batch, np.concatenate(shares)


def _fit(
    batches: IntArray, tokens: IntArray, batch: FloatArray, count: FloatArray, seconds: FloatArray
) -> AdditivePrices:
    columns = np.hstack([np.ones((batch.size, 1)), _ramps(batches, batch), _ramps(tokens, count)])
    rises = nonnegative_least_squares(columns / seconds[:, np.newaxis], np.ones(seconds.size))
    by_batch, by_token = np.split(rises[1:], [batches.size - 1])
    return AdditivePrices(
        bias_seconds=max(float(rises[0]), _TINY),
        batches=batches,
        batch_seconds=np.concatenate([[0.0], np.cumsum(by_batch)]),
        tokens=tokens,
        token_seconds=np.concatenate([[0.0], np.cumsum(by_token)]),
    )


def _ramps(knots: IntArray, values: FloatArray) -> FloatArray:
    """For each interval between probes, the part of it that a value has passed: 0 before, 1 after."""
    first, last = knots[:-1].astype(np.float64), knots[1:].astype(np.float64)
    return np.clip((values[:, np.newaxis] - first) / (last - first), 0.0, 1.0)


def nonnegative_least_squares(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """The x ≥ 0 that minimises |matrix x − target| (Lawson and Hanson, 1974, chapter 23)."""
    solution, free = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1], dtype=bool)
    tolerance = 1e-10 * float(np.abs(matrix.T @ target).max(initial=0.0))
    for _ in range(6 * matrix.shape[1]):
        gradient = np.where(free, -np.inf, matrix.T @ (target - matrix @ solution))
        if free.all() or gradient.max() <= tolerance:
            break
        free[gradient.argmax()] = True
        solution = _inside(matrix, target, solution, free)
    return solution


def _inside(matrix: FloatArray, target: FloatArray, solution: FloatArray, free: BoolArray) -> FloatArray:
    """The least squares of the free columns; columns that would turn negative are fixed at 0 on the way there."""
    while True:
        wished = np.zeros_like(solution)
        wished[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        falling = free & (wished <= 0.0)
        if not falling.any():
            return wished
        distance = np.full(solution.size, np.inf)
        distance[falling] = solution[falling] / np.maximum(solution[falling] - wished[falling], np.finfo(float).tiny)
        solution = solution + float(distance.min()) * (wished - solution)
        free[distance.argmin()] = False
        solution[~free] = 0.0
