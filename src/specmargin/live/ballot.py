"""One rank's part in the votes on the depth. Nothing here knows the engine.

Ranks of an engine step in lockstep and count their steps alike. At agreed counts every rank asks for a vote: it sends
its row to all ranks and goes on. `DELAY` steps later, or when the wave of steps ends, every rank has all rows, takes
the depth from them and uses it from the next step on. So depths change on all ranks between the same two steps.

A rank takes part in every vote, whatever happens to its policy: where that fails, its row says so, and all ranks return
to the engine's static depth. Rows that contradict each other (ranks out of step) end voting on all ranks, as all of
them see the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from specmargin.policies.vote import DELAY, RankVote, VoteRules, probed_depth, voted_depth

Numbers = Sequence[float]
Gather = Callable[[Numbers], Callable[[], Sequence[Numbers]]]  # sends a row; the result waits for those of all ranks
_HEAD = 5  # numbers before the depths' own
_FACTORS = (0.25, 4.0)  # corrections beyond these are not believed


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rank's row, as it travels."""

    serial: int  # of the vote
    counter: int  # of the step in which it was asked
    depth: int  # agreed on so far
    vote: RankVote | None  # None: static

    def numbers(self, max_depth: int) -> list[float]:
        head = [self.serial, self.counter, self.depth, self.vote is not None]
        if self.vote is None:
            return [*map(float, head), *[0.0] * (row_size(max_depth) - len(head))]
        factors = self.vote.verify_factors or (1.0,) * (max_depth + 1)
        rest = (float(self.vote.load), *self.vote.tokens_by_depth, self.vote.draft_factor, *factors)
        return [*map(float, head), *rest, float(self.vote.probe)]

    @classmethod
    def of(cls, numbers: Numbers, max_depth: int) -> Row:
        serial, counter, depth, votes, load = map(int, numbers[:_HEAD])
        tokens, rest = numbers[_HEAD : _HEAD + max_depth + 1], numbers[_HEAD + max_depth + 1 :]
        vote = None
        if votes and load >= 0 and all(map(math.isfinite, numbers)):
            vote = RankVote(
                load=load,
                tokens_by_depth=tuple(tokens),
                draft_factor=_believed(rest[0]),
                verify_factors=tuple(map(_believed, rest[1:-1])),
                probe=int(rest[-1]),
            )
        return cls(serial=serial, counter=counter, depth=depth, vote=vote)


def row_size(max_depth: int) -> int:
    return _HEAD + 2 * (max_depth + 1) + 2


def _believed(factor: float) -> float:
    return min(max(factor, _FACTORS[0]), _FACTORS[1])


@dataclass(kw_only=True)
class Ballot:
    rules: VoteRules
    static_depth: int
    max_depth: int
    own_vote: Callable[[], RankVote | None]  # None, or an exception: this rank cannot say; all stay static
    gather: Gather
    log: Callable[[str], None]
    depth: int = field(init=False)  # of the step that is scheduled next
    votes: int = 0  # that were counted
    is_open: bool = True
    loads: tuple[int, ...] = ()  # of all ranks, in the last vote; none while they are static
    _agreed: int = field(init=False)
    _serial: int = 0
    _asked_at: int = 0
    _answers: Callable[[], Sequence[Numbers]] | None = None
    _was_static: bool = False

    def __post_init__(self) -> None:
        self.depth = self._agreed = self.static_depth

    def stepped(self, counter: int, *, asks: bool, running: bool) -> None:
        """After every step of the wave, on every rank. `asks`: a vote may be asked for; `running`: the wave goes on.
        Ranks are given the same arguments. Never raises."""
        answers, probe = self._answers, None
        if answers is not None and (not running or counter - self._asked_at >= DELAY):
            probe = self._count(answers)
            self._answers = answers = None
        if asks and running and self.is_open and answers is None:
            self._ask(counter)
        self.depth = self._agreed if probe is None else probe

    def _ask(self, counter: int) -> None:
        self._serial, self._asked_at = self._serial + 1, counter
        row = Row(serial=self._serial, counter=counter, depth=self._agreed, vote=self._own_vote())
        try:
            self._answers = self.gather(row.numbers(self.max_depth))
        except Exception as error:  # the group is broken, and with it the engine
            self._close(f"a vote cannot be sent ({type(error).__name__}: {error})")

    def _own_vote(self) -> RankVote | None:
        """Checked here, where a fault concerns this rank alone."""
        try:
            vote = self.own_vote()
            if vote is None:
                return None
            row = Row(serial=0, counter=0, depth=0, vote=vote).numbers(self.max_depth)
            return vote if len(row) == row_size(self.max_depth) and all(map(math.isfinite, row)) else None
        except Exception:  # counted by the caller's guard
            return None

    def _count(self, answers: Callable[[], Sequence[Numbers]]) -> int | None:
        """Returns a depth to try in the next step."""
        try:
            rows = [Row.of(numbers, self.max_depth) for numbers in answers()]
            self.votes += 1
            return self._decide(rows)
        except Exception as error:
            self._close(f"a vote cannot be counted ({type(error).__name__}: {error})")
            return None

    def _decide(self, rows: Sequence[Row]) -> int | None:
        """From the rows alone, and from what all ranks have in common."""
        if len({(row.serial, row.counter, row.depth) for row in rows}) != 1 or rows[0].serial != self._serial:
            self._close("ranks are out of step")
            return None
        votes = [row.vote for row in rows if row.vote is not None]
        self._show(static=len(votes) < len(rows))
        if len(votes) < len(rows):
            self._agreed, self.loads = self.static_depth, ()
            return None
        self.loads = tuple(vote.load for vote in votes)
        self._agreed = min(voted_depth(self.rules, votes, self._agreed), self.max_depth)
        probe = probed_depth(self.rules, votes, self._agreed, self._serial)
        return None if probe is None else min(probe, self.max_depth)

    def _show(self, *, static: bool) -> None:
        if static != self._was_static:
            self._was_static = static
            self._say(f"a rank cannot vote, so all draft {self.static_depth}" if static else "all ranks vote again")

    def _close(self, why: str) -> None:
        """On all ranks together, unless the group itself is broken."""
        self.is_open, self._answers, self._agreed, self.loads = False, None, self.static_depth, ()
        self._say(f"{why}; no more votes, depth {self.static_depth}")

    def _say(self, text: str) -> None:
        """A log that fails must not change what this rank decides."""
        with suppress(Exception):
            self.log(text)
