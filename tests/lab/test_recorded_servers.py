"""`simulate` and servers on an H200: docs/results/served.md."""

from __future__ import annotations

import re

import numpy as np
import pytest
from lab.validation.recorded_servers import LAUNCHES, RECORDINGS, errors, recorded

from lab import ROOT

PAGE = (ROOT / "docs" / "results" / "served.md").read_text()
ROWS = {"tok/s": "tokens per second", "TTFT": "time to first token", "TPOT": "time per output token"}
FITTING = LAUNCHES[1]  # the launch time of a virtual host for which the page says how far off tokens per second are


@pytest.fixture(scope="module")
def found() -> dict[float, list[dict[str, float]]]:
    """Errors of every load, by launch time."""
    return {launch: [errors(recorded(path), launch) for path in RECORDINGS] for launch in LAUNCHES}


def test_every_load_of_the_page_is_there(found: dict[float, list[dict[str, float]]]) -> None:
    assert {len(loads) for loads in found.values()} == {17}


@pytest.mark.parametrize("metric", ROWS)
def test_medians_are_those_of_the_page(found: dict[float, list[dict[str, float]]], metric: str) -> None:
    row = re.search(rf"^\| {ROWS[metric]} \|(.*)\|$", PAGE, re.MULTILINE)
    assert row is not None
    said = [float(cell.strip(" %")) for cell in row[1].split("|")]
    medians = [100.0 * float(np.median([abs(load[metric]) for load in found[launch]])) for launch in LAUNCHES]
    assert medians == pytest.approx(said, abs=0.6)


def test_no_throughput_is_further_off_than_the_page_says(found: dict[float, list[dict[str, float]]]) -> None:
    said = re.search(r"tokens per second lie between −(\d+)% and \+(\d+)%", PAGE)
    assert said is not None
    each = [100.0 * load["tok/s"] for load in found[FITTING]]
    assert [-min(each), max(each)] == pytest.approx([float(said[1]), float(said[2])], abs=0.6)
