"""Routing profiles: what they count, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.architecture.types import ExpertPool
from specmargin.errors import InputError
from specmargin.routing.profile import UNIFORM, PopularityRouting, expert_counter, find_routing
from specmargin.sources import assumed
from specmargin.step import Step

POOL = ExpertPool(experts=8, experts_per_token=2)


def _popularity(*values: float) -> PopularityRouting:
    return PopularityRouting(hit_probability_by_expert=np.asarray(values), name="test", source=assumed("test"))


def test_popularity_touches_k_at_one_position_and_fewer_than_uniform_after() -> None:
    skewed = _popularity(0.9, 0.5, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05)
    one, many = Step.uniform(batch=1), Step.uniform(batch=6)
    assert skewed.mean(POOL, one) == pytest.approx(2.0)
    assert skewed.mean(POOL, many) < UNIFORM.mean(POOL, many)
    assert skewed.variance(POOL, many) > 0


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="is for 4 experts"):
        _popularity(0.5, 0.5, 0.5, 0.5).mean(POOL, Step.uniform(batch=1))
    with pytest.raises(InputError, match="must be probabilities"):
        _popularity(1.5, 0.5)


def test_names() -> None:
    assert find_routing("uniform") is UNIFORM
    with pytest.raises(InputError, match="unknown routing profile 'unifrom'; nearest: uniform"):
        find_routing("unifrom")


def test_the_counter_sees_the_busiest_rank() -> None:
    step = Step.uniform(batch=3)
    alone, spread = expert_counter(UNIFORM)((POOL,), step), expert_counter(UNIFORM, 4)((POOL,), step)
    assert alone.distinct_by_group[0] == pytest.approx(8 * (1 - 0.75**3))
    assert alone.pairs_by_group[0] == 6
    assert alone.distinct_by_group[0] / 4 < spread.distinct_by_group[0] <= 2
