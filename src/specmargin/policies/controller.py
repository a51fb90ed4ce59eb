"""The controller: a policy that learns while it runs.

It uses the depth with the best goodput under learned acceptance and learned prices. Where it knows confidences before
verifying (it has a look-ahead), it gates every draft; where the engine's workers gate them, what they gain is a part of
each depth's price. A signal that cannot be used is ignored and counted in the decision. An exception is a fault, which
the caller (`live/guard.py`) catches and counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from specmargin.policies.kernel import decide
from specmargin.policies.kernel.decide import Handle
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.times import LONGEST_SECONDS
from specmargin.policies.kernel.tuning import Tuning
from specmargin.policies.kernel.types import Expectation, Kernel, LookAhead
from specmargin.policies.policy import Compiled, Outcome, Outlook, as_int64
from specmargin.policies.rules import make_kernel
from specmargin.step import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    candidates: tuple[int, ...] | None = None  # depths that the engine runs well (graphs, kernels), 0 too; None: all
    gated_by_workers: bool = False  # how many tokens they verify is decided before the confidences are known
    learn_times: bool = True  # False: prices as they are, for ranks that decide alike and share no clock
    tuning: Tuning = field(default_factory=Tuning)


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
        settings = self.settings
        kernel = make_kernel(
            self.table,
            self.look_ahead,
            prior_survival=self.prior_survival,
            candidates=settings.candidates,
            budgets=settings.gated_by_workers,
            learn_times=settings.learn_times,
            tuning=settings.tuning,
        )
        self._set_kernel(kernel)
        self._nothing = Expectation.nothing(self.table.max_depth)

    def observe(self, outcome: Outcome) -> bool:
        """Learn acceptance and prices, and update the guard; False if the outcome is invalid."""
        drafted, verified, accepted = outcome.drafted, outcome.verified, outcome.accepted
        batch, seconds = verified.size, float(outcome.seconds)
        timed = 0.0 < seconds < LONGEST_SECONDS or math.isnan(seconds)
        shaped = drafted.shape == verified.shape == accepted.shape == (batch,)
        kinds = drafted.dtype.kind + verified.dtype.kind + accepted.dtype.kind
        whole_numbers = not kinds.strip("iu")
        if not (timed and shaped and whole_numbers and 0 < batch <= self._max_batch):
            return False
        expected = outcome.decision.expected or self._nothing
        rounds = as_int64(drafted), as_int64(verified), as_int64(accepted)
        return bool(decide.observe_by_handle(self._handle, *rounds, seconds, expected))

    def count_step(self) -> None:
        """A step whose depth was decided elsewhere: it counts, as what was learned becomes older."""
        decide.count_by_handle(self._handle)

    def worth_probing(self, batch: int, depth: int, steps: int) -> int:
        """A depth worth trying for one step, after so many that drafted `depth` as decided elsewhere; −1: none."""
        return int(decide.probe_by_handle(self._handle, batch, depth, steps))

    def mean_survival(self) -> FloatArray:
        """By depth, as learned so far."""
        conditional = np.empty(self.table.max_depth)
        decide.acceptance_by_handle(self._handle, conditional)
        return np.asarray(np.cumprod(conditional))

    def time_factors(self, batch: int) -> tuple[float, tuple[float, ...]]:
        """Learned times over prices at this batch, without the machine's speed: of drafting, and of verifying by depth
        from 0."""
        factors = np.empty(self.table.max_depth + 2)
        decide.factors_by_handle(self._handle, min(max(batch, 1), self.table.max_batch), factors)
        drafting, *verifying = factors.tolist()
        return drafting, tuple(verifying)

    def expected_goodput(self, batch: int) -> FloatArray:
        """Tokens per second by depth, at learned acceptance and prices."""
        goodput = np.empty(self.table.max_depth + 1)
        decide.goodput_by_handle(self._handle, min(max(batch, 1), self.table.max_batch), goodput)
        return goodput

    def outlook(self, batch: int, depth: int) -> Outlook:
        goodput = self.expected_goodput(batch)
        depth, size = max(min(depth, goodput.size - 1), 0), min(batch, self.table.max_batch)
        seconds = self.table.equal_seconds(size)
        lower = min(depth, seconds.size - 2)
        hurdle = (seconds[lower + 1] - seconds[lower]) / size * goodput[lower]
        return Outlook(float(goodput[depth]), float(hurdle))
