"""Ranks that vote: prices from measured rounds, and ratios of paired turns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.live.rank_results import (
    COSTS_AT,
    NAMES,
    PHASES,
    RANKS,
    STATIC_DEPTHS,
    Pairing,
    Played,
    figure,
    over,
    over_best,
    over_swing,
    read,
    report,
    write,
)
from lab.live.rank_turns import TURN_STEPS, StepLine, Turn, _Turns, at_least, write_turns
from lab.live.ranks import CALIBRATED, Game, policy_of, price_table, survival_of

from lab import ROOT
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


def _results(noise: float = 0.0) -> list[dict[str, list[Pairing]]]:
    """Votes are 1.1 times as fast as depth 3, the best, and 2.2 times as fast as the others; the plug-in costs 1%."""
    rates = {depth: 1000 if depth == 3 else 500 for depth in STATIC_DEPTHS}
    speeds = np.random.default_rng(0).lognormal(0.0, noise, 40)  # of the machine
    phase = {
        f"static {depth}": [
            Pairing(_played(rate, speed), _played(1100, speed), _played(1100, speed)) for speed in speeds
        ]
        for depth, rate in rates.items()
    }
    for pairs in phase.values():  # a turn commits the same tokens, however fast the machine is
        pairs[:] = [Pairing(*(one._replace(tokens=round(one.tokens / one.seconds)) for one in pair)) for pair in pairs]
    cost = {"alone": [Pairing(_played(1000), *[_played(1000, 1.01)] * 2) for _ in range(4)]}
    return [*(phase for _ in PHASES), *(cost for _ in COSTS_AT)]


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_ratios_do_not_depend_on_how_fast_the_machine_was(noise: float) -> None:
    results = _results(noise)
    assert over(results[0], "static 3") == pytest.approx(1.1, abs=1e-3)
    assert over_best(results[0]) == pytest.approx(1.1, abs=1e-3)
    assert over_swing(results, "static 0") == pytest.approx(2.2, abs=1e-3)
    text = report(results)
    assert text.count("| static 3 | 1.100 (1.100 to 1.100) |") == len(PHASES) + 1
    assert text.count("+1.0% (+1.0% to +1.0%)") == len(COSTS_AT)


@given(st.integers(0, 1000), st.floats(0.9, 1.1))
@settings(max_examples=25, deadline=None)
def test_a_ratio_of_noisy_turns_is_found_within_its_interval(seed: int, right: float) -> None:
    """Turns of 4 steps, whose seconds and tokens vary."""
    chance = np.random.default_rng(seed)

    def played(rate: float, speed: float) -> Played:
        return Played(4, 0.2 * speed * float(chance.lognormal(0.0, 0.1)), int(chance.poisson(200 * rate)), 8)

    pairs = [
        Pairing(played(1.0, speed), *(played(right, speed) for _ in range(2)))
        for speed in chance.lognormal(0.0, 0.3, 300)
    ]
    for typical in (True, False):
        found = over({"one": pairs}, "one", typical=typical)
        assert found[0] == pytest.approx(right, rel=0.05)
        low, high = np.quantile(found[1:], [0.005, 0.995])
        assert 0.97 * low < right < 1.03 * high


def test_the_best_of_equal_depths_is_not_better_than_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen and judged by the same noisy turns it would be 2% better."""
    monkeypatch.setattr("lab.live.rank_results._DRAWS", 2)
    chance, ratios, naive = np.random.default_rng(0), [], []
    for _ in range(60):
        seconds = chance.lognormal(0.0, 0.1, (len(NAMES), 60, 3))
        pairs = {
            name: [Pairing(*(Played(4, one, 100) for one in turns)) for turns in of_name]
            for name, of_name in zip(NAMES, seconds.tolist(), strict=True)
        }
        ratios.append(over_best(pairs)[0])
        naive.append(min(over(pairs, name)[0] for name in NAMES))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.01)
    assert np.mean(naive) < 0.985


def test_only_full_steps_without_prompts_and_after_a_switch_count(tmp_path: Path) -> None:
    game = Game(folder=tmp_path, clients=None)  # type: ignore[arg-type]
    game._loads = {1: (2, 1)}
    steps = [(1, 2, 0), (1, 2, 0), (1, 2, 0), (1, 2, 7), (1, 1, 0), (1, 2, 0), (1, 2, 0)]
    for rank in range(RANKS):
        lines = [
            StepLine(serial, 0.1, 2 * (count - rank), count - rank, prompt, 3, 0.01, 0.02, (2 - rank, 1), (2 - rank,))
            for serial, count, prompt in steps
        ]
        (tmp_path / f"steps-{rank}.txt").write_text("".join(f"{line.text}\n" for line in lines))
    counted = game.counted()
    *numbers, drafts, kept = counted[1]
    assert numbers == pytest.approx([4, 0.4, 24, 12, 0.04, 0.08])
    assert (drafts, kept) == ((12, 8), (12,))


