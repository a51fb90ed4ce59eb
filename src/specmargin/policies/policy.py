"""The protocol of a policy: how deep the batch drafts, how much of each draft is verified, and what was accepted.

A decision is a value. `draft` makes it, `verify` completes it after drafting, and the outcome carries it back:

    decision = policy.draft(batch)                          # before drafting
    decision = policy.verify(decision, survival, drafted)   # before verifying
    policy.observe(Outcome(decision=decision, …))           # after the step

The policy stores nothing of a decision, so several may be in flight, as in an engine with asynchronous scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from specmargin.compiler import entry
from specmargin.policies.kernel import decide
from specmargin.policies.kernel.decide import Handle
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.types import Expectation, Kernel, LookAhead
from specmargin.policies.rules import make_kernel, schedule_kernel
from specmargin.policies.tables import to_depth
from specmargin.step import FloatArray, IntArray


class Decision(NamedTuple):
    """How deep to draft, and how much of that to verify."""

    depth: int  # the deepest draft of any sequence
    gated: bool = False  # the confidences of its drafts will be used
    verify_depths: IntArray | None = None  # by sequence; None before `verify`
    expected: Expectation | None = None  # what the gate expects of them
    ignored: int = 0  # signals that could not be used


NOT_DECIDED = Decision(0)  # before the first decision, and where one failed


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One step, by sequence, and its seconds; NaN if the time cannot be used (the step had prompts too)."""

    decision: Decision
    drafted: IntArray
    verified: IntArray
    accepted: IntArray  # among the verified tokens
    seconds: float


class Outlook(NamedTuple):
    """What a policy expects, for reports and metrics."""

    goodput_tokens_per_second: float
    hurdle: float


class Policy(Protocol):
    """The same object runs in the replay, in the simulator and inside an engine.

    A live engine (`live/driver.py`) asks for depths only, and checks what it gets: integers, of Python or NumPy, not
    negative. Anything else counts as a fault, and the engine keeps its own depth for that step.
    """

    @property
    def name(self) -> str: ...

    def draft(self, batch: int) -> Decision:
        """Before drafting; its depth must be an integer, not a float or a bool."""

    def draft_lengths(self, decision: Decision, survival: FloatArray) -> IntArray:
        """Where each sequence stops drafting, in an engine that can end single drafts between two passes.

        The simulator can; a live engine cannot, and never calls it.
        `survival`: (sequences, depth); that of a token may be read only after drafting it."""

    def verify(self, decision: Decision, survival: FloatArray, drafted: IntArray) -> Decision:
        """After drafting: the same decision with its verify depths; `survival` is (sequences, depth). The drafts of a
        live engine are gated in its workers, or not at all, and it never calls this."""

    def observe(self, outcome: Outcome) -> bool:
        """After the step; False if the outcome is invalid and nothing was learned from it."""

    def mean_survival(self) -> FloatArray:
        """By depth, of a token of unknown confidence, as learned so far; empty where nothing is learned."""

    def outlook(self, batch: int, depth: int) -> Outlook | None:
        """What it expects at this batch and depth; None if it has no expectation."""

    def kernel(self) -> Kernel | None:
        """Its compiled form, which the simulator runs without calling the methods above; it has no effect live.

        None for a policy in Python only: the simulator then calls these methods in every step, which is slower."""


