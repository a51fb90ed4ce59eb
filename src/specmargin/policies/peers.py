"""Policies of other systems, as documented, for comparison; vLLM's is in `peer_vllm`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import Decision, Outcome, WholeDrafts


def by_token_count(table: PriceTable) -> PriceTable:
    """Prices in which every token is independent of the others."""
    effective = np.arange(1.0, table.max_depth + 2.0)
    effective.flags.writeable = False
    return table._replace(effective_by_depth=effective)


@dataclass(slots=True, kw_only=True)
class _Slot:
    """The depth of the batches from one size on: an EMA of accepted drafts against a ladder of depths."""

    steps: tuple[int, ...]
    depth: int
    down: float  # hysteresis; upwards there is none
    ema: float = 0.0
    seen: int = 0

    def observe(self, accepted: float, ladder: SglangLadder) -> None:
        if self.depth > 0:
            self.ema += ladder.ema_alpha * (accepted - self.ema)
        self.seen += 1
        if self.seen > ladder.warmup and (self.seen - ladder.warmup) % ladder.interval == 0:
            self._climb()

    def _climb(self) -> None:
        rung = self.steps.index(self.depth)
        if self.depth == 0:  # nothing was drafted, so try the next depth
            rung = min(rung + 1, len(self.steps) - 1)
            self.ema = float(self.steps[rung] - 1) if self.ema < 0.0 else self.ema
        elif rung > 0 and self.ema <= self._floor(rung):
            while rung > 0 and self.ema <= self._floor(rung):
                rung -= 1
        else:
            while rung < len(self.steps) - 1 and self.ema > self.steps[rung] - 0.5:
                rung += 1
        self.depth = self.steps[rung]

    def _floor(self, rung: int) -> float:
        below = self.steps[rung - 1]
        return (0.5 if below == 0 else below - 0.5) + self.down


#: SGLang's defaults from 0.5.20 on. A batch is padded to a CUDA graph's size first: 31 counts as 32, and 61 as 64.
SGLANG_STEPS = {1: (1, 3, 5, 7), 8: (0, 1, 3), 31: (0, 1), 61: (0,)}


@dataclass(kw_only=True)
class SglangLadder(WholeDrafts):
    """SGLang's adaptive steps: a ladder of depths for each range of batch sizes, climbed by accepted lengths alone."""

    max_depth: int = 7
    initial_depth: int = 3  # --speculative-num-steps
    ema_alpha: float = 0.2
    warmup: int = 10
    interval: int = 5
    name: str = "SGLang ladder"
    _slots: dict[int, _Slot] = field(init=False)

    def __post_init__(self) -> None:
        self._slots = {first: self._slot(first, steps) for first, steps in SGLANG_STEPS.items()}

    def _slot(self, first: int, steps: tuple[int, ...]) -> _Slot:
        steps = tuple(sorted({min(step, self.max_depth) for step in steps}))
        initial = min(self.initial_depth, self.max_depth)
        depth = initial if initial in steps else steps[len(steps) // 2]
        return _Slot(steps=steps, depth=depth, down=-0.25 if first == 1 else 0.0, ema=float(depth - 1))

    def _of(self, batch: int) -> _Slot:
        return self._slots[max(first for first in self._slots if first <= max(batch, 1))]

    def draft(self, batch: int) -> Decision:
        return Decision(self._of(batch).depth)

    def observe(self, outcome: Outcome) -> bool:
        if outcome.accepted.size:
            self._of(outcome.accepted.size).observe(float(outcome.accepted.mean()), self)
        return True


@dataclass(kw_only=True)
class TurboSpec(WholeDrafts):
    """Goodput by a moving average of one acceptance rate, prices by token count: argmax of expected goodput."""

    table: PriceTable
    ema_alpha: float = 0.1
    name: str = "TurboSpec"
    _acceptance: float = 0.7

    def draft(self, batch: int) -> Decision:
        depth = np.arange(self.table.max_depth + 1.0)
        committed = np.cumsum(self._acceptance**depth)
        return Decision(int((committed / self.table.round_seconds(batch)).argmax()))

    def observe(self, outcome: Outcome) -> bool:
        reached = np.minimum(outcome.accepted + 1, outcome.verified).sum()
        if reached > 0:
            self._acceptance += self.ema_alpha * (float(outcome.accepted.sum() / reached) - self._acceptance)
        return True


@dataclass(kw_only=True)
class Cascade(WholeDrafts):
    """Utility: tokens gained over time lost, both against no speculation; off below one, hill-climbing above."""

    max_depth: int
    test_steps: int = 4
    set_steps: int = 16
    name: str = "Cascade"
    _depth: int = 3
    _trial: int = 0
    _left: int = 4
    _phase: str = "base"
    _tokens: float = 0.0
    _seconds: float = 0.0
    _base_seconds: float = 0.0  # per token, without speculation
    _utilities: dict[int, float] = field(default_factory=dict)

    def draft(self, batch: int) -> Decision:  # noqa: ARG002
        return Decision(self._trial)

    def observe(self, outcome: Outcome) -> bool:
        if math.isnan(outcome.seconds):
            return True
        self._tokens += float(outcome.accepted.sum() + outcome.accepted.size) / outcome.accepted.size
        self._seconds += outcome.seconds
        self._left -= 1
        if self._left <= 0:
            self._next_phase()
        return True

    def _next_phase(self) -> None:
        seconds_per_token = self._seconds / self._tokens
        self._tokens = self._seconds = 0.0
        if self._phase == "base":
            self._base_seconds, self._utilities = seconds_per_token, {}
            self._start("test", self._depth or 1)
        elif self._phase == "test":
            self._utilities[self._trial] = self._base_seconds / seconds_per_token
            self._next_test()
        else:
            self._start("base", 0)

    def _next_test(self) -> None:
        for neighbour in (self._depth + 1, self._depth - 1):
            if 1 <= neighbour <= self.max_depth and neighbour not in self._utilities:
                self._start("test", neighbour)
                return
        best = max(self._utilities, key=lambda depth: self._utilities[depth])
        self._depth = best
        self._start("set", best if self._utilities[best] > 1.0 else 0)

    def _start(self, phase: str, depth: int) -> None:
        self._phase, self._trial = phase, depth
        self._left = self.set_steps if phase == "set" else self.test_steps
