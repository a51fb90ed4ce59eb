"""The depth that data-parallel ranks agree on: all ranks' tokens over the busiest rank's time.

Ranks run in lockstep, and ranks with different depths deadlock. So each rank sends its load, the tokens that it expects
and its correction of the prices, and every rank computes the same depth from the same rows. Only sums that are rounded
once, products and quotients are used: they have the same bits on every machine, which logarithms need not have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.tuning import Tuning

DELAY = 4  # steps from a vote to its depth; an engine with asynchronous scheduling is two ahead of its slowest rank
PROBE_EVERY = 8  # votes after which one step tries another depth in any case: what ranks believe may be wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVote:
    """What one rank says. Lists by depth start at 0."""

    load: int  # requests that decode
    tokens_by_depth: tuple[float, ...]  # committed per step, by all of them
    draft_factor: float = 1.0  # learned times over prices
    verify_factors: tuple[float, ...] = ()  # by depth; empty: as priced
    probe: int = -1  # a depth that it finds worth trying for one step; −1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRules:
    """The same on every rank."""

    table: PriceTable  # by the batch of one rank, while the others have as many
    candidates: tuple[int, ...]
    hysteresis: float = field(default_factory=lambda: Tuning().hysteresis)


def voted_depth(rules: VoteRules, votes: Sequence[RankVote], current: int) -> int:
    """The depth with the most tokens per second; the current one where nothing decodes, or little would be won."""
    if not any(vote.load for vote in votes):
        return current
    goodput = _goodput(rules, votes)
    if not goodput:
        return min(rules.candidates)
    best = max(goodput, key=lambda depth: (goodput[depth], -depth))
    keeps = current in goodput and goodput[best] <= goodput[current] * (1.0 + rules.hysteresis)
    return current if keeps else best


def probed_depth(rules: VoteRules, votes: Sequence[RankVote], current: int, serial: int) -> int | None:
    """A depth to try for one step after the vote of this number; None: none.

    It is what the busiest rank asks for. If it asks for nothing, every eighth vote probes all the same: half of these
    probes try the second-best depth, a quarter the third-best, and so on, because these may soon be best and cost least
    to try.
    """
    if not any(vote.load for vote in votes):
        return None
    goodput = _goodput(rules, votes)
    others = sorted(goodput.keys() - {current}, key=lambda depth: (-goodput[depth], depth))
    probes = [vote.probe for vote in _Load.of(votes).leading if vote.probe in others]
    if probes:
        return probes[0]
    turn, rest = divmod(serial, PROBE_EVERY)
    if rest:
        return None
    place = (turn & -turn).bit_length() - 1  # how often 2 divides the turn
    return others[place % len(others)] if others else None


def _goodput(rules: VoteRules, votes: Sequence[RankVote]) -> dict[int, float]:
    """Tokens per second by depth, of depths that keep the busiest rank in its CUDA graphs."""
    load = _Load.of(votes)
    deepest = int(rules.table.graph_depth_by_batch[min(load.busiest, rules.table.max_batch)])
    return {
        depth: math.fsum(vote.tokens_by_depth[depth] for vote in votes) / load.round_seconds(rules.table, depth)
        for depth in rules.candidates
        if depth <= deepest
    }


def lockstep_seconds(table: PriceTable, votes: Sequence[RankVote], depth: int) -> float:
    """A round of ranks with these loads."""
    return _Load.of(votes).round_seconds(table, depth)


def lockstep_ratio(table: PriceTable, loads: Sequence[int], own: int, verified: int, drafted: int) -> float:
    """The price of a step with `own` sequences on every rank, over its price with these loads.

    A rank learns by the first, and its steps take the second: without this ratio what other ranks do would look like
    a fault of its prices, and votes, which know the loads, would correct for it twice. `loads` are those of the last
    vote, since when this rank may have got more sequences.
    """
    busiest, mean = max(own, *loads), max(own, sum(loads)) / len(loads)
    alike, lockstep = _parts(table, own, own, verified, drafted), _parts(table, busiest, mean, verified, drafted)
    return sum(alike) / max(sum(lockstep), 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Of all ranks: drafting and verifying wait for the busiest one, and experts are read for all ranks' positions.

    Times are corrected by what the busiest rank learned: it timed batches of this size. With equal loads a round takes
    what the plan says; with others, what `prices/ranks.py` says.
    """

    busiest: int
    mean: float
    leading: tuple[RankVote, ...]  # the busiest rank, or several that are

    @classmethod
    def of(cls, votes: Sequence[RankVote]) -> _Load:
        busiest = max((vote.load for vote in votes), default=0)
        return cls(
            busiest=busiest,
            mean=sum(vote.load for vote in votes) / max(len(votes), 1),
            leading=tuple(vote for vote in votes if vote.load == busiest),
        )

    def round_seconds(self, table: PriceTable, depth: int) -> float:
        verify, draft = _parts(table, self.busiest, self.mean, depth, depth)
        verifying = math.fsum(vote.verify_factors[depth] if vote.verify_factors else 1.0 for vote in self.leading)
        drafting = math.fsum(vote.draft_factor for vote in self.leading)
        return max((verify * verifying + draft * drafting) / len(self.leading), 1e-9)


def _parts(table: PriceTable, busiest: int, mean: float, verified: int, drafted: int) -> tuple[float, float]:
    """Seconds of verifying and of drafting, by sequences on the busiest rank and on all in the mean."""
    row = min(busiest, table.max_batch)
    experts = _expert_seconds(table, mean * float(table.effective_by_depth[verified]))
    return float(table.rest_seconds[row, verified, 0]) + experts, float(table.draft_seconds[row, drafted, 0])


def _expert_seconds(table: PriceTable, effective: float) -> float:
    """As compiled code interpolates it, in plain Python: ranks may have different compilers."""
    index = effective / table.expert_step
    low = min(int(index), table.expert_seconds.size - 2)
    below, above = float(table.expert_seconds[low]), float(table.expert_seconds[low + 1])
    return below + (index - low) * (above - below)
