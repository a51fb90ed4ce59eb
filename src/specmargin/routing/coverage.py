"""Coverage: how many of n experts are touched when T positions choose k distinct experts each.

All functions broadcast over NumPy arrays. T may be fractional (an effective number of positions).
"""

from __future__ import annotations

from functools import cache
from math import lgamma
from statistics import NormalDist

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.step import ArrayLike, FloatArray, IntArray


def uniform_mean(pool: ExpertPool, positions: ArrayLike) -> FloatArray:
    """E[D] = n (1 - (1 - k/n)^T): every expert is equally likely, a position's k are distinct."""
    n, k = pool.experts, pool.experts_per_token
    if k == n:
        return np.where(np.asarray(positions, dtype=np.float64) > 0, float(n), 0.0)
    return np.asarray(-n * np.expm1(np.asarray(positions, dtype=np.float64) * np.log1p(-k / n)))


def uniform_variance(pool: ExpertPool, positions: ArrayLike) -> FloatArray:
    """Var[D] = n p0 (1 - p0) + n (n-1) (p00 - p0²), exactly: zero at T = 1, where D is k."""
    n, k = pool.experts, pool.experts_per_token
    t = np.asarray(positions, dtype=np.float64)
    if n == 1:
        return np.zeros_like(t)
    missed = (1.0 - k / n) ** t
    both_missed = ((n - k) * (n - k - 1) / (n * (n - 1))) ** t
    variance = n * missed * (1.0 - missed) + n * (n - 1) * (both_missed - missed**2)
    return np.maximum(variance, 0.0)  # at T = 1 rounding leaves about -1e-12


def with_replacement_mean(pool: ExpertPool, positions: ArrayLike) -> FloatArray:
    """E[D] = n (1 - (1 - 1/n)^(kT)): assumed by some published grids. Below k at T = 1, so never a default."""
    n, k = pool.experts, pool.experts_per_token
    if n == 1:
        return np.ones_like(np.asarray(positions, dtype=np.float64))
    return np.asarray(-n * np.expm1(k * np.asarray(positions, dtype=np.float64) * np.log1p(-1.0 / n)))


def skewed_mean(hit_probability_by_expert: FloatArray, positions: ArrayLike) -> FloatArray:
    """E[D] = Σ_e 1 - (1 - p_e)^T for independent positions; Σ p_e = k."""
    t = np.asarray(positions, dtype=np.float64)[..., np.newaxis]
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = np.exp(t * np.log1p(-hit_probability_by_expert))
    # p = 1 gives log 0 = -inf: missed is 0 for T > 0, and 0 · -inf must read as 1 at T = 0.
    return np.asarray((1.0 - np.nan_to_num(missed, nan=1.0)).sum(axis=-1))


def half_coverage_positions(pool: ExpertPool) -> float:
    """Positions after which half of the experts are covered on average, under uniform routing."""
    n, k = pool.experts, pool.experts_per_token
    return float(np.log(0.5) / np.log1p(-k / n)) if k < n else 1.0


def filled_slots(distinct: ArrayLike, experts: int, slots: int) -> FloatArray:
    """Distinct experts where some of them have several slots, among which their positions are spread evenly."""
    touched = np.asarray(distinct, dtype=np.float64)
    return touched if slots == experts else slots * (1.0 - (1.0 - touched / experts) ** (experts / slots))


