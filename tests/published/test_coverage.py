"""Coverage as published for DeepSeek V4 and Cohere's mixture."""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.architecture.types import ExpertPool
from specmargin.catalog.lookup import bundled_model
from specmargin.routing import coverage

FLASH = ExpertPool(experts=256, experts_per_token=6)
PRO = ExpertPool(experts=384, experts_per_token=6)
COHERE = ExpertPool(experts=128, experts_per_token=8)


@pytest.mark.parametrize(("model", "pool"), [("deepseek-v4-flash", FLASH), ("deepseek-v4-pro", PRO)])
def test_pools_are_those_of_the_checkpoints(model: str, pool: ExpertPool) -> None:
    for bundled in bundled_model(model).pools:
        assert (bundled.experts, bundled.experts_per_token) == (pool.experts, pool.experts_per_token)


@pytest.mark.parametrize(("pool", "positions"), [(FLASH, 29.2), (PRO, 44.0)])
def test_half_of_the_experts_are_covered(pool: ExpertPool, positions: float) -> None:
    """DeepSeek V4 coverage post: half covered at 29.2 (Flash) and 44.0 (Pro) tokens."""
    half = coverage.half_coverage_positions(pool)
    assert round(half, 1) == positions
    assert coverage.uniform_mean(pool, half) == pytest.approx(pool.experts / 2)


@pytest.mark.parametrize("pool", [FLASH, PRO, COHERE])
def test_one_token_touches_exactly_k(pool: ExpertPool) -> None:
    assert coverage.uniform_mean(pool, 1) == pytest.approx(pool.experts_per_token, rel=1e-12)
    assert coverage.uniform_variance(pool, 1) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("pool", "positions"), [(FLASH, 53), (PRO, 80)])
def test_largest_variance_lies_at_72_percent_coverage_not_at_half(pool: ExpertPool, positions: int) -> None:
    """A commenter puts it near half coverage (29 and 44 tokens). Computed exactly it lies at 53 and 80."""
    tokens = np.arange(1, 400)
    assert tokens[coverage.uniform_variance(pool, tokens).argmax()] == positions
    assert float(coverage.uniform_mean(pool, positions)) / pool.experts == pytest.approx(0.72, abs=0.005)


@pytest.mark.parametrize(("pool", "ratio"), [(FLASH, 43), (PRO, 64)])
def test_experts_over_k(pool: ExpertPool, ratio: int) -> None:
    assert round(pool.experts / pool.experts_per_token) == ratio


def test_cohere_uniform_experts_at_four_positions() -> None:
    """Cohere: 4 positions of 8 in 128 would load 29.1 experts if routing were uniform and independent."""
    assert round(float(coverage.uniform_mean(COHERE, 4)), 1) == 29.1


def test_cohere_amdahl() -> None:
    """Cohere: 20.36 distinct experts at four positions, 30% expert time: T(4)/T(1) = 1.46."""
    share, distinct = 0.30, 20.36
    assert round(share * distinct / COHERE.experts_per_token + (1 - share), 2) == 1.46
