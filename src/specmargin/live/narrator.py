"""Logs one summary line per interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from specmargin.live.driver import Driver

_COUNTED = (
    "steps_total",
    "step_seconds_total",
    "decision_seconds_total",
    "draft_tokens_total",
    "accepted_tokens_total",
    "committed_tokens_total",
    "verify_positions_total",
)


@dataclass(kw_only=True)
class Narrator:
    driver: Driver
    every_seconds: float
    log: Callable[[str], None]
    _last: float = -1.0
    _before: dict[str, float] = field(default_factory=dict)
    _depths: list[int] = field(default_factory=list)

    def look(self, now: float) -> None:
        if self._last < 0.0:
            self._start(now)
        elif now - self._last >= self.every_seconds:
            self.log(self.line())
            self._start(now)

    def _start(self, now: float) -> None:
        self._last = now
        self._before = {name: self.driver.board[name] for name in _COUNTED}
        self._depths = self.driver.board.steps_by_depth()

    def line(self) -> str:
        board = self.driver.board
        steps, seconds, decisions, drafted, accepted, committed, positions = (
            board[name] - self._before.get(name, 0.0) for name in _COUNTED
        )
        depths = [now - before for now, before in zip(board.steps_by_depth(), self._depths, strict=True)]
        used = [depth for depth, count in enumerate(depths) if count]
        faults = self.driver.guard.faults.total()
        parts = [
            f"{steps:,.0f} steps, {positions / max(steps, 1.0):.1f} positions each",
            f"depth {_span(used)}, mostly {max(used, key=lambda depth: depths[depth])}" if used else "no depth chosen",
            f"{accepted / drafted:.0%} of drafts accepted" if drafted else "nothing drafted",
        ]
        if seconds:
            parts.append(f"{committed / seconds:,.0f} tokens per second of step time")
            expected = board["expected_goodput_tokens_per_second"]
            parts += [f"{expected:,.0f} expected now"] if expected else []
            parts.append(f"its code takes {decisions / seconds:.2%} of step time")
        else:  # steps are not timed
            parts.append(f"its code takes {decisions / max(steps, 1.0) * 1e6:,.0f} µs per step")
        parts.append("no faults" if not faults else f"{faults} faults")
        return f"Specmargin ({self.driver.mode}): {', '.join(parts)}."


def _span(used: list[int]) -> str:
    return str(used[0]) if used[0] == used[-1] else f"{used[0]} to {used[-1]}"
