"""Experts saved by choosing which sequences share a step."""

from __future__ import annotations

import pytest

pytest.importorskip("numba")

from lab.studies.grouping import grouping_savings

from specmargin.routing.capture import open_captures
from tests.data import REFERENCE_BANK


def test_grouping_saves_a_little_and_never_more_than_an_oracle() -> None:
    lines = grouping_savings(open_captures([str(REFERENCE_BANK)]), experts=64)
    assert [line.batch for line in lines] == [2, 4, 8, 16]
    for line in lines:
        assert 0.0 < line.saving < line.oracle_saving < 0.25
