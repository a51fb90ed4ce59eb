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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVote:
    """What one rank says. Lists by depth start at 0."""

    load: int  # requests that decode
    tokens_by_depth: tuple[float, ...]  # committed per step, by all of them
    draft_factor: float = 1.0  # learned times over prices
    verify_factors: tuple[float, ...] = ()  # by depth; empty: as priced


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRules:
    """The same on every rank."""

    table: PriceTable  # of one rank: `PriceTable.by_rank`
    candidates: tuple[int, ...]
    hysteresis: float = field(default_factory=lambda: Tuning().hysteresis)


def voted_depth(rules: VoteRules, votes: Sequence[RankVote], current: int) -> int:
    """The depth with the most tokens per second; the current one where nothing decodes, or little would be won."""
    busiest = max((vote.load for vote in votes), default=0)
    if busiest == 0:
        return current
    deepest = int(rules.table.graph_depth_by_batch[min(busiest, rules.table.max_batch)])
    goodput = {depth: _goodput(rules, votes, depth) for depth in rules.candidates if depth <= deepest}
    if not goodput:
        return min(rules.candidates)
    best = max(goodput, key=lambda depth: (goodput[depth], -depth))
    keeps = current in goodput and goodput[best] <= goodput[current] * (1.0 + rules.hysteresis)
    return current if keeps else best


def _goodput(rules: VoteRules, votes: Sequence[RankVote], depth: int) -> float:
    tokens = math.fsum(vote.tokens_by_depth[depth] for vote in votes)
    return tokens / max(lockstep_seconds(rules.table, votes, depth), 1e-9)


def lockstep_seconds(table: PriceTable, votes: Sequence[RankVote], depth: int) -> float:
    """A round of ranks with these loads: drafting and verifying of the busiest one, experts of all ranks' positions.

    Times are corrected by what the busiest rank learned, whose steps are priced best: to the others every step seems
    slow. With equal loads it is the plan's price (`prices/ranks.py` has the general rule).
    """
    busiest = max(vote.load for vote in votes)
    mean = math.fsum(vote.load for vote in votes) / len(votes)
    row = min(busiest, table.max_batch)
    experts = _expert_seconds(table, mean * float(table.effective_by_depth[depth]))
    verify = float(table.rest_seconds[row, depth, 0]) + experts
    leading = [vote for vote in votes if vote.load == busiest]
    verify_factor = math.fsum(vote.verify_factors[depth] if vote.verify_factors else 1.0 for vote in leading)
    draft_factor = math.fsum(vote.draft_factor for vote in leading)
    drafting = float(table.draft_seconds[row, depth, 0])
    return (verify * verify_factor + drafting * draft_factor) / len(leading)


def _expert_seconds(table: PriceTable, effective: float) -> float:
    """As compiled code interpolates it, in plain Python: ranks may have different compilers."""
    index = effective / table.expert_step
    low = min(int(index), table.expert_seconds.size - 2)
    below, above = float(table.expert_seconds[low]), float(table.expert_seconds[low + 1])
    return below + (index - low) * (above - below)
