"""Ranks that vote on replayed engines, through driver and ballot: wrong prices, and loads that differ by rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from specmargin.live.ballot import Ballot
from specmargin.live.board import Board
from specmargin.live.driver import Agreed, Driver
from specmargin.live.guard import Guard
from specmargin.live.settings_schema import Mode
from specmargin.policies.controller import Controller
from specmargin.policies.tables import study_table
from specmargin.policies.vote import RankVote, lockstep_seconds
from specmargin.step import FloatArray
from tests.unit.live import done
from tests.unit.votes import Group

DEEPEST, INTERVAL = 7, 16
TABLE = study_table(by_pass=True, max_batch=64, max_depth=DEEPEST)
ACCEPTANCE = 0.75
TOKENS = np.cumsum(ACCEPTANCE ** np.arange(DEEPEST + 1.0))  # that a sequence is expected to commit, by depth


@dataclass(kw_only=True)
class Rank:
    """As an engine runs it."""

    load: int
    group: Group
    number: int
    driver: Driver = field(init=False)
    ballot: Ballot = field(init=False)

    def __post_init__(self) -> None:
        controller = Controller(table=TABLE, prior_survival=0.7 ** np.arange(1.0, DEEPEST + 1.0))
        self.driver = Driver(
            mode=Mode.ADAPTIVE,
            policy=controller,
            max_depth=DEEPEST,
            guard=Guard(log=print, slowest_seconds=math.inf),
            board=Board(),
            agreed=Agreed(depth=lambda: self.ballot.depth, loads=lambda: self.ballot.loads),
            time_factors=controller.time_factors,
            learn_every=8,
        )
        rules = self.driver.vote_rules
        assert rules is not None
        self.ballot = Ballot(
            rules=rules,
            static_depth=DEEPEST,
            max_depth=DEEPEST,
            own_vote=lambda: self.driver.vote(self.load),
            gather=self.group.member(self.number),
            log=print,
        )

    def step(self, number: int, verified: int, drafted: int, seconds: float, chance: np.random.Generator) -> None:
        if self.load:
            assert self.driver.draft_depth(self._names) == drafted
            accepted = np.minimum(chance.geometric(1.0 - ACCEPTANCE, self.load) - 1, verified)
            outcome = done(self._names, [verified] * self.load, accepted.tolist(), seconds=seconds)
            self.driver.done(outcome, drafted)
        self.ballot.stepped(number, asks=number == 1 or number % INTERVAL == 0, running=True)

    @property
    def _names(self) -> list[str]:
        return [str(i) for i in range(self.load)]


def played(loads: tuple[int, ...], slower: FloatArray, seed: int, *, noise: float = 0.15) -> tuple[float, Rank]:
    """Goodput over steps 500 to 3,000, relative to the best depth in hindsight; and the first rank. `slower`: rounds
    over their price, by depth."""
    group, chance = Group(len(loads)), np.random.default_rng(seed)
    ranks = [Rank(load=load, group=group, number=number) for number, load in enumerate(loads)]
    alike = [RankVote(load=load, tokens_by_depth=()) for load in loads]
    seconds = np.array([lockstep_seconds(TABLE, alike, depth) for depth in range(DEEPEST + 1)]) * slower
    drafting = np.array(TABLE.draft_seconds[max(loads), : DEEPEST + 1, 0])
    held, made, spent = 0, 0.0, 0.0
    for number in range(1, 3000):
        verified, held = held, ranks[0].ballot.depth
        step = seconds[verified] - drafting[verified] + drafting[held]
        for rank in ranks:
            rank.step(number, verified, held, float(step * np.exp(chance.normal(0.0, noise))), chance)
        if number >= 500:
            made, spent = made + TOKENS[verified], spent + step
    for rank in ranks:
        assert not rank.driver.guard.faults
    return float(made / spent / np.max(TOKENS / seconds)), ranks[0]


KINDS = {"as priced": 0.0, "deep drafts are slower": 0.4, "deep drafts are quicker": -0.3}


@pytest.mark.parametrize("loads", [(3, 3), (16, 16), (12, 4), (1, 0), (40, 2)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_votes_find_the_best_depth_where_prices_are_wrong(loads: tuple[int, ...], kind: str) -> None:
    slower = 1.0 + KINDS[kind] * np.arange(DEEPEST + 1.0) / DEEPEST
    ratios = [played(loads, slower, seed)[0] for seed in range(3)]
    print("of the best depth:", *(f"{ratio:.3f}" for ratio in ratios))
    assert np.mean(ratios) >= 0.985


def test_other_loads_on_other_ranks_are_no_fault_of_the_prices() -> None:
    """Rounds take what these loads are priced at: 12 sequences beside 4 less than 12 beside 12, by depth."""
    _, busiest = played((12, 4), np.ones(DEEPEST + 1), 0, noise=0.02)
    vote = busiest.driver.vote(12)
    assert vote is not None
    assert vote.verify_factors[1:] == pytest.approx([1.0] * DEEPEST, abs=0.06)
