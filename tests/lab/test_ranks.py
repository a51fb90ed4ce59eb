"""Ranks that vote: prices from measured rounds, and ratios of paired turns."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from lab.live.ranks import (
    CALIBRATED,
    COSTS_AT,
    PHASES,
    RANKS,
    STATIC_DEPTHS,
    Game,
    Pairing,
    Played,
    median,
    over,
    over_swing,
    policy_of,
    price_table,
    report,
    survival_of,
)

from specmargin.policies.vote import RankVote, lockstep_seconds


def _seconds(batch: int, depth: int) -> float:
    return 5e-3 + 1e-4 * batch + 2e-4 * batch * (depth + 1) + 1e-3 * depth


def _seen() -> dict[tuple[int, int], Played]:
    """Rounds whose drafts survive with 0.5 per token."""
    steps, cells = 100, {}
    for batch in CALIBRATED:
        for depth in STATIC_DEPTHS:
            committed = sum(0.5**k for k in range(depth + 1))
            cells[batch, depth] = Played(
                steps=steps,
                seconds=steps * _seconds(batch, depth),
                tokens=round(steps * RANKS * batch * committed),
                depths=steps * depth,
                draft_seconds=steps * 1e-3 * depth,
                expert_seconds=steps * 1e-4 * batch * (depth + 1),
            )
    return cells


@pytest.mark.parametrize(("batch", "depth"), [(1, 0), (4, 3), (12, 4), (16, 7)])
def test_prices_are_those_that_were_measured_and_lines_between_them(batch: int, depth: int) -> None:
    table = price_table(_seen())
    votes = [RankVote(load=batch, tokens_by_depth=()) for _ in range(RANKS)]
    assert lockstep_seconds(table, votes, depth) == pytest.approx(_seconds(batch, depth), rel=0.01)


def test_survival_is_what_one_more_token_commits() -> None:
    survival = survival_of(_seen())
    assert survival[:3] == pytest.approx([0.5, 0.25, 0.125], abs=0.01)
    assert np.all(np.diff(survival) <= 0)
    assert json.loads(policy_of(_seen()))["ranks"] == RANKS


def _played(rate: float, seconds: float = 1.0) -> Played:
    return Played(steps=10, seconds=seconds, tokens=round(rate * seconds), depths=20)


def _results() -> list[dict[str, list[Pairing]]]:
    """Votes are 1.1 times as fast as depth 3, the best, and 2.2 times as fast as the others; the plug-in costs 1%."""
    rates = {depth: 1000 if depth == 3 else 500 for depth in STATIC_DEPTHS}
    phase = {
        f"static {depth}": [Pairing(own=_played(rate), votes=_played(1100)) for _ in range(4)]
        for depth, rate in rates.items()
    }
    cost = {"alone": [Pairing(own=_played(1000), votes=_played(1000, 1.01)) for _ in range(4)]}
    return [*(phase for _ in PHASES), *(cost for _ in COSTS_AT)]


def test_ratios_of_a_phase_and_of_the_whole_swing() -> None:
    results = _results()
    assert over(results, "static 3", 0) == pytest.approx((1.1, 1.1, 1.1))
    assert over_swing(results, "static 0") == pytest.approx((2.2, 2.2, 2.2))
    text = report(results)
    assert text.count("| static 3 | 1.100 (1.100 to 1.100) |") == len(PHASES) + 1
    assert text.count("+1.0% (+1.0% to +1.0%)") == len(COSTS_AT)


def test_a_median_has_an_interval_that_holds_it() -> None:
    middle, low, high = median([0.9, 1.0, 1.0, 1.1, 1.2])
    assert low <= middle == 1.0 <= high
    assert math.isnan(median([])[0])


def test_only_full_steps_without_prompts_and_after_a_switch_count(tmp_path: Path) -> None:
    game = Game(folder=tmp_path, clients=None)  # type: ignore[arg-type]
    game._loads = {1: (2, 1)}
    steps = [(1, 2, 0), (1, 2, 0), (1, 2, 0), (1, 2, 7), (1, 1, 0), (1, 2, 0), (1, 2, 0)]
    for rank in range(RANKS):
        lines = [f"{serial} 0.1 {count - rank} {count - rank} {prompt} 3 0.01 0.02" for serial, count, prompt in steps]
        (tmp_path / f"steps-{rank}.txt").write_text("\n".join(lines))
    counted = game.counted()
    assert counted[1]._asdict() == pytest.approx(
        {"steps": 3, "seconds": 0.3, "tokens": 9, "depths": 9, "draft_seconds": 0.03, "expert_seconds": 0.06}
    )
