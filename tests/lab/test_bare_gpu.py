"""What kernel times of an H200 imply for verification."""

from __future__ import annotations

from io import StringIO

import pytest
from lab.studies.bare_gpu import MLA, ExpertTimes, expert_times, recorded_rows, report, turnings
from rich.console import Console

from specmargin.catalog.lookup import find_model
from specmargin.measure.gpu.shapes import shapes_of


@pytest.fixture(scope="module")
def times() -> ExpertTimes:
    shape = shapes_of(find_model("qwen3-30b-a3b")).experts
    assert shape is not None
    return expert_times(recorded_rows(), shape)


def test_time_follows_distinct_experts_not_positions(times: ExpertTimes) -> None:
    """Equal distinct experts: under 10% between 1 and 16 positions. Equal positions: a straight line."""
    for by_positions in times.growth.values():
        few = [value for positions, value in by_positions.items() if positions <= 16]
        assert max(few) / min(few) < 1.10
    assert times.straightness[16] <= 0.06
    assert times.straightness[32] <= 0.06
    assert times.bytes_per_second[16] == pytest.approx(4.5e12, rel=0.05)


def test_time_grows_with_positions_once_experts_are_compute_bound(times: ExpertTimes) -> None:
    """Few experts with many positions each turn into dense products."""
    assert times.growth[8][64] > 1.5
    assert times.growth[128][256] < 1.15


def test_queries_are_nearly_free_for_grouped_attention_and_not_for_latent() -> None:
    grouped = shapes_of(find_model("qwen3-30b-a3b")).attention
    assert grouped is not None
    turns = {(turn.kind, turn.context, turn.batch): turn for turn in turnings(recorded_rows(), grouped, MLA)}
    for context in (1024, 8192, 65536):
        assert turns["grouped", context, 1].relative[2] < 1.05
    assert turns["latent", 65536, 4].relative[8] > 4.0
    assert turns["grouped", 8192, 16].predicted_turn == pytest.approx(20.2, rel=0.02)
    assert turns["latent", 8192, 16].predicted_turn < 1.0  # bound by compute from the first query on
    assert 1.0 < (turns["latent", 8192, 16].measured_turn or 0.0) < 2.5


def test_the_report_has_both_tables() -> None:
    text = StringIO()
    report(Console(file=text, width=120))
    assert "Fused experts" in text.getvalue()
    assert "latent" in text.getvalue()
