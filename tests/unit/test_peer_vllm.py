"""The model of vLLM's adaptive verification; `tests/live/test_peer_vllm.py` compares it with vLLM's own code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specmargin.acceptance.bank import Rounds
from specmargin.answers.ladder_prices import LadderPrices, price_table
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.policies.peer_vllm import OnlineEstimator, VllmAdaptive, log_odds, profiled_by, split
from specmargin.policies.policy import Outcome
from specmargin.policies.study.ladder import previous_rounds
from specmargin.policies.tables import profiled_seconds, study_table
from tests.conftest import ROOT

DEPTH = 4


def gate(verify_seconds: Any, estimator: OnlineEstimator | None = None) -> VllmAdaptive:
    return VllmAdaptive(
        verify_seconds=np.asarray(verify_seconds),
        draft_seconds=np.full(65, 1e-3),
        depth=DEPTH,
        estimator=estimator or OnlineEstimator(depths=DEPTH),
    )


def test_its_curve_is_the_one_that_was_measured() -> None:
    """H200, Qwen3-30B-A3B, `max_num_seqs` 256: within 1.5% from 256 positions on. Below, the measured curve is a
    staircase (attention takes 32 requests at a time), 0 to 3.4 ms above these prices."""
    curves = json.loads((ROOT / "lab/results/vllm-0.32-h200/whole.json").read_text())["curves"]
    positions, measured = np.array(curves["positions"], dtype=np.int64), np.array(curves["vllm"]) / 1e3
    _, scenario = scenario_of(ScenarioRequest(model="qwen3-30b-a3b", gpu="h200", prices="laws", drafter="eagle3"))
    priced = profiled_seconds(Pricer(scenario), max_batch=256, max_depth=5)[positions]
    assert np.abs(priced / measured - 1.0)[positions >= 256].max() < 0.015
    assert ((measured - priced > -0.3e-3) & (measured - priced < 3.4e-3)).all()
    # Experts are left out: with them the same steps take 15 ms longer (profiled with random tokens).
    honest = np.array(curves["vllm honest"]) / 1e3
    assert (honest - priced)[positions >= 56].min() > 14e-3


def test_every_position_is_priced_as_a_request_without_experts() -> None:
    table = study_table(by_pass=True, max_batch=16, max_depth=DEPTH)
    curve = profiled_by(table)
    assert curve[1:17] == pytest.approx(table.rest_seconds[1:, 0, 0])
    assert curve[-1] == pytest.approx(table.rest_seconds[16, DEPTH, 0])
    assert (np.diff(curve) >= 0.0).all()
    # A draft token shares the cache of its sequence: it costs less than the curve says.
    assert np.diff(curve)[1:16].max() > table.rest_seconds[4, 1, 0] / 4 - table.rest_seconds[4, 0, 0] / 4


def test_the_budget_is_decided_by_the_round_before_and_split_by_the_newest() -> None:
    """Four sequences, of which two are sure now; a step of four positions more is free, then it is dear."""
    seconds = np.where(np.arange(21) <= 8, 1e-3, 1.0)
    peer = gate(seconds, OnlineEstimator(depths=DEPTH, slope=1.0, intercepts=np.zeros(DEPTH)))
    sure, unsure = np.cumprod(np.full(DEPTH, 0.99)), np.cumprod(np.full(DEPTH, 0.01))
    survival = np.stack([unsure, sure, unsure, sure])
    drafted = np.full(4, DEPTH)
    decision = peer.verify(peer.draft(4), survival, drafted)
    assert decision.verify_depths is not None
    assert decision.verify_depths.tolist() == [0, 2, 0, 2]
    # Where more positions cost a little, a hopeless round before leaves nothing of this one.
    costly = gate(np.arange(21) * 1e-3, OnlineEstimator(depths=DEPTH, slope=1.0, intercepts=np.zeros(DEPTH)))
    costly.recall(log_odds(np.tile(unsure, (4, 1))))
    late = costly.verify(costly.draft(4), np.tile(sure, (4, 1)), drafted)
    assert late.verify_depths is not None
    assert late.verify_depths.tolist() == [0, 0, 0, 0]
    again = costly.verify(costly.draft(4), np.tile(sure, (4, 1)), drafted)
    assert again.verify_depths is not None
    assert again.verify_depths.tolist() == [DEPTH] * 4


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(DEPTH)), elements=st.floats(0.0, 1.0)),
    st.data(),
)
def test_splits_are_prefixes_of_the_most_probable(confidence: Any, data: st.DataObject) -> None:
    batch = confidence.shape[0]
    drafted = np.array(data.draw(st.lists(st.integers(0, DEPTH), min_size=batch, max_size=batch)))
    budget = data.draw(st.integers(0, int(drafted.sum())))
    depths = split(confidence, drafted, budget)
    assert depths.sum() == budget
    assert (depths <= drafted).all()
    survival = np.cumprod(confidence, axis=1)
    inside = [survival[i, d] for i in range(batch) for d in range(depths[i])]
    outside = [survival[i, d] for i in range(batch) for d in range(depths[i], drafted[i])]
    assert min(inside, default=1.0) >= max(outside, default=0.0)


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(DEPTH)), elements=st.floats(0.0, 1.0)))
def test_log_odds_are_those_of_each_token(confidence: Any) -> None:
    odds = log_odds(np.cumprod(confidence, axis=1))
    assert np.isfinite(odds).all()
    assert np.abs(odds).max() <= 40.0
    reached = np.concatenate([np.ones((confidence.shape[0], 1)), np.cumprod(confidence, axis=1)[:, :-1]], axis=1) > 1e-9
    seen = reached & (confidence > 1e-6) & (confidence < 1.0 - 1e-6)
    expected = np.log(confidence[seen] / (1.0 - confidence[seen]))
    assert odds[seen] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_the_estimator_learns_from_what_is_verified() -> None:
    generator = np.random.default_rng(1)
    peer = gate(np.full(321, 1e-3))
    true = 0.8, np.array([-0.5, 0.0, 0.3, 0.6])
    for _ in range(800):
        odds = generator.normal(0.5, 1.5, (64, DEPTH))
        survival = np.asarray(np.cumprod(1.0 / (1.0 + np.exp(-odds)), axis=1), dtype=np.float64)
        hit = generator.random(odds.shape) < 1.0 / (1.0 + np.exp(-(true[0] * odds + true[1])))
        decision = peer.verify(peer.draft(64), survival, np.full(64, DEPTH))
        depths = decision.verify_depths
        assert depths is not None
        accepted = np.minimum(np.cumprod(hit, axis=1).sum(axis=1), depths)
        drafted = np.full(64, DEPTH)
        assert peer.observe(
            Outcome(decision=decision, drafted=drafted, verified=depths, accepted=accepted, seconds=1.0)
        )
    assert peer.estimator.slope == pytest.approx(true[0], abs=0.1)
    assert peer.estimator.intercepts == pytest.approx(true[1], abs=0.2)


def test_outcomes_of_other_steps_and_other_sequences_are_not_graded() -> None:
    peer = gate(np.full(81, 1e-3))
    first, second = (peer.verify(peer.draft(2), np.full((2, DEPTH), 0.5), np.full(2, DEPTH)) for _ in range(2))
    two, one = np.full(2, 1), np.full(1, 1)
    assert peer.observe(Outcome(decision=second, drafted=two, verified=two, accepted=two, seconds=1.0))
    assert peer.estimator._steps == 1
    assert peer.observe(Outcome(decision=first, drafted=two, verified=two, accepted=two, seconds=1.0))
    third = peer.verify(peer.draft(2), np.full((2, DEPTH), 0.5), np.full(2, DEPTH))
    assert peer.observe(Outcome(decision=third, drafted=one, verified=one, accepted=one, seconds=1.0))
    assert peer.estimator._steps == 1


def test_a_refit_without_observations_changes_nothing() -> None:
    estimator = OnlineEstimator(depths=DEPTH)
    nothing = np.zeros(2, dtype=np.int64)
    for _ in range(200):
        estimator.grade(np.zeros((2, DEPTH)), np.full((2, DEPTH), 0.5), nothing, nothing)
    assert (estimator.slope, estimator.intercepts.tolist()) == (0.5, [-0.2] * DEPTH)


def test_the_round_before_is_of_the_same_request() -> None:
    rounds = Rounds(
        category_by_round=("a",) * 6,
        prompt_by_round=np.array([1, 2, 1, 2, 1, 3]),
        round_index=np.array([0, 0, 1, 1, 3, 0]),
        drafted_by_round=np.full(6, 2),
        accepted_by_round=np.full(6, 1),
        confidence_by_round_depth=np.full((6, 2), 0.5),
        speculator="test",
        source="test",
    )
    assert previous_rounds(rounds).tolist() == [-1, -1, 0, 1, -1, -1]


def test_the_study_has_no_context_and_real_prices_have_vllms() -> None:
    assert price_table(LadderPrices.STUDY_PASSES)[1] is None
    table, profiled = price_table(LadderPrices.REAL)
    assert profiled is not None
    assert profiled.size == table.max_batch * (table.max_depth + 1) + 1