class WholeDrafts:
    """Defaults of most policies: one depth for all sequences, everything verified, nothing learned."""

    __slots__ = ()

    def draft_lengths(self, decision: Decision, survival: FloatArray) -> IntArray:
        return np.full(survival.shape[0], decision.depth)

    def verify(self, decision: Decision, survival: FloatArray, drafted: IntArray) -> Decision:  # noqa: ARG002
        return decision._replace(verify_depths=drafted)

    def observe(self, outcome: Outcome) -> bool:  # noqa: ARG002
        return True

    def mean_survival(self) -> FloatArray:
        return np.zeros(0)

    def outlook(self, batch: int, depth: int) -> Outlook | None:  # noqa: ARG002
        return None

    def kernel(self) -> Kernel | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDepth(WholeDrafts):
    depth: int

    @property
    def name(self) -> str:
        return f"fixed {self.depth}" if self.depth else "none"

    def draft(self, batch: int) -> Decision:  # noqa: ARG002
        return Decision(self.depth)

    def kernel(self) -> Kernel:
        return schedule_kernel(np.array([self.depth]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledDepth(WholeDrafts):
    """One depth per batch size, as engines take it. From mean survival and prices: the homogeneous policy."""

    name: str
    depth_by_batch: IntArray  # index 0 is not used

    @classmethod
    def homogeneous(cls, table: PriceTable, mean_survival: FloatArray) -> ScheduledDepth:
        """Of the depths whose steps fit a CUDA graph."""
        committed = 1.0 + np.concatenate([[0.0], np.cumsum(mean_survival[: table.max_depth])])
        depths = [0]
        for batch in range(1, table.max_batch + 1):
            goodput = committed / table.round_seconds(batch)[: committed.size]
            depths.append(int(goodput[: table.graph_depth_by_batch[batch] + 1].argmax()))
        return cls(name="homogeneous", depth_by_batch=np.array(depths))

    def draft(self, batch: int) -> Decision:
        return Decision(int(self.depth_by_batch[min(batch, self.depth_by_batch.size - 1)]))

    def kernel(self) -> Kernel:
        return schedule_kernel(self.depth_by_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWidthGate(WholeDrafts):
    """Survivals of the batch summed, one depth for all."""

    table: PriceTable
    look_ahead: LookAhead
    name: str = "one-width gate"

    def draft(self, batch: int) -> Decision:
        return Decision(self.look_ahead.depth(batch), gated=True)

    def verify(self, decision: Decision, survival: FloatArray, drafted: IntArray) -> Decision:
        batch, deepest = survival.shape[0], int(drafted.max(initial=0))
        if deepest == 0:
            return decision._replace(verify_depths=drafted)
        survival = to_depth(survival, self.table.max_depth)
        tokens = np.concatenate([[0.0], np.cumsum(survival[:, :deepest].sum(axis=0))])
        seconds = self.table.equal_seconds(batch)[: deepest + 1]
        best = int((tokens - self.look_ahead.rate(batch) * seconds).argmax())
        return decision._replace(verify_depths=np.minimum(drafted, best))


_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def as_int64(values: IntArray) -> IntArray:
    """The one integer type that kernels are compiled for. Looking is quicker than converting what needs none."""
    fits = values.dtype is _INT64 and values.flags.c_contiguous
    return values if fits else np.ascontiguousarray(values, dtype=np.int64)


def as_float64(values: FloatArray) -> FloatArray:
    """The same for numbers with a fraction."""
    fits = values.dtype is _FLOAT64 and values.flags.c_contiguous
    return values if fits else np.ascontiguousarray(values, dtype=np.float64)


@entry
def _held(kernel: Kernel) -> Handle:
    """Compiled once and cached: the constructor that Python calls would be compiled in every process."""
    return Handle(kernel)


class Compiled:
    """A policy whose decisions are compiled. Subclasses make the kernel and have a name."""

    _kernel: Kernel
    _handle: Handle
    _max_batch: int

    def _set_kernel(self, kernel: Kernel) -> None:
        self._kernel, self._handle, self._max_batch = kernel, _held(kernel), kernel.rules.table.max_batch

    @property
    def _table(self) -> PriceTable:
        return self._kernel.rules.table

    def kernel(self) -> Kernel:
        return self._kernel

    def draft(self, batch: int) -> Decision:
        return Decision(*decide.draft_by_handle(self._handle, int(batch)))

    def draft_lengths(self, decision: Decision, survival: FloatArray) -> IntArray:
        batch = survival.shape[0]
        drafted = np.full(batch, decision.depth)
        fits = decision.gated and 0 < batch <= self._table.max_batch
        if fits and np.all((survival >= 0.0) & (survival <= 1.0)):  # False for NaN
            signal = np.ascontiguousarray(to_depth(survival, self._table.max_depth), dtype=np.float64)
            depth = min(decision.depth, self._table.max_depth)
            decide.lengths_by_handle(self._handle, decision.gated, signal, depth, drafted)
        return drafted

    def verify(self, decision: Decision, survival: FloatArray, drafted: IntArray) -> Decision:
        """The gate decides if the signal is usable; otherwise everything that was drafted is verified."""
        if not decision.gated:
            return decision._replace(verify_depths=drafted)
        batch = drafted.size
        survival, lengths = as_float64(survival), as_int64(drafted)
        if not (survival.ndim == 2 and survival.shape[0] == batch and 0 < batch <= self._max_batch):
            return decision._replace(verify_depths=drafted, ignored=1)
        kind, accepted, reached = decide.verify_by_handle(self._handle, decision.gated, survival, lengths)
        if kind != decide.GATED:
            return decision._replace(verify_depths=drafted, ignored=int(kind == decide.UNUSABLE))
        kernel = self._kernel
        depths = kernel.scratch.depths[:batch].copy()
        if not kernel.rules.learns:  # nothing will be compared with the outcome
            return Decision(decision.depth, decision.gated, depths)
        scratch = kernel.scratch
        expected = Expectation(depths, accepted, reached, scratch.unseen.copy(), scratch.no_drafts)
        return Decision(decision.depth, decision.gated, depths, expected)  # `_replace` takes a microsecond


@dataclass(kw_only=True)
class RaggedGate(Compiled, WholeDrafts):
    """A depth per sequence, by marginal prices that account for experts already loaded; drafting may stop early."""

    table: PriceTable
    look_ahead: LookAhead
    name: str = "ragged gate"
    _kernel: Kernel = field(init=False, repr=False)
    _handle: Handle = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._set_kernel(make_kernel(self.table, self.look_ahead))


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(WholeDrafts):
    """Knows the outcome: `survival` is 1 for tokens that will be accepted, 0 for the rest. The bound of any signal."""

    gate: RaggedGate
    name: str = "oracle"

    def draft(self, batch: int) -> Decision:  # noqa: ARG002
        return Decision(self.gate.table.max_depth, gated=True)

    def draft_lengths(self, decision: Decision, survival: FloatArray) -> IntArray:
        """It does not know the next token before drafting it; drafting stops after the first rejected one."""
        accepted = np.cumprod(survival > 0.0, axis=1).sum(axis=1)
        return np.asarray(np.minimum(accepted + 1, decision.depth))

    def verify(self, decision: Decision, survival: FloatArray, drafted: IntArray) -> Decision:
        return self.gate.verify(decision, survival, drafted)
