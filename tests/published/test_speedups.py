"""Speed-ups that others published (237 rows, eight sources), predicted with their own accept length.

No term is fitted to them: engine times come from served rows and
from rounds that were measured on one H200, so every source is held out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specmargin.validation.calls import Judged, grows_by, judge_rows
from specmargin.validation.points_schema import read_points
from specmargin.validation.speedups import (
    SpeedupLine,
    SpeedupReport,
    loop_errors,
    predict,
    source_median,
    speedup_lines,
)
from tests.data import SPEEDUPS


@pytest.fixture(scope="module")
def report() -> SpeedupReport:
    return predict(read_points(SPEEDUPS), SPEEDUPS.parent)


@pytest.fixture(scope="module")
def lines(report: SpeedupReport) -> dict[tuple[str, str], SpeedupLine]:
    return {(line.group, line.rule): line for line in speedup_lines(report)}


def test_every_row_can_be_asked(report: SpeedupReport) -> None:
    assert not report.refused
    assert len(report.predicted) == 237


def test_errors_of_all_rows(lines: dict[tuple[str, str], SpeedupLine]) -> None:
    """Before rounds were measured: 18.5%, bias +18.3%, 90th percentile 47%."""
    line = lines["all rows", "specmargin"]
    assert line.median_error <= 0.08
    assert abs(line.bias) <= 0.03
    assert line.p90_error <= 0.30
    assert lines["MoE", "specmargin"].median_error <= 0.09


def test_sources_count_alike(report: SpeedupReport) -> None:
    """Median over the sources of their median errors, each source counted once.

    11.7% before prices of unmeasured GPUs followed their clocks, by which S07 (H20) lost what others gained.
    """
    assert source_median(report) <= 0.13


def test_closed_loops_of_whole_requests(report: SpeedupReport) -> None:
    """What `plan --concurrency` simulates predicts rows with stated lengths or a dataset whose prompts are known."""
    assert all(row.speedup == row.loop.speedup for row in report.predicted if row.loop is not None)
    errors = loop_errors(report)
    assert errors is not None
    assert errors[0].rows == 90
    assert errors[0].median_error <= 0.08


def test_simple_rules_are_beaten(lines: dict[tuple[str, str], SpeedupLine]) -> None:
    ours = lines["all rows", "specmargin"]
    for rule in ("accept length", "constant × accept length", "datasheet"):
        assert ours.median_error < lines["all rows", rule].median_error
        rank, other = ours.rank_correlation, lines["all rows", rule].rank_correlation
        assert rank is not None
        assert other is not None
        assert rank > other


def test_errors_without_two_sources_of_consumer_cards(report: SpeedupReport) -> None:
    """S21 contradicts another measurement on the same cards; S39 is a community table of llama.cpp."""
    chosen = [row for row in report.predicted if row.point.source not in ("S21", "S39")]
    errors = sorted(abs(row.speedup / row.point.speedup - 1.0) for row in chosen)
    assert errors[round(0.9 * len(errors))] <= 0.25


@pytest.fixture(scope="module")
def judged(report: SpeedupReport) -> Judged:
    return judge_rows(report.predicted)


def test_few_gains_are_called_losses(judged: Judged) -> None:
    calls = judged.groups[0].calls
    assert calls.gains + calls.losses == 237
    assert calls.gains_called_losses <= 0.03 * calls.gains


def test_every_loss_has_a_reason(judged: Judged) -> None:
    assert len(judged.losses) >= judged.groups[0].calls.losses
    assert all(grows_by(row) for row, _ in judged.losses)


def test_prefill_leaves_little_to_gain(report: SpeedupReport) -> None:
    """S11's throughput: 2,048 tokens in, 64 out. Decoding alone would be predicted 1.3 to 1.5 times as fast.

    0.81 to 1.03 were measured. At small batches prompts are still too cheap: 1.12 is predicted where 0.81 was measured.
    The launch time of one slow host, which no longer prices them, hid that. Scheduling ahead added 0.01.
    """
    rows = [row for row in report.predicted if row.point.source == "S11" and row.point.prefill_inside]
    assert len(rows) == 6
    assert all(row.speedup <= 1.13 for row in rows)
    assert sum(row.speedup <= 1.06 for row in rows) >= 4


def test_ranges_hold_what_they_promise(report: SpeedupReport, judged: Judged) -> None:
    """Each source from the errors of the others: 70 to 90% of all rows, and 60% of each source with 30 rows or more."""
    spread = judged.left_out_ranges
    assert spread is not None
    assert 0.7 <= spread.inside.mean() <= 0.9
    assert spread.median_width <= 1.6
    sources = np.array([row.point.source for row in report.predicted])
    for source in ("S01", "S06", "S39"):
        assert spread.inside[sources == source].mean() >= 0.6


def test_paths_are_relative_to_the_file(report: SpeedupReport) -> None:
    row = next(row for row in report.predicted if "/" in row.point.gpu)
    assert not Path(row.point.gpu).is_absolute()
