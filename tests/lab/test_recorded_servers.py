"""`simulate` and servers on an H200: docs/results/served.md."""

from __future__ import annotations

import numpy as np
import pytest
from lab.validation.recorded_servers import LAUNCHES, RECORDINGS, errors, recorded


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    """Errors with the launch time of a virtual host."""
    return {path.stem: errors(recorded(path), LAUNCHES[1]) for path in RECORDINGS}


def test_every_load_of_the_page_is_there(found: dict[str, dict[str, float]]) -> None:
    assert len(found) == 17


@pytest.mark.parametrize(("metric", "most"), [("tok/s", 0.1), ("TTFT", 0.12), ("TPOT", 0.13)])
def test_medians_are_those_of_the_page(found: dict[str, dict[str, float]], metric: str, most: float) -> None:
    assert np.median([abs(error[metric]) for error in found.values()]) < most


def test_no_throughput_is_further_off_than_the_page_says(found: dict[str, dict[str, float]]) -> None:
    assert all(-0.15 < error["tok/s"] < 0.38 for error in found.values())
