"""The rounds that the package bundles for the page are those that the laboratory computes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("scipy")

from lab.fits.held_out_rounds import TARGET, text

from specmargin.catalog.held_out_rounds import held_out_rounds
from specmargin.prices.kernels import store


@pytest.mark.skipif(not store.available(), reason="needs the measured tables")
def test_bundled_rounds_are_computed_again() -> None:
    bundled, computed = (json.loads(words) for words in (TARGET.read_text(encoding="utf-8"), text()))
    *measured, predicted = zip(*bundled["rows"], strict=True)
    *measured_now, predicted_now = zip(*computed["rows"], strict=True)
    assert measured == measured_now
    assert predicted_now == pytest.approx(predicted, rel=1e-3)  # fits differ in the last digits between machines
    assert {**bundled, "rows": []} == {**computed, "rows": []}


def test_they_are_read_with_their_units() -> None:
    engine, rounds = held_out_rounds()
    assert "vLLM 0.32" in engine
    assert {row["prices"] for row in rounds} == {"tables", "laws"}
    assert all(1e-3 < row["measured_seconds"] < 1.0 for row in rounds)
