"""Laws of one GPU scaled to another, against the laws that were fitted to measurements of that other GPU."""

from __future__ import annotations

import numpy as np
from lab.validation.scaled import scaling_lines

LINES = list(scaling_lines())


def test_every_measured_gpu_is_held_out() -> None:
    assert len(LINES) == 9
    assert all(line.gpu != line.scaled_from for line in LINES)
    assert all(line.steps == 50 for line in LINES)


def test_scaled_laws_beat_the_datasheet() -> None:
    """Median over GPUs 7%; the datasheet 35%. The worst GPU is the H100, scaled from an A100."""
    assert np.median([line.median_error for line in LINES]) <= 0.10
    assert max(line.median_error for line in LINES) <= 0.25
    for line in LINES:
        assert line.median_error < line.datasheet_error


def test_the_price_of_verifying_scales_best() -> None:
    """A verify step over a plain step, which decides whether speculation pays: within 6% on every GPU."""
    assert max(line.ratio_error for line in LINES) <= 0.06
