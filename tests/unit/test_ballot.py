"""Votes among simulated ranks: joins, waves, failures. Depths must be equal on every rank in every step, and no rank
may wait for a vote that another does not enter."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.live.agreement import Statement, agree
from specmargin.live.ballot import Ballot, Numbers, Row, row_size
from specmargin.policies.tables import study_table
from specmargin.policies.vote import RankVote, VoteRules, probed_depth
from tests.unit.votes import Group

DEPTH, INTERVAL = 4, 16
RULES = VoteRules(table=study_table(by_pass=True, max_batch=64, max_depth=DEPTH), candidates=tuple(range(DEPTH + 1)))


def vote(load: int, acceptance: float = 0.7, probe: int = -1) -> RankVote:
    tokens = [load * sum(acceptance**place for place in range(depth + 1)) for depth in range(DEPTH + 1)]
    factors = (1.0,) * (DEPTH + 1)
    return RankVote(load=load, tokens_by_depth=tuple(tokens), verify_factors=factors, probe=probe)


class Rank:
    """A rank with a load that the test sets, and a policy that may fail."""

    def __init__(self, group: Group, rank: int, static: int = DEPTH) -> None:
        self.load, self.acceptance, self.fails = 0, 0.7, False
        self.log: list[str] = []
        self.ballot = Ballot(
            rules=RULES,
            static_depth=static,
            max_depth=DEPTH,
            own_vote=self._vote,
            gather=group.member(rank),
            log=self.log.append,
        )

    def _vote(self) -> RankVote | None:
        if self.fails:
            raise ZeroDivisionError("injected")
        return vote(self.load, self.acceptance)


def team(ranks: int) -> list[Rank]:
    group = Group(ranks)
    return [Rank(group, rank) for rank in range(ranks)]


def run(ranks: Sequence[Rank], first: int, steps: int, *, ends: bool = False) -> list[int]:
    """So many steps of a wave, after which it may end; the depth of each, which must be that of all ranks."""
    depths = []
    for counter in range(first, first + steps):
        assert len({rank.ballot.depth for rank in ranks}) == 1
        depths.append(ranks[0].ballot.depth)
        asks, running = counter == 1 or counter % INTERVAL == 0, not (ends and counter == first + steps - 1)
        for rank in ranks:
            rank.ballot.stepped(counter, asks=asks, running=running)
    assert len({rank.ballot.depth for rank in ranks}) == 1
    return depths


# --- any course of events ---

events = st.tuples(
    st.lists(st.integers(0, 60), min_size=3, max_size=3),  # loads; 0: idle, or prompts only
    st.lists(st.booleans(), min_size=3, max_size=3),  # policies that fail
    st.floats(0.05, 0.95),  # acceptance of the last rank
    st.integers(1, 40),  # steps
    st.booleans(),  # the wave ends
)


@given(st.lists(events, min_size=1, max_size=12))
def test_depths_are_equal_in_every_step(course: list[tuple[list[int], list[bool], float, int, bool]]) -> None:
    ranks, counter = team(3), 1
    for loads, fails, acceptance, steps, ends in course:
        for rank, load, failing in zip(ranks, loads, fails, strict=True):
            rank.load, rank.fails = load, failing
        ranks[-1].acceptance = acceptance
        run(ranks, counter, steps, ends=ends)
        counter = 1 if ends else counter + steps
    assert all(rank.ballot.is_open for rank in ranks)
    assert len({rank.ballot.votes for rank in ranks}) == 1


# --- what a vote does ---


def test_the_static_depth_runs_until_the_first_vote_is_counted() -> None:
    ranks = team(2)
    for rank in ranks:
        rank.load, rank.acceptance = 60, 0.1
    assert run(ranks, 1, 5) == [DEPTH] * 5  # asked after step 1, counted after step 5
    assert ranks[0].ballot.depth < DEPTH


def test_an_idle_rank_follows_the_others() -> None:
    ranks = team(2)
    ranks[0].load, ranks[0].acceptance = 60, 0.1
    run(ranks, 1, 20)
    assert ranks[1].ballot.depth < DEPTH


def test_where_nothing_decodes_the_depth_stays() -> None:
    ranks = team(2)
    run(ranks, 1, 40)
    assert ranks[0].ballot.votes == 3
    assert ranks[0].ballot.depth == DEPTH


def test_a_rank_that_fails_makes_all_static_until_it_recovers() -> None:
    ranks = team(3)
    for rank in ranks:
        rank.load, rank.acceptance = 60, 0.1
    run(ranks, 1, 10)
    adaptive = ranks[0].ballot.depth
    ranks[1].fails = True
    run(ranks, 11, 10)
    assert ranks[0].ballot.depth == DEPTH
    assert ranks[0].log == ["a rank cannot vote, so all draft 4"]
    ranks[1].fails = False
    run(ranks, 21, 20)
    assert ranks[0].ballot.depth == adaptive


def test_a_wave_that_ends_leaves_no_vote_open() -> None:
    ranks = team(2)
    for rank in ranks:
        rank.load = 8
    run(ranks, 1, 2, ends=True)  # asked in step 1, counted at the end
    assert ranks[0].ballot.votes == 1
    run(ranks, 1, 30)
    assert ranks[0].ballot.votes == 3


def test_other_depths_are_tried_for_one_step_now_and_then_the_runner_up_most_often() -> None:
    ranks = team(2)
    for rank in ranks:
        rank.load, rank.acceptance = 60, 0.02
    depths = run(ranks, 1, 16 * 8 * 8 + 16)
    assert ranks[0].ballot.depth == 0
    tried = [depth for depth in depths[16:] if depth]
    assert tried == [1, 2, 1, 3, 1, 2, 1, 4]
    assert all(before == 0 or after == 0 for before, after in pairwise(depths[16:]))


def test_nothing_is_tried_where_nothing_decodes_or_there_is_no_other_depth() -> None:
    serials = range(1, 200)
    assert not any(probed_depth(RULES, [vote(0), vote(0)], 2, serial) for serial in serials)
    only = replace(RULES, candidates=(2,))
    assert {probed_depth(only, [vote(8), vote(1)], 2, serial) for serial in serials} == {None}


def test_what_the_busiest_rank_asks_for_is_tried() -> None:
    busiest, other = vote(8, probe=3), vote(2, probe=1)
    assert probed_depth(RULES, [other, busiest], 2, 1) == 3
    assert probed_depth(RULES, [vote(8), other], 2, 1) is None
    assert probed_depth(RULES, [busiest, other], 3, 1) is None  # the ranks have come to draft it
    assert probed_depth(RULES, [vote(8, probe=DEPTH + 1)], 2, 1) is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_ranks_out_of_step_stop_voting_together(place: int) -> None:
    """A row of another vote, of another step, or of a rank with another depth."""
    ranks = team(2)
    gather = ranks[1].ballot.gather

    def wrong(numbers: Numbers) -> Callable[[], Sequence[Numbers]]:
        return gather([number + (index == place) for index, number in enumerate(numbers)])

    ranks[1].ballot.gather = wrong
    run(ranks, 1, 40)
    assert not any(rank.ballot.is_open for rank in ranks)
    assert ranks[0].ballot.depth == DEPTH
    assert ranks[0].log == ["ranks are out of step; no more votes, depth 4"]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_numbers_that_are_none_count_as_static(broken: float) -> None:
    ranks = team(2)
    ranks[0].load = 60
    ranks[1].ballot.own_vote = lambda: RankVote(load=1, tokens_by_depth=(broken,) * 5)
    run(ranks, 1, 40)
    assert ranks[0].ballot.depth == DEPTH
    assert ranks[0].ballot.is_open


def test_a_log_that_fails_changes_nothing() -> None:
    ranks = team(2)

    def fails(_: str) -> None:
        raise OSError("disk full")

    ranks[0].ballot.log = fails
    ranks[1].fails = True
    run(ranks, 1, 40)
    assert all(rank.ballot.is_open for rank in ranks)


def test_a_row_travels_whole() -> None:
    row = Row(serial=3, counter=16, depth=2, vote=vote(5, probe=4))
    numbers = row.numbers(DEPTH)
    assert len(numbers) == row_size(DEPTH)
    assert Row.of(numbers, DEPTH) == row
    static = Row(serial=3, counter=16, depth=2, vote=None)
    assert Row.of(static.numbers(DEPTH), DEPTH) == static
    assert len(static.numbers(DEPTH)) == row_size(DEPTH)


# --- the agreement before the first vote ---


class MemoryStore:
    """PyTorch's `Store`, among threads."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, /) -> bytes:
        return self.values[key].encode()

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.values for key in keys), timeout.total_seconds()):
                raise TimeoutError

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self.changed:
            if self.values.get(key, "") == expected:
                self.values[key] = desired
            return self.values[key].encode()


