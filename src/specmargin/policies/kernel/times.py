"""Measured step times against the price table: a Kalman filter over the logarithms of their ratios. Compiled.

A step of B sequences that verifies depth d and drafts depth e at its end takes

    exp(level) · (verify(B, d) · exp(s_d) + draft(B, e) · exp(draft))

with `verify` and `draft` from the table. The level is the machine's speed: the same at every depth, so it changes no
decision. `s_d` is `slope_d · z_d`, where z_d = ln(verify(B, d) / verify(B, 0)) plus a little: a fixed time that the
table does not know is a slope of −1, verification at three times its price one of about +1. `s_0` stands alone.

The filter also knows how uncertain it is, and that is what probes are decided by. What only one depth was timed at goes
to the level. Every power of two of the batch has its own state; a new one starts from that of the last batch, less
certain.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from specmargin.compiler import compiled, compiled_apart
from specmargin.policies.kernel.prices import PriceTable, equal_parts
from specmargin.policies.kernel.tuning import Tuning
from specmargin.records import Rows
from specmargin.step import FloatArray, IntArray

LEVEL, DRAFT, FIRST = 0, 1, 2  # places of the level, of drafting and of depth 0 in the state
STATES = 18  # powers of two up to 131,072 sequences
_LANES = 4  # numbers at a time: loops over fewer would end in single ones, whose divisions take as long
LONGEST_SECONDS = 100.0  # a longer time is not that of a step
_LEAST_VARIANCE, _MOST_VARIANCE = 1e-9, 1e4  # within which rounding does not matter


class Times(NamedTuple):
    """By power of two of the batch. `tuning` and `prior` are constant, and so are rows of `seconds` and `weights` once
    they are filled, by the price table: their logarithms in every step would take longer than all else."""

    tuning: Rows[Tuning]
    mean: FloatArray  # (states, 2 + depths): level, drafting, depth 0, slopes
    spread: FloatArray  # (states, 2 + depths, 2 + depths): covariance; its last axis is padded with zeros
    prior: FloatArray  # covariance before anything was timed, as padded
    seen: IntArray  # (states, 2): steps timed, and the last one's number; −1: none
    timed: IntArray  # (states, depths): steps timed that verified this depth
    doubted: IntArray  # (states, depths): whether its last step was far slower (1) or faster (−1) than expected
    noise: FloatArray  # (1,): variance of a single step
    drift: FloatArray  # (2,): variance of the level per step; deviation of the last step
    scratch: FloatArray  # (2, 2 + depths), as padded
    seconds: FloatArray  # (batch, depths): verify steps of equal depths, by the table
    weights: FloatArray  # (batch, depths): z of a depth; 1 at depth 0, or 0 if the row is not filled

    @classmethod
    def nothing(cls, max_batch: int, max_depth: int, tuning: Rows[Tuning]) -> Times:
        tuned, size = tuning[0], FIRST + 1 + max_depth
        padded = -(-size // _LANES) * _LANES
        prior = np.zeros((size, padded))
        depth = np.arange(1.0, max_depth + 1.0)
        alike = np.exp(-0.5 * ((depth[:, np.newaxis] - depth) / tuned.slope_reach) ** 2)
        prior[FIRST + 1 :, FIRST + 1 : size] = tuned.slope_prior**2 * alike + tuned.own_slope**2 * np.eye(max_depth)
        prior[LEVEL, LEVEL], prior[DRAFT, DRAFT] = tuned.level_prior**2, tuned.draft_prior**2
        prior[FIRST, FIRST] = tuned.plain_prior**2
        seen = np.zeros((STATES, 2), dtype=np.int64)
        seen[:, 1] = -1
        return cls(
            tuning=tuning,
            mean=np.zeros((STATES, size)),
            spread=np.zeros((STATES, size, padded)),
            prior=prior,
            seen=seen,
            timed=np.zeros((STATES, 1 + max_depth), dtype=np.int64),
            doubted=np.zeros((STATES, 1 + max_depth), dtype=np.int64),
            noise=np.full(1, tuned.noise),
            drift=np.array([tuned.least_drift, 0.0]),
            scratch=np.zeros((2, padded)),
            seconds=np.zeros((1 + max_batch, 1 + max_depth)),
            weights=np.zeros((1 + max_batch, 1 + max_depth)),
        )

    @classmethod
    def as_priced(cls, max_batch: int, max_depth: int, tuning: Rows[Tuning]) -> Times:
        """Without uncertainty, where steps are never timed: no depth has to be probed for its time."""
        times = cls.nothing(max_batch, max_depth, tuning)
        return times._replace(prior=np.zeros_like(times.prior), timed=np.ones_like(times.timed))


@compiled
def state_of(batch: int) -> int:
    """The power of two that is nearest to a batch."""
    state, bound = 0, 1.5  # the middle of 1 and 2; the next ones are near the geometric middle
    while batch > bound and state < STATES - 1:
        state += 1
        bound *= 2.0
    return state


@compiled
def enter_state(times: Times, table: PriceTable, batch: int, last: int, step: int) -> int:
    """The state of this batch, ready for use. `last`: the one in use before, or −1."""
    state = state_of(batch)
    if times.weights[batch, 0] == 0.0:
        _price_batch(times, table, batch)
    if times.seen[state, 1] < 0:
        known = last >= 0 and last != state and times.seen[last, 1] >= 0
        source = last if known else state
        less = min(times.tuning[0].octave * abs(last - state), 1.0) if known else 1.0
        for i in range(times.prior.shape[0]):
            times.mean[state, i] = _carried(times, times.mean[source, i], i) if known else 0.0
            for j in range(times.prior.shape[1]):
                before = times.spread[source, i, j] if known else times.prior[i, j]
                times.spread[state, i, j] = before + less * (times.prior[i, j] - before)
        times.seen[state, 0] = 0
        times.seen[state, 1] = step
    return state


@compiled
def _carried(times: Times, value: float, place: int) -> float:
    steepest = times.tuning[0].steepest
    return value if place == LEVEL else min(max(value, -steepest), steepest)


@compiled
def level_of(times: Times, state: int) -> float:
    """The machine's speed: ln of measured over priced seconds, for what all depths have in common."""
    return float(times.mean[state, LEVEL])