def test_steps_with_a_long_tail_make_nobody_slower() -> None:
    """A mean of eight such steps is mostly longer than one of four."""
    seconds = np.random.default_rng(0).pareto(2.0, (4000, 3, 4)).mean(axis=2) + 1.0
    pairs = [Pairing(*(Played(4, 4.0 * one, 100) for one in turns)) for turns in seconds.tolist()]
    assert over({"one": pairs}, "one")[0] == pytest.approx(1.0, abs=0.01)
    assert np.median(seconds[:, 1:].mean(axis=1) / seconds[:, 0]) > 1.02


def test_tokens_count_by_the_share_of_drafts_that_is_kept_whoever_played() -> None:
    """Each turn sees other texts, most of which keep all drafts or none: votes at the best depth are level with it."""
    chance, lengths = np.random.default_rng(0), {"static 3": 3, "static 1": 1}

    def turn(depth: int) -> Played:
        kept = int(chance.choice([0, depth]))
        tokens = 4 * (1 + kept)
        return Played(4, 0.4 + 0.04 * depth, tokens, 4 * depth, drafts=(4,) * depth, kept=(4,) * kept)

    pairs = {name: [Pairing(turn(depth), turn(3), turn(3)) for _ in range(60)] for name, depth in lengths.items()}
    found = over(pairs, "static 3")
    assert found[0] == pytest.approx(1.0, abs=1e-9)
    assert np.ptp(found) < 1e-9
    assert over(pairs, "static 1")[0] == pytest.approx(2.5 / 1.5 * 0.44 / 0.52, rel=0.15)


def test_rare_long_steps_count_in_full_in_a_mean() -> None:
    """One turn of sixteen of the votes takes twice as long."""
    pairs = [
        Pairing(Played(4, 0.4, 100), Played(4, 0.8 if i % 16 == 0 else 0.4, 100), Played(4, 0.4, 100))
        for i in range(160)
    ]
    assert over({"one": pairs}, "one")[0] == pytest.approx(1.0)
    assert over({"one": pairs}, "one", typical=False)[0] == pytest.approx(2.0 ** (-1 / 32))


@given(st.lists(st.integers(0, 7), max_size=20))
def test_counts_of_drafts_sum_to_their_lengths(lengths: list[int]) -> None:
    counts = at_least(lengths)
    assert sum(counts) == sum(lengths)
    assert all(counts) and list(counts) == sorted(counts, reverse=True)
    line = StepLine(3, 0.25, 5, 2, 0, 4, 0.1, 0.2, counts, counts[:1])
    assert StepLine.of(line.text) == line


def test_a_recorded_swing_is_read_as_it_was_written_and_drawn(tmp_path: Path) -> None:
    write(_results(), tmp_path / "swing.json", recorded="today")
    assert read(tmp_path / "swing.json") == _results()
    (rows,) = figure(read(tmp_path / "swing.json")).to_dict()["datasets"].values()
    assert len(rows) == 2 * len(PHASES) * len(STATIC_DEPTHS)
    assert {row["rate"] for row in rows if row["policy"] == "votes"} == {1100.0}


def test_the_recorded_swing_is_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 0.98 of the best static depth in each phase, by medians and means; ahead of each over the swing."""
    monkeypatch.setattr("lab.live.rank_results._DRAWS", 2)
    results = read(ROOT / "lab" / "results" / "vllm-0.32-cpu-ranks" / "swing.json")
    page = (ROOT / "docs" / "results" / "votes.md").read_text(encoding="utf-8")
    for phase, pairs in zip(PHASES, results, strict=False):
        medians, means = (over_best(pairs, typical=typical)[0] for typical in (True, False))
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {phase} |")]
        assert f"| {medians:.3f} (" in row and f"| {means:.3f} (" in row
        assert min(medians, means) >= 0.98
    for name in NAMES:
        ahead = over_swing(results, name)[0]
        assert f"| {name} | {ahead:.3f} (" in page and ahead > 1.1


def test_turns_last_so_many_steps_and_the_last_one_until_there_are_new_ones(tmp_path: Path) -> None:
    turns = _Turns(file=tmp_path / "turns")
    write_turns(tmp_path, [Turn(1), Turn(2)])
    first = [turns.next().serial for _ in range(3 * TURN_STEPS)]
    write_turns(tmp_path, [Turn(3), Turn(4)])
    second = [turns.next().serial for _ in range(2 * TURN_STEPS)]
    assert first == [1] * TURN_STEPS + [2] * 2 * TURN_STEPS
    assert second == [3] * TURN_STEPS + [4] * TURN_STEPS
