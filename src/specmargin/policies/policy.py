"""One protocol, two decisions: how deep the batch drafts, and how much of each draft is verified."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from specmargin.policies.kernel.gate import Memory, gate_memory, keep_drafting, ragged_gate
from specmargin.policies.study.lookahead import LookAhead
from specmargin.policies.tables import PriceTable, to_depth
from specmargin.step import BoolArray, FloatArray, IntArray


class Policy(Protocol):
    """The same object runs in the replay, in the simulator and inside an engine."""

    @property
    def name(self) -> str: ...

    def draft_depth(self, batch: int) -> int:
        """Before drafting: the deepest draft of any sequence."""

    def keep_drafting(self, survival: FloatArray, depth: int) -> BoolArray:
        """Before pass `depth` of an autoregressive head: which sequences go on, by their survival so far."""

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        """After drafting: how much of each draft to verify; `survival` is (sequences, depth)."""

    def observe(self, outcome: Outcome) -> None:
        """After the step: what came of it."""


class Gated(NamedTuple):
    """A decision of the gate, until its outcome comes."""

    depths: IntArray
    expected: float  # tokens that it expects to be accepted
    reached: float  # of so many, those before the first rejection and that one
    unseen: FloatArray  # (2, depth): tokens reached and accepted that it expects of drafts it left out
    gain: float = 0.0  # tokens that it expects to be ahead of verifying all drafts
    seconds: float = 0.0  # that reading confidences and deciding took


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One step, by sequence, and how long it took; NaN where its time says nothing (it held prompts too)."""

    drafted: IntArray
    verified: IntArray
    accepted: IntArray  # of the verified ones
    seconds: float
    gated: Gated | None = None  # what was decided for it, where that was not the policy's last decision


class WholeDrafts:
    """What most policies do: draft all alike, verify all, learn nothing."""

    __slots__ = ()

    def keep_drafting(self, survival: FloatArray, depth: int) -> BoolArray:  # noqa: ARG002
        return np.ones(survival.size, dtype=bool)

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:  # noqa: ARG002
        return drafted

    def observe(self, outcome: Outcome) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDepth(WholeDrafts):
    depth: int

    @property
    def name(self) -> str:
        return f"fixed {self.depth}" if self.depth else "none"

    def draft_depth(self, batch: int) -> int:  # noqa: ARG002
        return self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(WholeDrafts):
    """One depth a batch size, as engines take it. From mean survival and prices: the homogeneous policy."""

    name: str
    depth_by_batch: IntArray  # index 0 is not used

    @classmethod
    def homogeneous(cls, table: PriceTable, mean_survival: FloatArray) -> Schedule:
        batch = np.arange(table.max_batch + 1)
        committed = 1.0 + np.concatenate([[0.0], np.cumsum(mean_survival[: table.max_depth])])
        depths = [0, *(int((committed / table.round_seconds(int(b))).argmax()) for b in batch[1:])]
        return cls(name="homogeneous", depth_by_batch=np.array(depths))

    def draft_depth(self, batch: int) -> int:
        return int(self.depth_by_batch[min(batch, self.depth_by_batch.size - 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWidthGate(WholeDrafts):
    """Survivals of the batch summed, one depth for all."""

    table: PriceTable
    look_ahead: LookAhead
    name: str = "one-width gate"

    def draft_depth(self, batch: int) -> int:
        return self.look_ahead.depth(batch)

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        batch, deepest = survival.shape[0], int(drafted.max(initial=0))
        if deepest == 0:
            return drafted
        survival = to_depth(survival, self.table.max_depth)
        tokens = np.concatenate([[0.0], np.cumsum(survival[:, :deepest].sum(axis=0))])
        seconds = self.table.equal_seconds(batch)[: deepest + 1]
        best = int((tokens - self.look_ahead.rate(batch) * seconds).argmax())
        return np.minimum(drafted, best)


@dataclass(kw_only=True)
class RaggedGate(WholeDrafts):
    """Ours: marginal prices that know which experts are loaded, a depth for every sequence, drafting that stops early.

    Not frozen: it owns the memory of its hot path, and what it returns is valid until its next decision. It holds no
    state between decisions.
    """

    table: PriceTable
    look_ahead: LookAhead
    name: str = "ragged gate"
    _memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        self._memory = gate_memory(self.table.max_batch, self.table.max_depth)

    def draft_depth(self, batch: int) -> int:
        return self.look_ahead.depth(batch)

    def keep_drafting(self, survival: FloatArray, depth: int) -> BoolArray:
        ahead, batch = self.look_ahead, survival.size
        going = np.ones(batch, dtype=bool)
        prices = self.table.of_batch(batch)
        keep_drafting(survival, depth, prices, ahead.next_acceptance, ahead.rate(batch), ahead.option(batch), going)
        return going

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        survival = to_depth(survival, self.table.max_depth)
        batch = survival.shape[0]
        ragged_gate(survival, drafted, self.table.of_batch(batch), self.look_ahead.rate(batch), self._memory)
        return self._memory[0][:batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(WholeDrafts):
    """Told the outcome: `survival` is 1 for what will be accepted and 0 for the rest. The bound of any signal."""

    gate: RaggedGate
    name: str = "oracle"

    def draft_depth(self, batch: int) -> int:  # noqa: ARG002
        return self.gate.table.max_depth

    def keep_drafting(self, survival: FloatArray, depth: int) -> BoolArray:  # noqa: ARG002
        """It does not see the next token; drafting stops after the first that fails."""
        return survival > 0.0

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        return self.gate.verify_depths(survival, drafted)
