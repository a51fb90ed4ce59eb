"""The controller: a policy and what it learns while it runs. It never raises into the engine.

Without confidences it holds the depth with the best goodput under learned acceptance and learned prices; with them it
gates every draft. Whatever signal it cannot use it ignores and counts, and falls back to the depth by acceptance.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from specmargin.decisions.policies.lookahead import LookAhead
from specmargin.decisions.policies.online import AcceptanceTracker, ConfidenceShift, PriceCorrection
from specmargin.decisions.policies.policy import Outcome, RaggedGate
from specmargin.decisions.policies.tables import PriceTable, to_depth
from specmargin.step import BoolArray, FloatArray, IntArray

SCHEMA = "specmargin.controller/1"
_FALLEN = -1.0  # log-odds
_DEEP_PROBE = 8  # probes from one of the deepest depth to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    candidates: tuple[int, ...] | None = None  # depths that the engine has graphs for; None: all
    hysteresis: float = 0.005  # gain in goodput that a change of depth must promise
    probe_every: int = 24  # steps between looks at another depth
    guard_steps: int = 40  # steps of measured goodput under plain decoding before speculation is turned off
    guard_margin: float = 0.02
    guard_rest: int = 200  # steps off before it is tried again


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
    _depth: int = -1  # none chosen yet
    _step: int = 0
    _probing: int = -1
    _under: float = 0.0  # steps in which measured goodput was below plain decoding, leaking
    _off_until: int = -1
    _gated: tuple[FloatArray, IntArray] | None = None  # survivals and depths of the last gate, until its outcome comes

    def __post_init__(self) -> None:
        depths = self.table.max_depth
        survival = np.clip(self.prior_survival[:depths], 1e-6, 1.0)
        conditional = survival / np.concatenate([[1.0], survival[:-1]])
        known = np.pad(conditional, (0, depths - conditional.size), mode="edge")
        self._acceptance = AcceptanceTracker(prior=np.clip(known, 0.0, 0.999))
        self._gate = None if self.look_ahead is None else RaggedGate(table=self.table, look_ahead=self.look_ahead)

    # --- what it believes ---

    @property
    def survival(self) -> FloatArray:
        """Of a token at each depth, as learned."""
        return self._acceptance.survival

    def expected_goodput(self, batch: int) -> FloatArray:
        """By depth, at learned acceptance and prices."""
        return self._goodput(min(max(batch, 1), self.table.max_batch))

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
        batch = min(max(int(batch), 1), self.table.max_batch)
        self._step += 1
        self._probing = -1
        if self._step < self._off_until:
            return 0
        goodput = self._goodput(batch)
        best = self._selective(batch, int(goodput.argmax()))
        if (
            self._depth < 0
            or self._gate is not None
            or goodput[best] > goodput[self._depth] * (1.0 + self.settings.hysteresis)
        ):
            self._depth = best
        self._probing = self._probe()
        return self._depth if self._probing < 0 else self._probing

    def _keep_drafting(self, survival: FloatArray, depth: int) -> BoolArray:
        if self._gate is None or self._probing >= 0:
            return np.ones(survival.size, dtype=bool)
        if not self._usable(survival) or survival.size > self.table.max_batch or not 0 <= depth < self.table.max_depth:
            self.ignored_signals += 1
            return np.ones(survival.size, dtype=bool)
        return self._gate.keep_drafting(survival, depth)

    def _verify_depths(self, survival: FloatArray, drafted: IntArray) -> IntArray:
        self._gated = None
        if self._gate is None or self._probing >= 0:
            return drafted
        fits = survival.ndim == 2 and survival.shape[0] == drafted.size <= self.table.max_batch
        if not fits or not self._usable(survival):
            self.ignored_signals += 1
            return drafted
        shifted = to_depth(self._shifted(survival), self.table.max_depth)
        depths = self._gate.verify_depths(shifted, np.clip(drafted, 0, self.table.max_depth)).copy()
        self._gated = (shifted, depths)
        return depths.copy()

    def _observe(self, outcome: Outcome) -> bool:
        if not self._sane(outcome):
            return False
        self._acceptance.learn(outcome.verified, outcome.accepted)
        self._compare(outcome)
        if np.isnan(outcome.seconds):
            return True
        rest, experts = self._parts(outcome)
        self._prices.learn(rest, experts, outcome.seconds)
        self._watch(outcome)
        return True

    # --- what goes into them ---

    def _selective(self, batch: int, best: int) -> int:
        """With a gate, drafting may pay where the mean says it does not: as the look-ahead has it, unless acceptance
        has fallen far from the sample that it was made of."""
        if self.look_ahead is None or self._shift.value < _FALLEN:
            return best
        allowed = np.flatnonzero(self._allowed)
        return int(allowed[allowed <= self.look_ahead.depth(batch)][-1])

    def _compare(self, outcome: Outcome) -> None:
        """Accepted tokens against what the gate expected of them."""
        gated, self._gated = self._gated, None
        if gated is None or gated[1].shape != outcome.verified.shape or (gated[1] != outcome.verified).any():
            return
        survival, depths = gated
        kept = np.arange(survival.shape[1]) < depths[:, np.newaxis]
        reached = np.concatenate([np.ones((depths.size, 1)), survival[:, :-1]], axis=1)
        expected, tokens = float(survival[kept].sum()), float(reached[kept].sum())
        self._shift.learn(expected, float(outcome.accepted.sum()), tokens)

    @property
    def _allowed(self) -> BoolArray:
        allowed = np.zeros(self.table.max_depth + 1, dtype=bool)
        for depth in self.settings.candidates or range(self.table.max_depth + 1):
            if 0 <= depth <= self.table.max_depth:
                allowed[depth] = True
        allowed[0] = True
        return allowed

    def _goodput(self, batch: int) -> FloatArray:
        """By depth, under learned acceptance and prices; depths without a graph are out."""
        committed = 1.0 + np.concatenate([[0.0], np.cumsum(self._acceptance.survival)])
        rest = self.table.rest_by_batch_depth[batch] + self.table.draft.by_depth(batch, self.table.max_depth)
        experts = self.table.experts_at(batch * self.table.effective_by_depth)
        seconds = self._prices.values[0] + self._prices.values[1] * rest + self._prices.values[2] * experts
        goodput = batch * committed / np.maximum(seconds, 1e-6)
        return np.where(self._allowed, goodput, 0.0)

    def _probe(self) -> int:
        """Once in a while the next allowed depth, seldom the deepest; more often where nothing else is learned."""
        every = max(self.settings.probe_every // (4 if self._depth == 0 else 1), 1)
        if self._step % every or self._depth == self.table.max_depth:
            return -1
        above = np.flatnonzero(self._allowed)
        above = above[above > self._depth]
        if above.size == 0:
            return -1
        return int(above[-1] if (self._step // every) % _DEEP_PROBE == 0 else above[0])

    def _shifted(self, survival: FloatArray) -> FloatArray:
        if self._shift.value == 0.0:
            return survival
        before = np.concatenate([np.ones((survival.shape[0], 1)), survival[:, :-1]], axis=1)
        p = np.clip(survival / np.maximum(before, 1e-12), 1e-6, 1.0 - 1e-6)
        return np.cumprod(1.0 / (1.0 + (1.0 - p) / p * np.exp(-self._shift.value)), axis=1)

    @staticmethod
    def _usable(survival: FloatArray) -> bool:
        return bool(survival.size) and bool(np.all((survival >= 0.0) & (survival <= 1.0)))  # False for NaN

    def _sane(self, outcome: Outcome) -> bool:
        verified, accepted = outcome.verified, outcome.accepted
        arrays = (outcome.drafted, verified, accepted)
        return (
            all(array.ndim == 1 and np.issubdtype(array.dtype, np.integer) for array in arrays)
            and 0 < verified.size <= self.table.max_batch
            and bool(np.all((outcome.drafted >= 0) & (outcome.drafted <= self.table.max_depth)))
            and verified.shape == accepted.shape == outcome.drafted.shape
            and (0.0 < outcome.seconds < 100.0 or np.isnan(outcome.seconds))
            and bool(np.all((accepted >= 0) & (accepted <= verified) & (verified <= self.table.max_depth)))
        )

    def _parts(self, outcome: Outcome) -> tuple[float, float]:
        batch = outcome.verified.size
        mean = float(outcome.verified.mean())
        rest = float(np.interp(mean, np.arange(self.table.max_depth + 1), self.table.rest_by_batch_depth[batch]))
        deepest = int(min(outcome.drafted.max(initial=0), self.table.max_depth))
        passes = (outcome.drafted[:, np.newaxis] > np.arange(max(deepest, 1))).sum(axis=0).astype(np.float64)
        experts = float(self.table.experts_at(np.array(self.table.effective_by_depth[outcome.verified].sum())))
        return rest + self.table.draft.seconds(passes), experts

    def _watch(self, outcome: Outcome) -> None:
        """Turn speculation off when it has been worse than plain decoding for long enough."""
        batch = outcome.verified.size
        plain = self._prices.seconds(
            float(self.table.rest_by_batch_depth[batch, 0]),
            float(self.table.experts_at(np.array(batch * self.table.effective_by_depth[0]))),
        )
        if outcome.drafted.max(initial=0) == 0:
            return
        measured = (batch + float(outcome.accepted.sum())) / outcome.seconds
        worse = measured * plain < batch * (1.0 - self.settings.guard_margin)
        self._under = max(self._under + (1.0 if worse else -1.0), 0.0)
        if self._under >= self.settings.guard_steps:
            self._under = 0.0
            self._off_until = self._step + self.settings.guard_rest

    # --- its memory ---

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON takes it."""
        return {
            "schema": SCHEMA,
            "acceptance": [self._acceptance._tried.tolist(), self._acceptance._taken.tolist()],
            "prices": [self._prices._normal.tolist(), self._prices._right.tolist(), self._prices.values.tolist()],
            "shift": self._shift.value,
            "counters": [self._depth, self._step, self._off_until, self.ignored_signals, self.ignored_outcomes],
            "under": self._under,
            "settings": asdict(self.settings),
        }

    def restore(self, state: dict[str, Any]) -> bool:
        """Take a saved state back; False, and nothing changed, where it is not one of this controller's."""
        try:
            tried, taken = (np.array(values, dtype=np.float64) for values in state["acceptance"])
            normal, right, values = (np.array(part, dtype=np.float64) for part in state["prices"])
            counters = [int(value) for value in state["counters"]]
            shift, under = float(state["shift"]), float(state["under"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        shapes = (tried.shape, taken.shape, normal.shape, right.shape, values.shape, len(counters))
        depth = self._acceptance.prior.shape
        known = all(np.isfinite(part).all() for part in (tried, taken, normal, right, values, shift, under))
        known = known and -1 <= counters[0] <= self.table.max_depth
        if state.get("schema") != SCHEMA or shapes != (depth, depth, (3, 3), (3,), (3,), 5) or not known:
            return False
        self._acceptance._tried, self._acceptance._taken = tried, taken
        self._prices._normal, self._prices._right, self._prices.values = normal, right, values
        self._shift.value, self._under = shift, under
        self._depth, self._step, self._off_until, self.ignored_signals, self.ignored_outcomes = counters
        return True
