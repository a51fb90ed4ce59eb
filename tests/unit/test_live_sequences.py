"""Sequences of a live engine: histories and survivals are those of an offline study of their bank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.acceptance.bank import Rounds
from specmargin.acceptance.calibration import Logistic, history_of, survival_of, tokens_of
from specmargin.live.sequences import CLASS_ARGUMENT, DEPTH_ARGUMENT, Batch, Drafts, Histories, LiveRequest, Survivals
from specmargin.step import FloatArray


def rounds_of(generator: np.random.Generator, *, requests: int, rounds_per_request: int, depth: int) -> Rounds:
    """An overconfident drafter, and requests that differ."""
    count = requests * rounds_per_request
    skill = np.repeat(generator.normal(0.0, 1.0, requests), rounds_per_request)
    confidence = 1.0 / (1.0 + np.exp(-generator.normal(1.0, 1.5, (count, depth)) - skill[:, np.newaxis]))
    is_accepted = generator.random((count, depth)) < confidence**1.5
    accepted = np.cumprod(is_accepted, axis=1).sum(axis=1)
    drafted = generator.integers(1, depth + 1, count)
    return Rounds(
        category_by_round=("all",) * count,
        prompt_by_round=np.repeat(np.arange(requests), rounds_per_request),
        round_index=np.tile(np.arange(rounds_per_request), requests),
        context_by_round=np.zeros(count),
        drafted_by_round=drafted,
        accepted_by_round=np.minimum(accepted, drafted),
        confidence_by_round_depth=confidence,
        speculator="test",
        source="test",
    )


def batch_of(histories: Histories, sequences: int) -> Batch:
    requests = {f"{i}": LiveRequest(number=i, history_row=histories.allocate()) for i in range(sequences)}
    return Batch(list(requests), requests)


def played(rounds: Rounds) -> list[float]:
    """History before each round, as in a live engine."""
    histories = Histories(capacity=2)
    requests: dict[str, LiveRequest] = {}
    log_odds = []
    for i in range(rounds.count):
        name = str(rounds.prompt_by_round[i])
        if name not in requests:
            requests[name] = LiveRequest(number=0, history_row=histories.allocate())
        log_odds.append(float(histories.rows["log_odds"][requests[name].history_row]))
        histories.learn(
            Batch([name], requests), rounds.drafted_by_round[i : i + 1], rounds.accepted_by_round[i : i + 1]
        )
    return log_odds


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 30), st.integers(1, 8))
def test_history_is_that_of_the_bank(seed: int, requests: int, rounds_per_request: int, depth: int) -> None:
    rounds = rounds_of(
        np.random.default_rng(seed), requests=requests, rounds_per_request=rounds_per_request, depth=depth
    )
    np.testing.assert_allclose(played(rounds), history_of(rounds), rtol=1e-12, atol=1e-13)


def test_history_stays_finite() -> None:
    """However long the sequence accepts or rejects everything."""
    histories = Histories()
    batch = batch_of(histories, 2)
    for _ in range(10_000):
        histories.learn(batch, np.array([8, 8]), np.array([8, 0]))
    lucky, unlucky = histories.rows["log_odds"][batch.history_rows]
    assert 3.0 < lucky < 10.0
    assert -10.0 < unlucky < -1.5


@pytest.mark.parametrize(("depth", "table_depth"), [(4, 4), (6, 4), (4, 7)])
def test_survivals_are_those_of_the_study(depth: int, table_depth: int) -> None:
    """A calibrator may have more depths than the prices, or fewer."""
    rounds = rounds_of(np.random.default_rng(1), requests=40, rounds_per_request=30, depth=depth)
    calibrator = Logistic.fit(tokens_of(rounds), depths=depth)
    survivals = Survivals(calibrator=calibrator, max_batch=16, max_depth=table_depth)
    expected, history = survival_of(rounds, calibrator), history_of(rounds)
    width = min(depth, table_depth)
    mean = np.full(table_depth, 0.5)
    for first in range(0, rounds.count, 16):
        index = np.arange(first, min(first + 16, rounds.count))
        histories = Histories()
        batch = batch_of(histories, index.size)
        histories.rows["log_odds"][batch.history_rows] = history[index]
        drafts = Drafts(batch.ids, rounds.confidence_by_round_depth[index])
        survival, _ = survivals.of(batch, drafts, histories, lambda: mean)
        assert survival is not None
        assert survival.shape == (index.size, width)
        assert survival.flags.c_contiguous  # one layout, so that the gate is compiled once
        assert np.abs(survival - expected[index, :width]).max() < 0.01


def test_sequences_without_confidence_get_the_mean() -> None:
    survivals = Survivals(calibrator=None, max_batch=3, max_depth=3)
    histories = Histories()
    mean = np.array([0.6, 0.3])

    def survival_of_batch(drafts: Drafts, ids: list[str]) -> tuple[FloatArray | None, int]:
        return survivals.of(Batch(ids, {}), drafts, histories, lambda: mean)

    drafts = Drafts(["bad", "known", "other"], [[0.5, math.nan], [0.5, 0.5], [0.9, 0.0]])
    rows, ignored = survival_of_batch(drafts, ["unknown", "known", "bad"])
    assert rows is not None
    assert ignored == 1
    np.testing.assert_allclose(rows, [[0.6, 0.3, 0.0], [0.5, 0.25, 0.0], [0.6, 0.3, 0.0]])
    assert survival_of_batch(drafts, ["unknown", "bad"]) == (None, 1)
    assert survival_of_batch(Drafts(["known"], np.empty((1, 0))), ["known"]) == (None, 0)
    assert survival_of_batch(Drafts(), ["known"]) == (None, 0)
    assert survival_of_batch(drafts, ["known"] * 4) == (None, 0)  # more than the tables hold


# --- input from outside ---


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


def usable_rows(confidence: object, sequences: int) -> list[bool]:
    """Which requests have a usable row."""
    names = [f"{i}" for i in range(sequences)]
    drafts = Drafts(names, confidence)
    row_by_id = drafts.by_request()
    for row in row_by_id.values():
        assert row.ndim == 1
        assert ((row >= 0.0) & (row <= 1.0)).all()
    return [name in row_by_id for name in names]


@given(anything, st.integers(0, 4))
def test_only_probabilities_are_usable(confidence: object, sequences: int) -> None:
    assert len(usable_rows(confidence, sequences)) == sequences


def test_an_invalid_row_does_not_affect_the_others() -> None:
    rows = [[0.5, 0.4], [math.nan, 0.1], [0.2, 1.1], [0.2, -0.1], [1.0, 0.0]]
    assert usable_rows(rows, 5) == [True, False, False, False, True]
    assert usable_rows(np.array([[0.5, 0.4]], dtype=np.float32), 1) == [True]
    assert usable_rows(np.full((4, 2), 0.5)[:, ::-1], 4) == [True] * 4
    for wrong in ([[0.5], [0.5, 0.4]], [0.5, 0.4], [[0.5]]):
        assert usable_rows(wrong, 2) == [False, False]
    assert usable_rows([[10**400]], 1) == [False]


@given(st.none() | st.dictionaries(st.sampled_from([DEPTH_ARGUMENT, CLASS_ARGUMENT, "other"]), anything))
def test_any_arguments_make_a_sequence(arguments: dict[str, Any] | None) -> None:
    request = LiveRequest.of("request", arguments)
    assert isinstance(request.limit, int)
    assert request.limit >= 0
    assert request.group
    assert len(request.group) <= 64


@pytest.mark.parametrize(("value", "limit"), [(0, 0), (3, 3), (2.9, 2), (0.0, 0)])
def test_depth_limits(value: float, limit: int) -> None:
    assert LiveRequest.of("a", {DEPTH_ARGUMENT: value}).limit == limit


@pytest.mark.parametrize("value", [None, True, "3", math.nan, -1, [3], math.inf, 10**400])
def test_invalid_depth_limits_are_ignored(value: object) -> None:
    assert LiveRequest.of("a", {DEPTH_ARGUMENT: value}).limit > 1_000_000


def test_numbers_are_the_same_everywhere_and_do_not_collide() -> None:
    """The worker and the scheduler number requests independently; a bank with a duplicate cannot be read."""
    assert LiveRequest.of("cmpl-1", None).number == LiveRequest.of("cmpl-1", {CLASS_ARGUMENT: "code"}).number
    numbers = {LiveRequest.of(f"cmpl-{i}-0", None).number for i in range(200_000)}
    assert len(numbers) == 200_000  # with 32 bits, five pairs would share one
    assert max(numbers) < 2**63
