"""Plain steps of vLLM 0.32 on an H200 by precision of the weights: measured for this project, nothing fitted."""

from __future__ import annotations

import numpy as np
import pytest
from lab.validation.precisions import PrecisionRun, measured_runs

RUNS = list(measured_runs())


@pytest.mark.parametrize("measured", RUNS, ids=lambda run: run.name)
def test_within_8_percent_at_every_batch(measured: PrecisionRun) -> None:
    """Static and dynamic FP8 per tensor, FP8 by blocks, BF16, int4: batch 1 to 256."""
    assert measured.batch.tolist() == [1, 8, 32, 64, 256]
    assert np.abs(measured.errors("tables")).max() <= 0.08
    assert np.abs(measured.errors("laws")).max() <= 0.12


def test_the_datasheet_misses_them_by_a_third_or_more() -> None:
    assert all(np.abs(measured.errors("datasheet")).min() > 0.25 for measured in RUNS)
