"""Distinct experts of the tables' `power_law` rows, drawn as their collector draws them.

Counts per expert follow a power law between 1 and 0.8 of the positions (0.01 and 2 where there are fewer pairs than
experts), scaled to the number of pairs and rounded. Pairs lost to rounding are added to the emptiest expert of each
rank in turn; surplus pairs are taken from the fullest. The busiest rank is the measured one.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from specmargin.step import FloatArray, IntArray

_DRAWS = 8


@lru_cache(maxsize=100_000)
def skewed_load(positions: int, experts: int, topk: int, ranks: int, exponent: float) -> tuple[float, float]:
    """Distinct experts and pairs on the busiest rank, averaged over a few draws."""
    generator = np.random.default_rng([positions, experts, topk, ranks])
    loads = [_draw(generator, positions, experts, topk, ranks, exponent) for _ in range(_DRAWS)]
    distinct, pairs = np.array([(np.count_nonzero(load), load.sum()) for load in loads]).mean(axis=0)
    return float(distinct), float(pairs)


def _draw(
    generator: np.random.Generator, positions: int, experts: int, topk: int, ranks: int, exponent: float
) -> IntArray:
    """Positions of each expert of the busiest rank."""
    pairs = positions * topk
    low, high = (1.0, 0.8 * positions) if pairs > experts else (0.01, 2.0)
    weights = _power_law(generator.random(experts), exponent, low, high)
    counts = np.minimum(np.round(weights / weights.sum() * pairs).astype(np.int64), positions).reshape(ranks, -1)
    missing = pairs - int(counts.sum())
    for turn in range(abs(missing)):
        rank = counts[turn % ranks]
        rank[rank.argmin() if missing > 0 else rank.argmax()] += np.sign(missing)
    return np.asarray(counts[counts.sum(axis=1).argmax()])


def _power_law(uniform: FloatArray, exponent: float, low: float, high: float) -> FloatArray:
    power = 1.0 - exponent
    return np.asarray(((high**power - low**power) * uniform + low**power) ** (1.0 / power))