@compiled_apart
def _price_batch(times: Times, table: PriceTable, batch: int) -> None:
    """Fill what the table says of a batch that is new."""
    seconds, weights = times.seconds[batch], times.weights[batch]
    for depth in range(seconds.size):
        rest, experts = equal_parts(table, batch, depth)
        seconds[depth] = rest + experts
        ratio = seconds[depth] / max(seconds[0], 1e-12)
        weights[depth] = max(math.log(max(ratio, 1e-12)), 0.0) + times.tuning[0].least_weight * depth
    weights[0] = 1.0


@compiled
def verify_part(times: Times, state: int, batch: int, depth: int) -> tuple[float, float]:
    """Seconds of verifying this depth, without the level; and z. Needs `enter_state`, for the batch."""
    z = times.weights[batch, depth]
    return times.seconds[batch, depth] * math.exp(z * times.mean[state, FIRST + depth]), z


@compiled
def draft_factor(times: Times, state: int) -> float:
    """Seconds of drafting over those of the table, without the level."""
    return math.exp(times.mean[state, DRAFT])


@compiled
def fill_factors(times: Times, last: int, table: PriceTable, batch: int, out: FloatArray) -> None:
    """Fill `out` with exp(draft), then exp(s_d) by depth: of the state of this batch, else of `last`, else ones."""
    state = state_of(batch)
    if times.seen[state, 1] < 0:
        state = last
    out[:] = 1.0
    if state < 0 or times.seen[state, 1] < 0:
        return
    if times.weights[batch, 0] == 0.0:
        _price_batch(times, table, batch)
    out[0] = draft_factor(times, state)
    for depth in range(out.size - 1):
        out[1 + depth] = math.exp(times.weights[batch, depth] * times.mean[state, FIRST + depth])


@compiled
def contrast_variance(
    times: Times, state: int, one: int, one_verify: float, one_draft: float, other: int, verify: float, draft: float
) -> float:
    """Variance of ln(round of depth `one`) − ln(round of depth `other`). The others: weights of `slope` and of drafting
    in each round's logarithm."""
    p = times.spread[state]
    i, j, u = FIRST + one, FIRST + other, one_draft - draft
    variance = one_verify**2 * p[i, i] + verify**2 * p[j, j] + u**2 * p[DRAFT, DRAFT]
    variance += 2.0 * (u * (one_verify * p[i, DRAFT] - verify * p[j, DRAFT]) - one_verify * verify * p[i, j])
    return float(max(variance, 0.0))


