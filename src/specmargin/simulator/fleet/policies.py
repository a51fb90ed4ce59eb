"""Who decides the depth of a fleet: nobody (it is static), the ranks together by a vote, or each rank alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.vote import PROBE_EVERY, RankVote, VoteRules, voted_depth
from specmargin.step import FloatArray, IntArray

SYNC_STEPS = 32  # after which vLLM's ranks synchronise, and a vote is asked for (`DPEngineCoreProc`)


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
        depths[:] = voted_depth(self.rules, votes, int(depths[0]))
        self._serial += 1
        turn, rest = divmod(self._serial, PROBE_EVERY)
        return None if rest or not loads.any() else self.rules.candidates[turn % len(self.rules.candidates)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EachRank:
    """Each rank with a depth of its own, chosen together for the most tokens per second: no engine can run it, as ranks
    with different depths wait for each other forever. It bounds what any vote can gain."""

    table: PriceTable  # by the batch of one rank, while the others have as many
    learns: bool = True

    def decide(self, loads: IntArray, tokens: FloatArray, depths: IntArray) -> int | None:
        if not loads.any():
            return None
        table = self.table
        batch = np.minimum(loads, table.max_batch)
        seconds = table.rest_seconds[batch, :, 0] + table.draft_seconds[batch, :, 0]
        allowed = np.arange(table.max_depth + 1) <= table.graph_depth_by_batch[batch][:, np.newaxis]
        limits = np.unique(seconds[allowed])
        limits = limits[limits >= seconds[:, 0].max()]
        # The deepest draft of each rank that keeps within a limit; the best limit wins.
        within = allowed & (seconds <= limits[:, np.newaxis, np.newaxis])
        chosen = table.max_depth - np.argmax(within[:, :, ::-1], axis=2)
        effective = (batch * table.effective_by_depth[chosen]).mean(axis=1)
        positions = np.arange(table.expert_seconds.size) * table.expert_step
        whole = limits + np.interp(effective, positions, table.expert_seconds)
        committed = np.take_along_axis(tokens[np.newaxis], chosen[:, :, np.newaxis], axis=2).sum(axis=(1, 2))
        depths[:] = chosen[np.argmax(committed / whole)]
        return None
