"""Errors that the pages claim are those of measurements to which nothing was fitted."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("scipy")

from lab.validation.rounds.measured import held_out_rounds, round_lines
from lab.validation.steps import step_lines

from specmargin.prices.kernels import store
from specmargin.show.explorer.gallery import figure
from specmargin.show.explorer.view import View
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not store.available(), reason="needs the measured tables")


def claim(opening: str) -> str:
    """The line of the list on the page that begins so."""
    text = (ROOT / "docs" / "results" / "accuracy.md").read_text(encoding="utf-8")
    found = re.search(rf"^- {opening}.*?(?=^- |^$)", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group().replace("\n  ", " ")


def test_whole_steps_are_those_of_a_run_that_was_not_fitted() -> None:
    unfitted = {line.source: line for line in step_lines() if line.steps.startswith("a second run")}
    assert all("nothing fitted" in line.steps for line in unfitted.values())
    tables = unfitted["tables"]
    said = claim("Whole verify steps")
    assert f"median error {tables.median_error:.1%}, worst {tables.worst_error:.1%}" in said
    assert f"off by {unfitted['datasheet'].median_error:.0%}" in said


def test_whole_rounds_are_those_of_models_left_out_of_the_fit() -> None:
    lines = [line for line in round_lines() if line.source == "tables" and "fitted without it" in line.rounds]
    first, second, third = sorted(line.median_error for line in lines)
    worst = max(line.worst_error for line in lines)
    assert f"median error {first:.1%}, {second:.1%} and {third:.1%}, worst {worst:.1%}" in claim(
        "Whole speculative rounds"
    )


def test_the_card_of_the_page_shows_the_same_rounds() -> None:
    errors = np.concatenate(
        [np.abs(seconds / rounds.seconds - 1.0)[rounds.captured] for rounds, seconds in held_out_rounds("tables")]
    )
    shown = figure("validation", View(request=None))  # type: ignore[arg-type]  # it depends on no scenario
    assert f"median error tables {np.median(errors):.1%}" in shown.takeaway
    assert "fitted to the others" in shown.takeaway
    rows = [row for row in shown.tables["rows"] if row["prices"] == "tables"]
    assert len(rows) == errors.size == 111
