"""The budget of the gate on the device: the best prefix of its own order, and an order whose prefixes are drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmargin.errors import EngineError
from specmargin.live.gate_messages import GateOrder
from specmargin.live.gate_prices import GatePrices, StepDrafts
from specmargin.policies.kernel.budget import ranking_confidences, ranking_keys
from specmargin.policies.kernel.prices import PriceTable

DEPTH, BATCH = 5, 6
_seeds = st.integers(0, 2**32 - 1)


def _table(generator: np.random.Generator) -> PriceTable:
    """Prices that rise with depth and batch, and experts that a longer run shares with itself."""
    depth, batch = np.arange(DEPTH + 1), np.arange(BATCH + 1)[:, np.newaxis]
    rest = generator.uniform(1e-3, 5e-3) + generator.uniform(1e-6, 1e-3) * batch * (depth + 1.0)
    experts = np.cumsum(np.sort(generator.uniform(0.0, 1e-3, BATCH * (DEPTH + 1) + 1))[::-1])
    effective = np.cumsum(np.concatenate([[1.0], np.sort(generator.uniform(0.2, 1.0, DEPTH))[::-1]]))
    return PriceTable.of(
        rest_seconds=np.asarray(rest, dtype=np.float64),
        draft_seconds=np.array(np.broadcast_to(generator.uniform(0.0, 5e-4) * depth, rest.shape), dtype=np.float64),
        expert_seconds=np.asarray(experts, dtype=np.float64),
        effective_by_depth=np.asarray(effective, dtype=np.float64),
    )


def _prices(generator: np.random.Generator) -> GatePrices:
    return GatePrices(table=_table(generator), depths=DEPTH, prior=np.full(DEPTH, 0.6))


def _drafts(generator: np.random.Generator, **changes: Any) -> StepDrafts:
    count, rounds = int(generator.integers(1, BATCH + 1)), int(generator.integers(1, 4))
    given: dict[str, Any] = {
        "confidence": generator.uniform(0.0, 1.0, (rounds, count, DEPTH)).astype(np.float32),
        "drafted": generator.integers(0, DEPTH + 1, count),
        "other_tokens": np.ones(count, dtype=np.int64),
        "sampling": count,
        "most": 1000,
    }
    return StepDrafts(**given | changes)


def _alike(count: int, confidence: float) -> StepDrafts:
    return StepDrafts(
        confidence=np.full((1, count, DEPTH), confidence),
        drafted=np.full(count, DEPTH),
        other_tokens=np.ones(count, dtype=np.int64),
        sampling=count,
        most=1000,
    )


def _round(prices: GatePrices, drafts: StepDrafts, survival: Any, depths: Any, order: GateOrder) -> tuple[float, float]:
    """Expected tokens and seconds of a round that verifies these depths."""
    table = prices.table
    tokens = drafts.sampling + sum(row[:depth].sum() for row, depth in zip(survival, depths, strict=True))
    drafting = table.draft_seconds[depths.size, int(drafts.drafted.max()), 0] * order.draft_factor
    factor = np.interp(depths.mean(), np.arange(len(order.verify_factors)), order.verify_factors)
    return float(tokens), float(drafting + table.verify_seconds(depths) * factor)


@settings(max_examples=150, deadline=None)
@given(seed=_seeds)
def test_the_budget_has_the_most_tokens_per_second_over_recent_rounds_unless_whole_drafts_are_within_a_percent(
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    prices, drafts = _prices(generator), _drafts(generator)
    order = GateOrder(
        draft_factor=float(generator.uniform(0.5, 2.0)),
        verify_factors=tuple(float(value) for value in generator.uniform(0.7, 1.4, DEPTH + 1)),
    )
    budget = prices.budget(drafts, order)
    assert budget is not None
    count, total = drafts.drafted.size, int(drafts.drafted.sum())
    sums = np.zeros((2, total + 1))
    for confidence in drafts.confidence:
        survival = np.asarray(np.cumprod(confidence, axis=1, dtype=np.float64))
        keys = np.minimum(ranking_keys(survival, prices.weights[count]), 1.0)
        bins = np.floor((1.0 - keys) * 1023)  # as `sort_tokens` does
        bins[np.arange(DEPTH) >= drafts.drafted[:, np.newaxis]] = np.inf
        ranked = np.argsort(bins, axis=None, kind="stable")
        for size in range(total + 1):
            depths = np.bincount(ranked[:size] // DEPTH, minlength=count)
            sums[:, size] += _round(prices, drafts, survival, depths, order)
    goodput = sums[0] / sums[1]
    assert 0 <= budget <= total
    whole_is_as_good = goodput[total] * 1.01 >= goodput.max()
    assert budget == total if whole_is_as_good else goodput[budget] >= goodput.max() * (1.0 - 1e-6)


@settings(max_examples=200, deadline=None)
@given(seed=_seeds)
def test_any_number_of_best_tokens_is_a_prefix_of_each_draft(seed: int) -> None:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.0, 1.0, (BATCH, DEPTH))
    weights = generator.uniform(0.05, 1.0, DEPTH)  # rising, falling or neither
    keys = np.asarray(np.cumprod(ranking_confidences(confidence, weights), axis=1, dtype=np.float64))
    survival = np.asarray(np.cumprod(confidence, axis=1, dtype=np.float64))
    np.testing.assert_allclose(keys, np.maximum(ranking_keys(survival, weights), 1e-12), rtol=1e-9)
    assert (np.diff(keys, axis=1) <= 1e-15).all()
    size = int(generator.integers(0, BATCH * DEPTH + 1))
    best = np.sort(np.argsort(-keys, axis=None, kind="stable")[:size])
    for sequence in range(BATCH):
        own = best[best // DEPTH == sequence] % DEPTH
        assert own.tolist() == list(range(own.size))


@settings(max_examples=50, deadline=None)
@given(seed=_seeds)
def test_what_is_no_probability_is_not_verified(seed: int) -> None:
    generator = np.random.default_rng(seed)
    prices, drafts = _prices(generator), _alike(2, np.nan)
    assert prices.budget(drafts, GateOrder()) == 0
    ranked = ranking_confidences(drafts.confidence[0].astype(np.float64), prices.weights[2])
    assert np.isfinite(ranked).all()


def test_a_probe_is_whole_but_for_what_the_engine_can_verify() -> None:
    generator = np.random.default_rng(1)
    drafts = _drafts(generator, most=3)
    assert _prices(generator).budget(drafts, GateOrder(gated=False)) == min(3, int(drafts.drafted.sum()))


def test_a_batch_outside_the_prices_is_left_to_the_engine() -> None:
    generator = np.random.default_rng(2)
    drafts = _alike(BATCH + 1, 0.5)
    assert _prices(generator).budget(drafts, GateOrder()) is None


def test_tokens_that_only_fill_up_a_graph_cost_its_experts_alone() -> None:
    """Without experts, a budget always fills the graph that it needs."""
    positions = np.arange(BATCH + 1.0)[:, np.newaxis] * np.arange(1.0, DEPTH + 2.0)
    table = PriceTable.of(
        rest_seconds=1e-3 * (positions + 1.0),
        draft_seconds=np.zeros((BATCH + 1, DEPTH + 1)),
        expert_seconds=np.zeros(2),
        effective_by_depth=np.ones(DEPTH + 1),
    )
    prices = GatePrices(table=table, depths=DEPTH, prior=np.full(DEPTH, 0.6))
    drafts = _alike(4, 0.55)
    assert prices.budget(drafts, GateOrder()) == 0
    prices.set_graphs([8, 16, 32])
    assert prices.budget(drafts, GateOrder()) == 4  # eight positions, for the price of four that are padded to eight


@pytest.mark.parametrize("order", [GateOrder(draft_factor=0.0), GateOrder(verify_factors=(1.0, float("inf")))])
def test_learned_times_must_be_usable(order: GateOrder) -> None:
    generator = np.random.default_rng(4)
    drafts = _alike(3, 0.5)
    with pytest.raises(EngineError, match="positive"):
        _prices(generator).budget(drafts, order)
