"""How deep to draft for a gate in the workers, by what it would verify of recent drafts.

The best depth of whole drafts is too shallow for a gate at large batches: it verifies only the drafts that are worth
it. Here the gate's own budget is taken for recent rounds at every depth, with learned acceptance in the place of tokens
that were not drafted.
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
_HYSTERESIS = 0.005  # relative gain in goodput required for a change
_UNLIMITED = 1 << 30


@dataclass(kw_only=True)
class GatedDepth:
    prices: GatePrices
    candidates: tuple[int, ...]  # depths that the engine runs well
    _rounds: deque[tuple[npt.NDArray[np.float32], int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    _chosen: dict[int, int] = field(default_factory=dict)  # by octave of the batch
    _looked: dict[int, int] = field(default_factory=dict)  # by octave: at which step
    _steps: int = 0

    def add(self, acceptance: npt.NDArray[np.float32], drafted: int) -> None:
        """A step's drafts, (sequences, depth), of which the first `drafted` tokens are meaningful."""
        if acceptance.size and drafted > 0:
            self._rounds.append((acceptance, drafted))

    def depth(self, batch: int, order: Callable[[], GateOrder], learned: Callable[[], FloatArray]) -> int | None:
        """None: the policy's own depth, while nothing is known and now and then: without drafts nothing is learned of
        them. `learned`: survival by depth; it and the order are asked for only when it looks."""
        self._steps += 1
        if self._steps % _EVERY == 0:
            return None
        octave = batch.bit_length()
        due = self._looked.get(octave, -_EVERY) + _EVERY <= self._steps
        if due and self._rounds and 0 < batch <= self.prices.table.max_batch:
            expected = conditional_of(learned(), self.prices.depths)
            self._chosen[octave] = self._best(batch, order(), expected, self._chosen.get(octave))
            self._looked[octave] = self._steps
        return self._chosen.get(octave)

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
