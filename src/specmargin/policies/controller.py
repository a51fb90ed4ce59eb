"""The controller: a policy and what it learns while it runs. It never raises into the engine.

Without confidences it holds the depth with the best goodput under learned acceptance and learned prices; with them it
gates every draft. Whatever signal it cannot use it ignores and counts, and falls back to the depth by acceptance.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from specmargin.policies.kernel import calls
from specmargin.policies.kernel import decide as core
from specmargin.policies.kernel.decide import Known, Learned
from specmargin.policies.kernel.gate import gate_memory
from specmargin.policies.kernel.learn import AcceptanceTracker, ConfidenceShift, PriceCorrection
from specmargin.policies.policy import Gated, Outcome, RaggedGate
from specmargin.policies.study.lookahead import LookAhead
from specmargin.policies.tables import PriceTable
from specmargin.step import BoolArray, FloatArray, IntArray

SCHEMA = "specmargin.controller/4"
_INTEGERS = {"i", "u"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    candidates: tuple[int, ...] | None = None  # depths that the engine is good at (graphs, kernels); None: all
    early_stop: bool = True  # the engine can end the drafts of single sequences between two passes
    hysteresis: float = 0.001  # gain in goodput that a change of depth must promise
    probe_every: int = 48  # steps between looks at another depth
    guard_steps: int = 40  # speculating steps over which goodput is held against plain decoding
    guard_margin: float = 0.02
    guard_rest: int = 200  # steps off before it is tried again
    gate_steps: int = 24  # over which the gate's gain is held against what deciding costs
    gate_rest: int = 1000  # steps in which drafts are verified whole before the gate is tried again


@dataclass(kw_only=True)
class Controller:
    """Deterministic given its inputs. `state()` is all that it has learned, and `restore()` takes it back."""

    table: PriceTable
    prior_survival: FloatArray
    look_ahead: LookAhead | None = None
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    name: str = "controller"
    ignored_signals: int = 0
    ignored_outcomes: int = 0
    _acceptance: AcceptanceTracker = field(init=False)
    _prices: PriceCorrection = field(default_factory=PriceCorrection)
    _shift: ConfidenceShift = field(default_factory=ConfidenceShift)
    _gate: RaggedGate | None = field(init=False)
    _gated: Gated | None = None  # the gate's last decision, until its outcome comes
    _decided: IntArray = field(init=False)  # its depths
    _unseen: FloatArray = field(init=False)  # what it expects of drafts that it left out
    _not_gated: Gated = field(init=False)
    known: Known = field(init=False)
    learned: Learned = field(init=False)
    _handle: calls.Handle = field(init=False)

    def __post_init__(self) -> None:
        depths = self.table.max_depth
        survival = np.clip(self.prior_survival[:depths], 1e-6, 1.0)
        conditional = survival / np.concatenate([[1.0], survival[:-1]])
        known = np.pad(conditional, (0, depths - conditional.size), mode="edge")
        self._acceptance = AcceptanceTracker(prior=np.clip(known, 0.0, 0.999))
        self._gate = None if self.look_ahead is None else RaggedGate(table=self.table, look_ahead=self.look_ahead)
        self.known = self._known()
        self.learned = Learned(
            tried=self._acceptance.tried,
            taken=self._acceptance.taken,
            normal=self._prices.normal,
            right=self._prices.right,
            values=self._prices.values,
            shift=self._shift.held,
            guard=np.zeros(4),
            gate=np.zeros(2),
            marks=np.array([-1, 0, -1, -1, -1, 0]),
        )
        self._handle = self._handed_over()

    def _handed_over(self) -> calls.Handle:
        depths, batch = self.table.max_depth, self.table.max_batch
        allowed = np.flatnonzero(self.known.allowed)
        floor = allowed[np.searchsorted(allowed, np.arange(depths + 1), side="right") - 1]
        rates = np.zeros(1) if self.look_ahead is None else np.asarray(self.look_ahead.rate_by_batch, dtype=np.float64)
        memory = gate_memory(batch, depths)
        self._decided, self._unseen = memory[0], np.zeros((2, depths))
        self._not_gated = Gated(np.zeros(0, dtype=np.int64), 0.0, 0.0, np.zeros((2, depths)))
        believed = np.zeros((batch, depths))
        return calls.Handle(self.known, self.learned, memory, rates, floor, believed, self._unseen)

    def _known(self) -> Known:
        table, given, ahead = self.table, self.settings, self.look_ahead
        allowed = np.zeros(table.max_depth + 1, dtype=np.int64)
        for depth in given.candidates or range(table.max_depth + 1):
            if 0 <= depth <= table.max_depth:
                allowed[depth] = 1
        allowed[0] = 1
        rests = (given.guard_steps, given.guard_margin, given.guard_rest, given.gate_steps, given.gate_rest)
        return Known(
            rest=table.rest_by_batch_depth,
            experts=table.expert_seconds,
            expert_step=table.expert_step,
            effective=table.effective_by_depth,
            pass_by_batch=table.draft.pass_by_batch,
            by_pass=table.draft.by_pass,
            prior=self._acceptance.prior,
            allowed=allowed,
            settings=np.array([given.hysteresis, given.probe_every, *rests], dtype=np.float64),
            gated=ahead is not None,
            selective=given.early_stop or not table.draft.by_pass,
            depth_by_batch=np.zeros(1, dtype=np.int64) if ahead is None else ahead.depth_by_batch.astype(np.int64),
        )

    # --- what it believes ---

    def learned_survival(self) -> FloatArray:
        """Of a token at each depth."""
        return self._acceptance.survival

    def expected_goodput(self, batch: int) -> FloatArray:
        """By depth, at learned acceptance and prices."""
        found = np.empty(self.table.max_depth + 1)
        core.goodput_by_depth(self.known, self.learned, min(max(batch, 1), self.table.max_batch), found)
        return found

    # --- decisions ---

    def draft_depth(self, batch: int) -> int:
        """Before drafting. Off while the guard says so; another depth than the best one once in a while."""
        try:
            return self._draft_depth(batch)
        except Exception:  # nothing of ours may raise into the engine
            self.ignored_signals += 1
            return 0

    def keep_drafting(self, survival: FloatArray, depth: int) -> BoolArray:
        try:
            return self._keep_drafting(survival, depth)
        except Exception:  # as above
            self.ignored_signals += 1
            return np.ones(np.size(survival), dtype=bool)

    def verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        """After drafting. With a usable signal the gate decides; else everything that was drafted is verified."""
        try:
            return self._verify_depths(survival, drafted)
        except Exception:  # as above
            self.ignored_signals += 1
            return drafted

    def observe(self, outcome: Outcome) -> None:
        """After the step: learn prices and acceptance, and look after the guard."""
        try:
            learned = self._observe(outcome)
        except Exception:  # as above
            learned = False
        self.ignored_outcomes += not learned

    def _draft_depth(self, batch: int) -> int:
        return int(calls.choose(self._handle, int(batch)))

    @property
    def _probing(self) -> bool:
        return bool(self.learned.marks[core.PROBING] >= 0)

    def _keep_drafting(self, survival: FloatArray, depth: int) -> BoolArray:
        if self._gate is None or self._probing or not self.is_gating(survival.size):
            return np.ones(survival.size, dtype=bool)
        if not self._usable(survival) or survival.size > self.table.max_batch or not 0 <= depth < self.table.max_depth:
            self.ignored_signals += 1
            return np.ones(survival.size, dtype=bool)
        return self._gate.keep_drafting(survival, depth)

    def _verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        self._gated = None
        batch = drafted.size
        if self._gate is None or self._probing or not self.is_gating(batch):
            return drafted
        # Contiguous whatever comes, so that nothing is compiled anew.
        survival = np.ascontiguousarray(survival, dtype=np.float64)
        held = np.ascontiguousarray(drafted, dtype=np.int64)
        fits = survival.ndim == 2 and survival.shape[0] == batch and 0 < batch <= self.table.max_batch
        expected, reached, gain = calls.gate(self._handle, survival, held) if fits else (math.nan, 0.0, 0.0)
        if math.isnan(expected):
            self.ignored_signals += 1
            return drafted
        depths = self._decided[:batch].copy()
        self._gated = Gated(depths, expected, reached, self._unseen.copy(), gain)
        return depths

    def is_gating(self, batch: int) -> bool:
        """Whether confidences are of use for such a batch; False without a gate, and while it rests."""
        return bool(calls.gating(self._handle, batch))

    def take_gated(self) -> Gated | None:
        """The gate's last decision, for who will report its outcome later than that of the next one."""
        gated, self._gated = self._gated, None
        return gated

    def _observe(self, outcome: Outcome) -> bool:
        gated = outcome.gated or self.take_gated() or self._not_gated
        drafted, verified, accepted = outcome.drafted, outcome.verified, outcome.accepted
        batch, seconds = verified.size, float(outcome.seconds)
        timed = 0.0 < seconds < 100.0 or math.isnan(seconds)
        shaped = drafted.shape == verified.shape == accepted.shape == (batch,)
        counts = {drafted.dtype.kind, verified.dtype.kind, accepted.dtype.kind} <= _INTEGERS
        if not (timed and shaped and counts and 0 < batch <= self.table.max_batch):
            return False
        drafted = np.ascontiguousarray(drafted, dtype=np.int64)
        verified = np.ascontiguousarray(verified, dtype=np.int64)
        accepted = np.ascontiguousarray(accepted, dtype=np.int64)
        return bool(calls.observe(self._handle, drafted, verified, accepted, seconds, *gated))

    # --- what goes into them ---

    @staticmethod
    def _usable(survival: FloatArray) -> bool:
        return bool(survival.size) and bool(np.all((survival >= 0.0) & (survival <= 1.0)))  # False for NaN

    def _parts(self, outcome: Outcome) -> tuple[float, float]:
        rest, experts = core.round_parts(self.known, outcome.drafted, outcome.verified)
        return float(rest), float(experts)

    # --- its memory ---

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON takes it."""
        found = self.learned
        depth, step, _, *rests = found.marks.tolist()
        return {
            "schema": SCHEMA,
            "acceptance": [found.tried.tolist(), found.taken.tolist()],
            "prices": [found.normal.tolist(), found.right.tolist(), found.values.tolist()],
            "shift": self._shift.value,
            "counters": [depth, step, *rests, self.ignored_signals, self.ignored_outcomes],
            "guard": found.guard.tolist(),
            "gate": found.gate.tolist(),
            "settings": asdict(self.settings),
        }

    def restore(self, state: dict[str, Any]) -> bool:
        """Take a saved state back; False, and nothing changed, where it is not one of this controller's."""
        try:
            tried, taken = (np.array(values, dtype=np.float64) for values in state["acceptance"])
            normal, right, values = (np.array(part, dtype=np.float64) for part in state["prices"])
            counters = [int(value) for value in state["counters"]]
            guard, gate = (np.array(state[part], dtype=np.float64) for part in ("guard", "gate"))
            shift = float(state["shift"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        parts = (tried, taken, normal, right, values, guard, gate)
        depth = self._acceptance.prior.shape
        known = all(np.isfinite(part).all() for part in (*parts, shift)) and len(counters) == 7
        known = known and -1 <= counters[0] <= self.table.max_depth and all(abs(count) < 1 << 62 for count in counters)
        shapes = [part.shape for part in parts]
        if state.get("schema") != SCHEMA or shapes != [depth, depth, (3, 3), (3,), (4,), (4,), (2,)] or not known:
            return False
        learned = self.learned
        for own, saved in zip(learned[:5], (tried, taken, normal, right, values), strict=True):
            own[...] = saved
        learned.shift[0], learned.guard[:], learned.gate[:] = shift, guard, gate
        learned.marks[[core.DEPTH, core.STEP, core.OFF_UNTIL, core.WHOLE_UNTIL, core.WHOLE_BATCH]] = counters[:5]
        self.ignored_signals, self.ignored_outcomes = counters[5:]
        return True