@compiled
def learn_time(
    times: Times,
    state: int,
    batch: int,
    mean_depth: float,
    verify_seconds: float,
    draft_seconds: float,
    seconds: float,
    step: int,
) -> float:
    """One timed step: `verify_seconds` and `draft_seconds` by the table, `mean_depth` verified. Returns the seconds
    that were expected of it."""
    tuning, mean, p, size = times.tuning[0], times.mean[state], times.spread[state], times.prior.shape[0]
    h, gain = times.scratch[0], times.scratch[1]
    low = min(int(mean_depth), size - FIRST - 1)
    high, over = min(low + 1, size - FIRST - 1), mean_depth - low
    low_z, high_z = times.weights[batch, low], times.weights[batch, high]
    shape = (1.0 - over) * low_z * mean[FIRST + low] + over * high_z * mean[FIRST + high]
    verify, draft = verify_seconds * math.exp(shape), draft_seconds * math.exp(mean[DRAFT])
    total = verify + draft
    if not (0.0 < seconds < LONGEST_SECONDS and 0.0 < total < LONGEST_SECONDS):
        return seconds
    expected_seconds = math.exp(mean[LEVEL]) * total if times.seen[state, 0] > 0 else seconds
    _forget(times, state, step)
    if over == 0.0:
        times.timed[state, low] += 1
    h[:] = 0.0
    h[LEVEL], h[DRAFT] = 1.0, draft / total
    h[FIRST + low] += verify / total * (1.0 - over) * low_z
    h[FIRST + high] += verify / total * over * high_z
    error = math.log(seconds / total) - mean[LEVEL]
    noise = times.noise[0]
    explained = _explain(p, h, low, high, gain)
    limit = tuning.outlier * math.sqrt(explained + noise)
    if over == 0.0 and times.seen[state, 0] > 1 and _is_surprised_again(times, state, low, error, limit):
        p[FIRST + low, FIRST + low] += min((error / h[FIRST + low]) ** 2, _MOST_VARIANCE)
        explained = _explain(p, h, low, high, gain)
        limit = abs(error)
    variance = explained + noise + (tuning.surprise * error) ** 2
    bounded = min(max(error, -limit), limit)
    for i in range(size):
        mean[i] += gain[i] / variance * bounded
    for i in range(size):
        for j in range(p.shape[1]):
            p[i, j] -= gain[i] * gain[j] / variance
        p[i, i] = max(p[i, i], _LEAST_VARIANCE)  # rounding, after a step that was far off
    # Deviations in a row that agree are a level that changes faster than believed: with the right drift they are white.
    drift = times.drift
    agreement = min(max(bounded * drift[1] / (explained + noise), -1.0), 1.0)
    drift[0] = min(max(drift[0] * math.exp(tuning.drift_rate * agreement), tuning.least_drift), tuning.most_drift)
    drift[1] = bounded
    # The expected square of this step's noise, given its deviation.
    share = noise / (explained + noise)
    expected = share * share * bounded * bounded + share * explained
    learned = noise + tuning.noise_rate * (expected - noise)
    times.noise[0] = min(max(learned, tuning.least_noise), tuning.most_noise)
    return expected_seconds


@compiled
def _is_surprised_again(times: Times, state: int, depth: int, error: float, limit: float) -> bool:
    """Whether two steps in a row of a depth that is hardly known were far slower, or far faster, than expected. One
    alone may be a stall."""
    surprise = 0
    if times.timed[state, depth] <= times.tuning[0].first_timed and abs(error) > limit:
        surprise = 1 if error > 0.0 else -1
    again = surprise != 0 and surprise == times.doubted[state, depth]
    times.doubted[state, depth] = surprise
    return bool(again)


@compiled
def _explain(spread: FloatArray, h: FloatArray, low: int, high: int, gain: FloatArray) -> float:
    """Fill `gain` with the covariance of the state and a step's logarithm; returns the variance of that logarithm. `h`
    is 0 but for the level, drafting and two depths, which may be the same one. Rows of `spread` are its columns."""
    for i in range(spread.shape[1]):
        gain[i] = spread[LEVEL, i] * h[LEVEL] + spread[DRAFT, i] * h[DRAFT] + spread[FIRST + low, i] * h[FIRST + low]
    if high != low:
        for i in range(spread.shape[1]):
            gain[i] += spread[FIRST + high, i] * h[FIRST + high]
    explained = h[LEVEL] * gain[LEVEL] + h[DRAFT] * gain[DRAFT] + h[FIRST + low] * gain[FIRST + low]
    if high != low:
        explained += h[FIRST + high] * gain[FIRST + high]
    return float(max(explained, 0.0))


@compiled
def _forget(times: Times, state: int, step: int) -> None:
    """Grow less certain for the steps since the last one of this state."""
    tuning, p, seen = times.tuning[0], times.spread[state], times.seen[state]
    steps = max(step - seen[1], 1)
    lost = min(tuning.forgetting * steps, 1.0)
    for i in range(DRAFT, times.prior.shape[0]):
        level = p[i, LEVEL]
        for j in range(times.prior.shape[1]):  # the level's too, which keeps its own: whole lanes
            p[i, j] += lost * (times.prior[i, j] - p[i, j])
        p[i, LEVEL] = level
    drift = tuning.first_drift if seen[0] < tuning.first_steps else times.drift[0]
    p[LEVEL, LEVEL] = min(p[LEVEL, LEVEL] + drift * steps, times.prior[LEVEL, LEVEL])
    seen[0] += 1
    seen[1] = step
