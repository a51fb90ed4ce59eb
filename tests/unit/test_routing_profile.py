"""Routing profiles: what they count, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.architecture.types import ExpertPool
from specmargin.catalog.lookup import find_model
from specmargin.catalog.routing_profiles import find_routing
from specmargin.errors import InputError
from specmargin.routing.local import LocalRouting, from_curves
from specmargin.routing.profile import UNIFORM, expert_counter
from specmargin.sources import assumed
from specmargin.step import Step

POOL = ExpertPool(experts=8, experts_per_token=2)


def _popularity(*values: float, growth: float = 1.0) -> LocalRouting:
    """One layer: popularity without locality, or with runs that grow as q^growth."""
    return from_curves(
        name="test",
        source=assumed("test"),
        pool=ExpertPool(experts=len(values), experts_per_token=2),
        popularity_by_layer_expert=np.array([values]),
        effective_by_run_layer=np.arange(1.0, 9.0)[:, np.newaxis] ** growth,
        captured_run=8,
    )


def test_popularity_touches_k_at_one_position_and_fewer_than_uniform_after() -> None:
    skewed = _popularity(0.9, 0.5, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05)
    one, many = Step.uniform(batch=1), Step.uniform(batch=6)
    assert skewed.mean(POOL, one) == pytest.approx(2.0)
    assert skewed.variance(POOL, one) == pytest.approx(0.0, abs=1e-9)
    assert skewed.mean(POOL, many) < UNIFORM.mean(POOL, many)
    assert skewed.variance(POOL, many) > 0


def test_a_run_without_locality_equals_independent_positions() -> None:
    skewed = _popularity(0.9, 0.5, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05)
    run, independent = Step.uniform(batch=1, depth=5), Step.uniform(batch=6)
    assert skewed.mean(POOL, run) == pytest.approx(float(skewed.mean(POOL, independent)))
    alike = _popularity(0.9, 0.5, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, growth=0.75)
    assert alike.mean(POOL, run) < skewed.mean(POOL, run)
    assert alike.mean(POOL, independent) == pytest.approx(float(skewed.mean(POOL, independent)))


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="is of a model with 4 experts"):
        _popularity(0.5, 0.5, 0.5, 0.5).mean(POOL, Step.uniform(batch=1))
    with pytest.raises(InputError, match="must add up to 2"):
        _popularity(1.0, 0.5)


def test_names() -> None:
    model = find_model("qwen3.6-35b-a3b")
    assert find_routing("uniform", model) is UNIFORM
    with pytest.raises(InputError, match="unknown routing profile 'unifrom'; nearest: uniform"):
        find_routing("unifrom", model)
    assert find_routing(None, model).name == "qwen3.6-35b-a3b"
    assert find_routing("qwen3.6-35b-a3b:coding", model).name == "qwen3.6-35b-a3b:coding"
    with pytest.raises(InputError, match="no category 'codng'; nearest: coding"):
        find_routing("qwen3.6-35b-a3b:codng", model)


def test_a_model_without_a_capture_gets_scaled_curves_and_the_label_says_so() -> None:
    routing = find_routing(None, find_model("qwen3-30b-a3b"))
    assert str(routing.source).startswith("assumed: halfway between the routing of qwen3.6-35b-a3b")
    pool = ExpertPool(experts=128, experts_per_token=8)
    one, many = Step.uniform(batch=1), Step.uniform(batch=1000)
    assert routing.mean(pool, one) == pytest.approx(8.0)
    assert 120 < routing.mean(pool, many) <= 128


def test_the_counter_sees_the_busiest_rank() -> None:
    step = Step.uniform(batch=3)
    alone, spread = expert_counter(UNIFORM)((POOL,), step), expert_counter(UNIFORM, 4)((POOL,), step)
    assert alone.distinct_by_group[0] == pytest.approx(8 * (1 - 0.75**3))
    assert alone.pairs_by_group[0] == 6
    assert alone.distinct_by_group[0] / 4 < spread.distinct_by_group[0] <= 2


def test_a_model_without_a_capture_lies_between_the_scaled_curves_and_uniform() -> None:
    model = find_model("glm-4.5-air")
    pool, step = model.pools[0], Step.uniform(batch=np.array([1.0, 8.0, 64.0]), depth=3)
    curves, prior, uniform = (
        find_routing(spec, model).mean(pool, step) for spec in ("qwen3.6-35b-a3b", None, "uniform")
    )
    assert (curves < prior).all()
    assert (prior < uniform).all()
    assert find_routing("assumed", model) is find_routing(None, model)
    one = Step.uniform(batch=1, depth=0)
    assert float(find_routing(None, model).mean(pool, one)) == pytest.approx(pool.experts_per_token)