def busiest_rank_mean(pool: ExpertPool, ranks: int, mean: ArrayLike, variance: ArrayLike) -> FloatArray:
    """E[max over ranks of the distinct experts on that rank], experts spread evenly over `ranks`.

    By symmetry the touched set, given its size D, is a uniformly random subset, so E[max | D] follows from a
    multivariate hypergeometric distribution and is computed exactly. It is averaged over D with a normal distribution
    of that mean and variance; this is within 1% of simulation (tests/properties/test_busiest_rank.py).
    """
    mean, variance = np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    if ranks == 1:
        return mean
    table = _busiest_by_deviation(pool.experts, ranks)
    row = np.interp(np.sqrt(variance), _DEVIATIONS, np.arange(_DEVIATIONS.size))
    low_row = np.minimum(row.astype(np.int64), _DEVIATIONS.size - 2)
    row_fraction = row - low_row
    low_mean = np.minimum(mean.astype(np.int64), pool.experts - 1)
    mean_fraction = mean - low_mean

    def along_mean(row: IntArray) -> FloatArray:
        return np.asarray((1.0 - mean_fraction) * table[row, low_mean] + mean_fraction * table[row, low_mean + 1])

    value = (1.0 - row_fraction) * along_mean(low_row) + row_fraction * along_mean(low_row + 1)
    return np.asarray(np.clip(value, mean / ranks, pool.experts / ranks))


_DEVIATIONS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0])


@cache
def _busiest_by_deviation(experts: int, ranks: int) -> FloatArray:
    """E[max rank] by standard deviation and mean of D, for means 0..n."""
    by_total = _busiest_given_total(experts, ranks)
    total = np.arange(experts + 1.0)
    rows = []
    for deviation in _DEVIATIONS:
        # At least 0.5, for smoothing: with few ranks E[max | D] zigzags between odd and even D.
        distance = (total[np.newaxis, :] - total[:, np.newaxis]) / max(float(deviation), 0.5)
        weights = np.exp(-0.5 * distance**2)
        rows.append(np.maximum.accumulate(weights @ by_total / weights.sum(axis=1)))
    table = np.asarray(rows)
    table.flags.writeable = False
    return table


@cache
def _busiest_given_total(experts: int, ranks: int) -> FloatArray:
    """E[max rank | D] for D = 0..n. P(max ≤ x | D) is a coefficient of a power of a truncated binomial."""
    size = experts // ranks
    weights = _binomial_pmf(size)
    whole = _binomial_pmf(experts)
    expected = np.zeros(experts + 1)
    for limit in range(size):  # E[max] = Σ_x P(max > x)
        power = np.ones(1)
        for _ in range(ranks):
            power = np.convolve(power, weights[: limit + 1])
        at_most = np.zeros(experts + 1)
        at_most[: power.size] = power / whole[: power.size]
        expected += 1.0 - np.minimum(at_most, 1.0)
    expected.flags.writeable = False
    return expected


def _binomial_pmf(trials: int) -> FloatArray:
    """Binomial(trials, 1/2), by logarithms: C(896, 448) nearly overflows."""
    log = [lgamma(trials + 1) - lgamma(j + 1) - lgamma(trials - j + 1) for j in range(trials + 1)]
    return np.asarray(np.exp(np.asarray(log) - trials * np.log(2.0)))


def busiest_rank_pairs(pool: ExpertPool, ranks: int, positions: ArrayLike, busiest_distinct: ArrayLike) -> FloatArray:
    """E[max over ranks of routed (position, expert) pairs], by the normal approximation.

    A rank has at least as many pairs as distinct experts, which corrects the approximation at one or two positions
    (within 5% of simulation). Only the compute-bound end of a step depends on it.
    """
    t = np.asarray(positions, dtype=np.float64)
    pairs = t * pool.experts_per_token
    if ranks == 1:
        return pairs
    n, k, size = pool.experts, pool.experts_per_token, pool.experts / ranks
    # Of a position's k distinct experts, those on one rank are hypergeometric.
    variance = t * k * (size / n) * (1.0 - size / n) * (n - k) / (n - 1)
    most = pairs / ranks + _expected_maximum_of_normals(ranks) * np.sqrt(variance)
    return np.minimum(np.maximum(most, busiest_distinct), pairs)


def _expected_maximum_of_normals(count: int) -> float:
    """Blom's approximation of E[max of `count` standard normals], within 1% for 2 or more."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
