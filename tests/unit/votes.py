"""Ranks that vote, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specmargin.live.ballot import Numbers


@dataclass
class Group:
    """An all-gather in memory. Rows are there when every rank sent one; asking before is a deadlock."""

    ranks: int
    rounds: list[dict[int, Numbers]] = field(default_factory=list)

    def member(self, rank: int) -> Callable[[Numbers], Callable[[], Sequence[Numbers]]]:
        sent = 0

        def gather(numbers: Numbers) -> Callable[[], Sequence[Numbers]]:
            nonlocal sent
            if sent == len(self.rounds):
                self.rounds.append({})
            rows, sent = self.rounds[sent], sent + 1
            rows[rank] = list(numbers)

            def answers() -> Sequence[Numbers]:
                assert len(rows) == self.ranks, "a rank waits for a vote that others did not enter"
                return [rows[each] for each in range(self.ranks)]

            return answers

        return gather
