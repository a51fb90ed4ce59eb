"""What data-parallel ranks vote for: the same on every rank, and what the plan says of the same load."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.hardware.layout import Layout
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.tables import scenario_table, study_table
from specmargin.policies.vote import RankVote, VoteRules, lockstep_seconds, voted_depth
from specmargin.prices.ranks import lockstep
from specmargin.step import Step
from tests.scenarios import pricer

DEPTH, LARGEST = 4, 16
RANKS = st.sampled_from([2, 4, 8])
STUDY = VoteRules(table=study_table(by_pass=True, max_batch=64, max_depth=DEPTH), candidates=tuple(range(DEPTH + 1)))


def vote(load: int, acceptance: float, factors: tuple[float, ...] = ()) -> RankVote:
    survival = np.concatenate([[0.0], np.cumsum(acceptance ** np.arange(1.0, DEPTH + 1))])
    tokens = tuple((load * (1.0 + survival)).tolist())
    return RankVote(load=load, tokens_by_depth=tokens, draft_factor=(factors or (1.0,))[0], verify_factors=factors)


factors = st.lists(st.floats(0.25, 4.0), min_size=DEPTH + 1, max_size=DEPTH + 1).map(tuple)
votes = st.lists(st.builds(vote, st.integers(0, 80), st.floats(0.0, 1.0), factors), min_size=1, max_size=8)


@given(votes, st.integers(0, DEPTH), st.randoms())
def test_the_order_of_ranks_does_not_matter(given_votes: list[RankVote], current: int, random: object) -> None:
    shuffled = list(given_votes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert voted_depth(STUDY, shuffled, current) == voted_depth(STUDY, given_votes, current)
    seconds = {lockstep_seconds(STUDY.table, each, 2) for each in (shuffled, given_votes)}
    assert len(seconds) == 1  # to the last bit


@given(votes, st.integers(0, DEPTH))
def test_a_vote_is_for_a_candidate_or_changes_nothing(given_votes: list[RankVote], current: int) -> None:
    rules = VoteRules(table=STUDY.table, candidates=(0, 2))
    chosen = voted_depth(rules, given_votes, current)
    assert chosen in (0, 2) or (chosen == current and not any(each.load for each in given_votes))


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.1, 0.9))
def test_an_idle_rank_makes_no_step_slower(load: int, other: int, acceptance: float) -> None:
    """Experts of fewer positions, and the same busiest rank."""
    busy, less = vote(max(load, other), acceptance), vote(min(load, other), acceptance)
    for depth in range(DEPTH + 1):
        idle = lockstep_seconds(STUDY.table, [busy, vote(0, acceptance)], depth)
        assert idle <= lockstep_seconds(STUDY.table, [busy, less], depth)


@cache
def planned(model: str, ranks: int) -> tuple[Pricer, PriceTable]:
    """The plan's prices of all ranks, and the table by which they vote."""
    prices = pricer(model, "h200", layout=Layout.of(dp=ranks, ep=True))
    return prices, scenario_table(prices, Setting(max_depth=DEPTH), max_batch=LARGEST, ranks=ranks)


@given(st.sampled_from(["qwen3-30b-a3b", "deepseek-v3"]), RANKS, st.integers(1, LARGEST), st.floats(0.05, 0.95))
def test_equal_ranks_vote_for_the_depth_of_the_plan(model: str, ranks: int, load: int, acceptance: float) -> None:
    prices, table = planned(model, ranks)
    rules = VoteRules(table=table, candidates=tuple(range(DEPTH + 1)), hysteresis=0.0)
    grid = prices.grid(np.array([float(load * ranks)]), DEPTH)
    each = vote(load, acceptance)
    goodput = np.array(each.tokens_by_depth) / grid.round_seconds[0]
    chosen = voted_depth(rules, [each] * ranks, 0)
    assert goodput[chosen] >= goodput.max() * (1 - 1e-6)
    for depth in range(DEPTH + 1):
        assert np.isclose(lockstep_seconds(table, [each] * ranks, depth), grid.round_seconds[0, depth], rtol=1e-6)


@given(st.lists(st.integers(0, LARGEST), min_size=4, max_size=4), st.integers(0, DEPTH))
def test_unequal_ranks_are_priced_as_the_simulator_prices_them(loads: list[int], depth: int) -> None:
    """`lockstep` prices every rank's own step, a vote by the table of a policy file: the same seconds."""
    if not any(loads):
        return
    prices, table = planned("deepseek-v3", 4)
    steps = [Step.ragged(depths=[depth], contexts=prices.scenario.context).times(load) for load in loads]
    verify = prices.verify(*lockstep(steps)).total_seconds.max()
    drafting = float(table.draft_seconds[max(loads), depth, 0])
    voted = lockstep_seconds(table, [vote(load, 0.5) for load in loads], depth)
    assert np.isclose(voted, verify + drafting, rtol=1e-9)
