"""How deep to draft for a gate in the workers, by what it would verify of recent drafts.

The best depth of whole drafts is too shallow for a gate at large batches: it verifies only the drafts that are worth
it. Here the gate's own budget is taken for recent rounds at every depth, with learned acceptance in the place of tokens
that were not drafted.

Steps that are cut say nothing about the time of steps that are not, and a price that is too high would keep the gate
from ever finding out. So some drafts are verified whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specmargin.live.gating import GateOrder
from specmargin.live.pricing import RECENT, GatePrices, StepDrafts, conditional_of, rounds_for
from specmargin.step import FloatArray

_EVERY = 32  # steps between two looks, and between two steps at the policy's own depth
_SOON = 8  # steps between the first of these own steps
_FIRST_WHOLE, _LATER_WHOLE = 6, 8  # of the own steps: so many are verified whole at first, later one in so many
_HYSTERESIS = 0.005  # relative gain in goodput required for a change
_UNLIMITED = 1 << 30


@dataclass(kw_only=True)
class _Load:
    """What was chosen at one octave of the batch. Steps are those of all loads."""

    next_look: int
    next_own: int
    chosen: int | None = None
    own_steps: int = 0


@dataclass(kw_only=True)
class GatedDepth:
    prices: GatePrices
    candidates: tuple[int, ...]  # depths that the engine runs well
    _rounds: deque[tuple[npt.NDArray[np.float32], int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    _loads: dict[int, _Load] = field(default_factory=dict)  # by octave
    _steps: int = 0

    def add(self, acceptance: npt.NDArray[np.float32], drafted: int) -> None:
        """A step's drafts, (sequences, depth), of which the first `drafted` tokens are meaningful."""
        if acceptance.size and drafted > 0:
            self._rounds.append((acceptance, drafted))

    def choose(
        self, batch: int, own: int, order: Callable[[], GateOrder], learned: Callable[[], FloatArray]
    ) -> tuple[int, bool]:
        """The depth, and whether the gate may cut these drafts. The policy's `own` depth while nothing is known and now
        and then: without drafts nothing is learned of them. `learned`: survival by depth; it and the order are asked
        for only when it looks."""
        self._steps += 1
        octave = batch.bit_length()
        if octave not in self._loads:
            self._loads[octave] = _Load(next_look=self._steps, next_own=self._steps + _SOON)
        load = self._loads[octave]
        if self._steps >= load.next_own:
            return self._own_step(load, batch, own)
        if self._steps >= load.next_look and self._rounds and 0 < batch <= self.prices.table.max_batch:
            expected = conditional_of(learned(), self.prices.depths)
            load.chosen = self._best(batch, order(), expected, load.chosen)
            load.next_look = self._steps + _EVERY
        return own if load.chosen is None else load.chosen, True

    def _own_step(self, load: _Load, batch: int, own: int) -> tuple[int, bool]:
        load.own_steps += 1
        early = load.own_steps < _FIRST_WHOLE
        load.next_own = self._steps + (_SOON if early else _EVERY)
        load.next_look = min(load.next_look, self._steps + _SOON // 2) if early else load.next_look
        inside = int(self.prices.table.graph_depth_by_batch[min(batch, self.prices.table.max_batch)])
        fitting = max((depth for depth in self.candidates if depth <= min(own, inside)), default=0)
        if fitting > 0 and (load.own_steps <= _FIRST_WHOLE or load.own_steps % _LATER_WHOLE == 0):
            return fitting, False
        return own, True

    def _best(self, batch: int, order: GateOrder, expected: FloatArray, current: int | None) -> int:
        confidence = self._recent(batch, expected)
        goodput = {depth: self._goodput(confidence, depth, order) for depth in self.candidates}
        best = max(goodput, key=lambda depth: goodput[depth])
        kept = current is not None and goodput[best] < goodput.get(current, 0.0) * (1.0 + _HYSTERESIS)
        return current if current is not None and kept else best

    def _goodput(self, confidence: FloatArray, depth: int, order: GateOrder) -> float:
        batch = confidence.shape[1]
        drafts = StepDrafts(
            confidence=confidence,
            drafted=np.full(batch, depth),
            other_tokens=np.ones(batch, dtype=np.int64),
            sampling=batch,
            most=_UNLIMITED,
        )
        return self.prices.goodput(drafts, order._replace(depth=depth))

    def _recent(self, batch: int, expected: FloatArray) -> FloatArray:
        """(rounds, batch, depth): recent drafts as drafts of this batch; `expected` beyond what was drafted."""
        depths = self.prices.depths
        rounds = list(self._rounds)[-rounds_for(batch) :]
        confidence = np.empty((len(rounds), batch, depths))
        for i, (acceptance, drafted) in enumerate(rounds):
            shared = min(drafted, depths, acceptance.shape[1])
            confidence[i] = expected
            confidence[i, :, :shared] = np.resize(acceptance[:, :shared], (batch, shared))
        return confidence
