"""The controller: a policy that learns while it runs.

Without confidences it holds the depth with the best goodput under learned acceptance and learned prices; with them it
gates every draft. A signal that it cannot use it ignores, and says so in the decision; whatever raises is a fault, and
the caller's shield (`live/guard.py`) counts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from specmargin.policies.kernel import decide
from specmargin.policies.kernel.decide import Expectation, Handle, Kernel, Tuning
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import Compiled, Outcome, Outlook
from specmargin.policies.rules import controller_kernel
from specmargin.policies.study.lookahead import LookAhead
from specmargin.records import rows_of
from specmargin.step import FloatArray, IntArray

_LONGEST_SECONDS = 100.0  # a step that takes longer was not a step


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    candidates: tuple[int, ...] | None = None  # depths that the engine is good at (graphs, kernels); None: all
    early_stop: bool = True  # the engine can end the drafts of single sequences between two passes
    hysteresis: float = 0.001  # gain in goodput that a change of depth must promise
    probe_every: int = 48  # steps between looks at another depth
    guard_steps: int = 40  # drafting steps over which goodput is compared with plain decoding
    guard_margin: float = 0.02
    guard_rest: int = 200  # steps without drafts before they are tried again
    gate_steps: int = 24  # over which the gate's gain is compared with what deciding costs
    gate_rest: int = 1000  # steps in which drafts are verified whole before the gate is tried again


@dataclass(kw_only=True)
class Controller(Compiled):
    """Deterministic given its inputs."""

    table: PriceTable
    prior_survival: FloatArray
    look_ahead: LookAhead | None = None
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    name: str = "controller"
    _kernel: Kernel = field(init=False, repr=False)
    _handle: Handle = field(init=False, repr=False)
    _nothing: Expectation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.settings
        tuning = rows_of(
            Tuning,
            hysteresis=given.hysteresis,
            probe_every=given.probe_every,
            guard_steps=given.guard_steps,
            guard_margin=given.guard_margin,
            guard_rest=given.guard_rest,
            gate_steps=given.gate_steps,
            gate_rest=given.gate_rest,
        )
        kernel = controller_kernel(
            self.table,
            self.prior_survival,
            self.look_ahead,
            candidates=given.candidates,
            early_stop=given.early_stop,
            tuning=tuning,
        )
        self._hold(kernel)
        self._nothing = Expectation.nothing(self.table.max_depth)

    def observe(self, outcome: Outcome) -> bool:
        """Learn acceptance and prices, and look after the guard; False where the outcome makes no sense."""
        drafted, verified, accepted = outcome.drafted, outcome.verified, outcome.accepted
        batch, seconds = verified.size, float(outcome.seconds)
        timed = 0.0 < seconds < _LONGEST_SECONDS or math.isnan(seconds)
        shaped = drafted.shape == verified.shape == accepted.shape == (batch,)
        counts = {drafted.dtype.kind, verified.dtype.kind, accepted.dtype.kind} <= {"i", "u"}
        if not (timed and shaped and counts and 0 < batch <= self.table.max_batch):
            return False
        expected = outcome.decision.expected or self._nothing
        rounds = _whole(drafted), _whole(verified), _whole(accepted)
        return bool(decide.observe_by_handle(self._handle, *rounds, seconds, expected))

    def mean_survival(self) -> FloatArray:
        """Of a token at each depth, as learned so far."""
        conditional = np.empty(self.table.max_depth)
        decide.acceptance_by_handle(self._handle, conditional)
        return np.asarray(np.cumprod(conditional))

    def expected_goodput(self, batch: int) -> FloatArray:
        """Tokens per second by depth, at learned acceptance and prices."""
        goodput = np.empty(self.table.max_depth + 1)
        decide.goodput_by_handle(self._handle, min(max(batch, 1), self.table.max_batch), goodput)
        return goodput

    def outlook(self, batch: int, depth: int) -> Outlook:
        goodput = self.expected_goodput(batch)
        depth, size = max(min(depth, goodput.size - 1), 0), min(batch, self.table.max_batch)
        seconds = self.table.equal_seconds(size)
        next_to = min(depth, seconds.size - 2)
        hurdle = (seconds[next_to + 1] - seconds[next_to]) / size * goodput[next_to]
        return Outlook(float(goodput[depth]), float(hurdle))


def _whole(values: IntArray) -> IntArray:
    """As the kernel takes them, whatever integers they were."""
    return np.ascontiguousarray(values, dtype=np.int64)