def verdicts(statements: Sequence[Statement | None], store: MemoryStore | None = None) -> list[str | None]:
    """Of ranks in threads of their own; None: a rank without the plug-in."""
    shared, found = store or MemoryStore(), dict[int, str | None]()

    def one(rank: int, statement: Statement) -> None:
        patience = timedelta(seconds=0.2)
        found[rank] = agree(shared, statement, rank=rank, ranks=len(statements), patience=patience)

    threads = [
        threading.Thread(target=one, args=(rank, given)) for rank, given in enumerate(statements) if given is not None
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in sorted(found)]


def able(policy: str = "a") -> Statement:
    return Statement(problem=None, same={"policy files": policy, "settings": "{}"})


def test_ranks_that_all_can_vote_do() -> None:
    assert verdicts([able(), able(), able()]) == [None, None, None]


def test_ranks_with_different_policy_files_all_refuse() -> None:
    assert set(verdicts([able(), able(), able("b")])) == {"ranks 0 and 2 have different policy files"}


def test_one_rank_that_cannot_vote_keeps_all_from_it() -> None:
    cannot = Statement(problem="another worker extension is configured", same={})
    assert set(verdicts([able(), cannot])) == {"rank 1: another worker extension is configured"}


def test_a_rank_without_the_plug_in_keeps_all_from_it() -> None:
    assert set(verdicts([able(), None, able()])) == {"a rank did not say within 0 s whether it can vote"}


def test_the_first_verdict_counts() -> None:
    """A rank that comes too late for another's patience."""
    store = MemoryStore()
    assert agree(store, able(), rank=0, ranks=2, patience=timedelta(seconds=0.01)) is not None
    assert agree(store, able(), rank=1, ranks=2, patience=timedelta(seconds=0.01)) is not None


def test_a_statement_of_another_release_keeps_all_from_it() -> None:
    store = MemoryStore()
    store.set("specmargin-vote/1", json.dumps(["something else"]))
    assert agree(store, able(), rank=0, ranks=2, patience=timedelta(seconds=0.01)) is not None
