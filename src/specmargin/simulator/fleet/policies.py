"""Who decides the depth of a fleet: nobody (it is static), the ranks together by a vote, or each rank alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.vote import RankVote, VoteRules, probed_depth, voted_depth
from specmargin.step import FloatArray, IntArray

SYNC_STEPS = 16  # after which vLLM 0.32 synchronises its ranks, and a vote is asked for (`--dp-sync-interval`)


class FleetPolicy(Protocol):
    @property
    def learns(self) -> bool: ...

    def decide(self, loads: IntArray, tokens: FloatArray, depths: IntArray, /) -> int | None:
        """Set the depth of each rank by what `fill_votes` says. Returns a depth that all try for one step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    depth: int
    learns: bool = False

    def decide(self, _loads: IntArray, _tokens: FloatArray, depths: IntArray) -> int | None:
        depths[:] = self.depth
        return None


@dataclass(slots=True, kw_only=True)
class Vote:
    """As live ranks do (`live/ballot.py`), at prices that need no correction."""

    rules: VoteRules
    learns: bool = True
    _serial: int = 0

    def decide(self, loads: IntArray, tokens: FloatArray, depths: IntArray) -> int | None:
        votes = [
            RankVote(load=load, tokens_by_depth=tuple(row))
            for load, row in zip(loads.tolist(), tokens.tolist(), strict=True)
        ]
        depths[:] = agreed = voted_depth(self.rules, votes, int(depths[0]))
        self._serial += 1
        return probed_depth(self.rules, votes, agreed, self._serial)


@dataclass(frozen=True, slots=True, kw_only=True)
class EachRank:
    """Each rank with a depth of its own, chosen together for the most tokens per second: no engine can run it, as ranks
    with different depths wait for each other forever. Mostly more than a vote can reach. Not always: it favours ranks
    with few sequences, where most of the work is on the others."""

    table: PriceTable  # by the batch of one rank, while the others have as many
    learns: bool = True

    def decide(self, loads: IntArray, tokens: FloatArray, depths: IntArray) -> int | None:
        if loads.any():
            table, batch = self.table, np.minimum(loads, self.table.max_batch)
            chosen = _capped(batch, table)
            committed = np.take_along_axis(tokens[np.newaxis], chosen[:, :, np.newaxis], axis=2).sum(axis=(1, 2))
            depths[:] = chosen[np.argmax(committed / _round_seconds(table, batch, chosen))]
        return None


def _capped(batch: IntArray, table: PriceTable) -> IntArray:
    """(choice, rank): depths under each cap on depth and each cap on the positions of a rank. A cap on positions that
    no rank reaches is one depth for all."""
    every = np.arange(table.max_depth + 1)
    positions = np.unique(batch[:, np.newaxis] * (every + 1))[:, np.newaxis, np.newaxis]
    positions = positions[positions[:, 0, 0] >= batch.max()]
    within = np.minimum(positions // np.maximum(batch, 1) - 1, table.graph_depth_by_batch[batch])
    return np.asarray(np.minimum(within, every[:, np.newaxis]).reshape(-1, batch.size))


def _round_seconds(table: PriceTable, batch: IntArray, chosen: IntArray) -> FloatArray:
    """By choice: verifying and drafting of the slowest rank, and experts for the positions of all.

    All ranks are padded to the positions of the widest one, and the rank with most sequences has its attention beside
    them.
    """
    choice, most = np.arange(chosen.shape[0]), int(batch.max())
    own = table.rest_seconds[batch, chosen, 0].max(axis=1)
    widest = np.argmax(batch * (chosen + 1), axis=1)
    sequences = batch[widest]
    attention = np.maximum(table.rest_seconds[most, 0, 0] - table.rest_seconds[sequences, 0, 0], 0.0)
    padded = table.rest_seconds[sequences, chosen[choice, widest], 0] + attention
    effective = (batch * table.effective_by_depth[chosen]).mean(axis=1)
    positions = np.arange(table.expert_seconds.size) * table.expert_step
    experts = np.interp(effective, positions, table.expert_seconds)
    drafting = table.draft_seconds[most, chosen.max(axis=1), 0]
    return np.asarray(np.maximum(own, padded) + experts + drafting)
