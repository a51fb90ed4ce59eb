"""Sequences of a live engine: the same history and the same survivals as in a study of their bank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.acceptance.bank import Rounds
from specmargin.acceptance.calibration import Logistic, history_of, survival_of, tokens_of
from specmargin.engines.live.sequences import CLASS_ARGUMENT, DEPTH_ARGUMENT, Live, Survivals, usable
from specmargin.step import FloatArray


def rounds_of(generator: np.random.Generator, *, requests: int, each: int, depth: int) -> Rounds:
    """Confident drafters that are right somewhat less often than they say, requests that differ."""
    count = requests * each
    skill = np.repeat(generator.normal(0.0, 1.0, requests), each)
    confidence = 1.0 / (1.0 + np.exp(-generator.normal(1.0, 1.5, (count, depth)) - skill[:, np.newaxis]))
    taken = generator.random((count, depth)) < confidence**1.5
    accepted = np.cumprod(taken, axis=1).sum(axis=1)
    drafted = generator.integers(1, depth + 1, count)
    return Rounds(
        category_by_round=("all",) * count,
        prompt_by_round=np.repeat(np.arange(requests), each),
        round_index=np.tile(np.arange(each), requests),
        context_by_round=np.zeros(count),
        drafted_by_round=drafted,
        accepted_by_round=np.minimum(accepted, drafted),
        confidence_by_round_depth=confidence,
        speculator="test",
        source="test",
    )


def played(rounds: Rounds) -> list[float]:
    """History before each round, as a live engine has it."""
    live: dict[int, Live] = {}
    found = []
    for i in range(rounds.count):
        one = live.setdefault(int(rounds.prompt_by_round[i]), Live(number=0))
        found.append(one.history)
        one.learn(int(rounds.drafted_by_round[i]), int(rounds.accepted_by_round[i]))
    return found


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 30), st.integers(1, 8))
def test_history_is_that_of_the_bank(seed: int, requests: int, each: int, depth: int) -> None:
    rounds = rounds_of(np.random.default_rng(seed), requests=requests, each=each, depth=depth)
    np.testing.assert_allclose(played(rounds), history_of(rounds), rtol=1e-12, atol=1e-13)


def test_history_stays_finite() -> None:
    """However long a streak."""
    lucky, unlucky = Live(number=0), Live(number=0)
    for _ in range(10_000):
        lucky.learn(8, 8)
        unlucky.learn(8, 0)
    assert 3.0 < lucky.history < 10.0
    assert -10.0 < unlucky.history < -1.5
    assert lucky.rounds == 10_000


@pytest.mark.parametrize(("depth", "table_depth"), [(4, 4), (6, 4), (4, 7)])
def test_survivals_are_those_of_the_study(depth: int, table_depth: int) -> None:
    """A calibrator may know more depths than the prices, or fewer."""
    rounds = rounds_of(np.random.default_rng(1), requests=40, each=30, depth=depth)
    calibrator = Logistic.fit(tokens_of(rounds), depths=depth)
    survivals = Survivals(calibrator=calibrator, max_batch=16, max_depth=table_depth)
    expected, history = survival_of(rounds, calibrator), history_of(rounds)
    width = min(depth, table_depth)
    mean = np.full(table_depth, 0.5)
    for first in range(0, rounds.count, 16):
        index = np.arange(first, min(first + 16, rounds.count))
        batch = []
        for i in index:
            one = Live(number=0, confidence=rounds.confidence_by_round_depth[i])
            one.history = float(history[i])
            batch.append(one)
        found = survivals.of(batch, lambda: mean)
        assert found is not None
        assert found.shape == (index.size, width)
        assert found.flags.c_contiguous  # one layout, so that the gate is compiled once
        assert np.abs(found - expected[index, :width]).max() < 0.01


def test_sequences_without_confidence_get_the_mean() -> None:
    survivals = Survivals(calibrator=None, max_batch=3, max_depth=3)
    mean = np.array([0.6, 0.3])
    known, unknown = Live(number=0, confidence=np.array([0.5, 0.5, 0.5, 0.9])), Live(number=1)
    short = Live(number=2, confidence=np.array([0.9]))
    found = survivals.of([unknown, known, short], lambda: mean)
    assert found is not None
    np.testing.assert_allclose(found, [[0.6, 0.3, 0.0], [0.5, 0.25, 0.125], [0.9, 0.0, 0.0]])
    assert survivals.of([unknown, Live(number=3, confidence=np.empty(0))], lambda: mean) is None
    assert survivals.of([known] * 4, lambda: mean) is None  # more than the tables hold


# --- what comes from outside ---


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@given(anything, st.integers(0, 4))
def test_only_probabilities_are_usable(confidence: object, sequences: int) -> None:
    rows = usable(confidence, sequences)
    assert len(rows) == sequences
    for row in rows:
        assert row is None or (row.ndim == 1 and bool(np.all((row >= 0.0) & (row <= 1.0))))


def test_one_bad_row_spoils_no_other() -> None:
    rows = usable([[0.5, 0.4], [math.nan, 0.1], [0.2, 1.1], [0.2, -0.1], [1.0, 0.0]], 5)
    assert [row is None for row in rows] == [False, True, True, True, False]
    given_rows: FloatArray = np.array([[0.5, 0.4]], dtype=np.float32)
    assert usable(given_rows, 1)[0] is not None
    assert usable([[0.5], [0.5, 0.4]], 2) == [None, None]
    assert usable([0.5, 0.4], 2) == [None, None]
    assert usable([[0.5]], 2) == [None, None]
    assert usable([[10**400]], 1) == [None]


@given(st.none() | st.dictionaries(st.sampled_from([DEPTH_ARGUMENT, CLASS_ARGUMENT, "other"]), anything))
def test_any_arguments_make_a_sequence(arguments: dict[str, Any] | None) -> None:
    live = Live.of("request", arguments)
    assert isinstance(live.limit, int)
    assert live.limit >= 0
    assert live.group
    assert len(live.group) <= 64


@pytest.mark.parametrize(("wish", "limit"), [(0, 0), (3, 3), (2.9, 2), (0.0, 0)])
def test_depth_wishes(wish: float, limit: int) -> None:
    assert Live.of("a", {DEPTH_ARGUMENT: wish}).limit == limit


@pytest.mark.parametrize("wish", [None, True, "3", math.nan, -1, [3], math.inf, 10**400])
def test_what_cannot_be_read_is_not_a_wish(wish: object) -> None:
    assert Live.of("a", {DEPTH_ARGUMENT: wish}).limit > 1_000_000


def test_numbers_are_the_same_everywhere_and_do_not_collide() -> None:
    """The worker and the scheduler number requests without talking; a bank with two of the same cannot be read."""
    assert Live.of("cmpl-1", None).number == Live.of("cmpl-1", {CLASS_ARGUMENT: "code"}).number
    numbers = {Live.of(f"cmpl-{i}-0", None).number for i in range(200_000)}
    assert len(numbers) == 200_000  # with 32 bits, five pairs would share one
    assert max(numbers) < 2**63
