"""The busiest expert-parallel rank: the formula against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.architecture.types import ExpertPool
from specmargin.routing import coverage
from specmargin.step import IntArray

RANKS = (2, 4, 8)


def _busiest(pool: ExpertPool, positions: int, rounds: int, seed: int) -> dict[int, tuple[IntArray, IntArray]]:
    """By ranks, the distinct experts and the pairs of the busiest one in each round. All ranks share the rounds."""
    rng = np.random.default_rng(seed)
    k = pool.experts_per_token
    busiest = {ranks: (np.empty(rounds, dtype=np.int64), np.empty(rounds, dtype=np.int64)) for ranks in RANKS}
    for i in range(rounds):
        chosen = rng.random((positions, pool.experts)).argpartition(k, axis=1)[:, :k]
        counts = np.bincount(chosen.ravel(), minlength=pool.experts)
        for ranks, (distinct, pairs) in busiest.items():
            by_rank = counts.reshape(ranks, -1)
            distinct[i] = (by_rank > 0).sum(axis=1).max()
            pairs[i] = by_rank.sum(axis=1).max()
    return busiest


@pytest.mark.parametrize("positions", [1, 2, 8, 32, 128])
@pytest.mark.parametrize("shape", [(256, 8), (128, 8), (384, 6), (64, 4)])
def test_against_simulation(shape: tuple[int, int], positions: int) -> None:
    pool = ExpertPool(experts=shape[0], experts_per_token=shape[1])
    mean, variance = coverage.uniform_mean(pool, positions), coverage.uniform_variance(pool, positions)
    for ranks, (distinct, pairs) in _busiest(pool, positions, rounds=1500, seed=positions).items():
        predicted = float(coverage.busiest_rank_mean(pool, ranks, mean, variance))
        slack = max(4.0 * distinct.std() / np.sqrt(distinct.size), 0.01 * distinct.mean())
        assert predicted == pytest.approx(distinct.mean(), abs=slack), ranks
        predicted_pairs = float(coverage.busiest_rank_pairs(pool, ranks, positions, predicted))
        assert predicted_pairs == pytest.approx(pairs.mean(), rel=0.05), ranks


def test_one_rank_is_everything() -> None:
    pool = ExpertPool(experts=64, experts_per_token=4)
    assert coverage.busiest_rank_mean(pool, 1, 20.0, 3.0) == 20.0


def test_between_the_even_share_and_a_whole_rank() -> None:
    pool = ExpertPool(experts=256, experts_per_token=8)
    positions = np.arange(1, 600)
    mean, variance = coverage.uniform_mean(pool, positions), coverage.uniform_variance(pool, positions)
    busiest = coverage.busiest_rank_mean(pool, 8, mean, variance)
    assert np.all(busiest >= mean / 8)
    assert np.all(busiest <= 32)
    assert np.all(np.diff(busiest) >= -1e-6)
    assert busiest[0] > 8 / 8  # one token's eight experts hardly ever fall one on each rank
