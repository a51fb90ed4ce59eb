"""Two sources of prices side by side: what each would cost under the other's."""

from __future__ import annotations

import pytest

from specmargin.decisions.compare import compare
from specmargin.decisions.setting import Setting
from specmargin.prices.model import EngineTime
from tests.scenarios import pricer


def test_equal_prices_have_no_regret_and_no_difference() -> None:
    same = pricer(acceptance="0.8")
    comparison = compare(same, same, [1, 8], Setting(max_depth=8, graph_limit=512))
    for row in comparison.rows:
        assert row.ours.depth == row.other.depth
        assert row.ours.regret == row.other.regret == 0.0
        assert all(d.added == pytest.approx(d.other_added) for d in row.differences)


def test_regret_is_never_negative_and_fixed_time_favours_depth() -> None:
    """Time that does not grow with the draft makes deeper drafts worth more: the roofline that lacks it drafts less."""
    plain = pricer(acceptance="0.8")
    slow = pricer(acceptance="0.8", engine_time=EngineTime(step_seconds=5e-3))
    comparison = compare(slow, plain, [1, 2, 4], Setting(max_depth=8, graph_limit=512))
    for row in comparison.rows:
        assert row.ours.regret >= 0.0
        assert row.other.regret >= 0.0
        assert row.ours.depth >= row.other.depth
    assert any(row.ours.depth > row.other.depth for row in comparison.rows)


def test_differences_come_largest_first() -> None:
    comparison = compare(
        pricer(acceptance="0.8", engine_time=EngineTime(position_seconds=1e-4)),
        pricer(acceptance="0.8"),
        [4],
        Setting(max_depth=8, graph_limit=512),
    )
    (row,) = comparison.rows
    apart = [abs(d.added - d.other_added) for d in row.differences]
    assert apart == sorted(apart, reverse=True)
