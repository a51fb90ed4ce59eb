"""Sequences of a live engine: whatever a request or a worker says, it is used or ignored."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.live.sequences import CLASS_ARGUMENT, DEPTH_ARGUMENT, LiveRequest, confidence_by_request

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


def usable_rows(confidence: object, sequences: int) -> list[bool]:
    """Which requests have a usable row."""
    names = [f"{i}" for i in range(sequences)]
    row_by_id = confidence_by_request(names, confidence)
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
