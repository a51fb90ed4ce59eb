"""Between an engine and a policy: two decisions a step, what came of them, and never an exception.

The engine tells it of requests, drafts and steps; it answers with a depth for the batch and a depth for every draft.
An answer of None leaves the engine as it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import le
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.errors import EngineError
from specmargin.live.board import Board
from specmargin.live.capture import BankWriter
from specmargin.live.guard import Guard
from specmargin.live.sequences import Batch, Drafts, Histories, Live, StepDone, Survivals
from specmargin.live.settings_schema import Mode
from specmargin.policies.policy import Decision, Outcome, Policy, Schedule

_FORGETTING = 0.98  # a step, of the goodput that is shown
_LOOK_FORGETTING = 0.9  # a look, of what is looked at now and then
_LOOK_EVERY = 64  # steps between looks at what is only shown: a decision must stay quick


@dataclass(slots=True, kw_only=True)
class _Planned:
    """What was decided for a step, until its outcome comes."""

    decision: Decision  # of the drafts that it verifies
    depth: int = -1  # drafted at its end; -1: the engine's own choice
    expected: dict[str, float] | None = None  # accepted tokens, by request


class _Waiting(NamedTuple):
    """A step that is over, until it is learned from."""

    step: StepDone
    drafted: int
    planned: _Planned
    drafts: Drafts  # that were verified in it


@dataclass(kw_only=True)
class Driver:
    mode: Mode
    policy: Policy | None
    max_depth: int
    guard: Guard
    board: Board
    survivals: Survivals | None = None  # None: verify depths are not gated
    classes: Mapping[str, Schedule] = field(default_factory=dict)
    capture: BankWriter | None = None
    # Steps that are learned from at once: coming back to code that a forward pass has driven out of the caches takes
    # longer than running it.
    learn_every: int = 1
    _live: dict[str, Live] = field(default_factory=dict)
    _histories: Histories = field(default_factory=Histories)
    _batch: Batch = field(default_factory=lambda: Batch((), {}))  # of the last step
    _drafts: Drafts = field(default_factory=Drafts)
    _planned: deque[_Planned] = field(default_factory=lambda: deque(maxlen=16))
    _in_hand: Decision = field(default_factory=partial(Decision, 0))  # of the drafts in hand
    _next: _Planned = field(default_factory=lambda: _Planned(decision=Decision(0)))
    _waiting: list[_Waiting] = field(default_factory=list)
    _since_learned: int = 0
    _steps: int = 0
    _gates: int = 0
    _over: list[str] = field(default_factory=list)

    # --- requests ---

    def add(self, request_id: str, arguments: Mapping[str, Any] | None) -> None:
        self.guard.call("request", None, self._add, request_id, arguments)

    def drop(self, request_id: str) -> None:
        """It is over; its last round may still be on its way."""
        self._over.append(request_id)

    def _add(self, request_id: str, arguments: Mapping[str, Any] | None) -> None:
        if request_id in self._live:
            self.settle()
            self._forget(request_id)
        live = self._live[request_id] = Live.of(request_id, arguments, self._histories.take())
        live.captured = self.capture is not None and self.capture.wants()

    def _forget(self, request_id: str) -> None:
        known = self._live.pop(request_id, None)
        if known is not None:
            self._batch = Batch((), {})
            self._histories.give_back(known.place)

    def _batch_of(self, request_ids: Sequence[str]) -> Batch:
        if request_ids != self._batch.ids:
            self._batch = Batch(request_ids, self._live)
        return self._batch

    # --- signals ---

    def drafts(self, request_ids: Sequence[str], confidence: object, seconds: float = 0.0) -> None:
        """New drafts came with these confidences: a row a request, or None; reading them took so long."""
        self._drafts = Drafts(request_ids, confidence, seconds)

    def listens(self) -> bool:
        """Whether the drafts of the step that begins shall come with confidences."""
        return self.capture is not None or (self.survivals is not None and self._in_hand.gated)

    # --- decisions ---

    def verify(self, request_ids: Sequence[str], drafted: Sequence[int]) -> list[int] | None:
        """How much of each draft to verify in the step that begins; None leaves every draft as it is."""
        self._next = _Planned(decision=self._in_hand)
        if self.policy is None or not request_ids:
            return None
        wanted = self.guard.call("verify decision", None, self._verify, self.policy, request_ids, drafted)
        return None if self.mode is Mode.OBSERVE else wanted

    def _verify(self, policy: Policy, request_ids: Sequence[str], drafted: Sequence[int]) -> list[int] | None:
        batch = self._batch_of(request_ids)
        depths = self._gated(policy, batch, drafted)
        if not batch.limited and not self.classes:
            return depths
        limits = [self._limit(live, len(batch.ids)) for live in batch.lives]
        if all(limit >= length for limit, length in zip(limits, drafted, strict=True)):
            return depths
        return [min(pair) for pair in zip(drafted if depths is None else depths, limits, strict=True)]

    def _gated(self, policy: Policy, batch: Batch, drafted: Sequence[int]) -> list[int] | None:
        if self.survivals is None or not self._in_hand.gated or not any(drafted):
            return None
        started = perf_counter()
        survival, ignored = self.survivals.of(batch, self._drafts, self._histories, policy.mean_survival)
        if survival is None:
            self._count_ignored(ignored)
            return None
        decision = policy.verify(self._in_hand, survival, np.array(drafted, dtype=np.int64))
        self._count_ignored(ignored + decision.ignored)
        depths = _depths_of(decision.verify_depths, drafted)
        if decision.expected is not None:
            seconds = self._drafts.seconds + perf_counter() - started
            decision = decision._replace(expected=decision.expected._replace(seconds=seconds))
        self._next.decision = decision
        self._gates += 1
        if self._gates % _LOOK_EVERY == 1:
            rows = zip(batch.ids, survival, depths, strict=True)
            self._next.expected = {name: float(row[:depth].sum()) for name, row, depth in rows}
        return depths

    def _count_ignored(self, signals: int) -> None:
        if signals:
            self.board.add("ignored_signals_total", signals)

    def draft_depth(self, request_ids: Sequence[str]) -> int | None:
        """How deep the step that begins drafts at its end; None leaves the engine's own depth."""
        if self.policy is None or not request_ids:
            self._planned.append(self._next)
            return None
        self._in_hand = Decision(0)  # where deciding fails, drafts are the engine's own
        wanted = self.guard.call("depth decision", None, self._draft_depth, self.policy, request_ids)
        self._next.depth = -1 if wanted is None else wanted
        self._planned.append(self._next)
        return None if self.mode is Mode.OBSERVE else wanted

    def _draft_depth(self, policy: Policy, request_ids: Sequence[str]) -> int:
        size = len(request_ids)
        decision = _decided(policy, size)
        depth = min(decision.depth, self.max_depth)
        self._in_hand = decision
        batch = self._batch_of(request_ids)
        if not batch.limited and not self.classes:
            return depth
        deepest = max(self._limit(live, size) for live in batch.lives)
        return min(deepest if self.classes else depth, deepest, self.max_depth)

    def _limit(self, live: Live, batch: int) -> int:
        """The deepest draft of a request: its own wish, and its class's schedule where there are classes."""
        if not self.classes or self.policy is None:
            return live.limit
        return min(live.limit, _decided(self.classes.get(live.group, self.policy), batch).depth)

    # --- outcomes ---

    def done(self, step: StepDone, drafted: int) -> None:
        """A step is over. `drafted`: how deep it drafted at its end."""
        planned = self._planned.popleft() if self._planned else _Planned(decision=Decision(0))
        if step.request_ids:
            self._waiting.append(_Waiting(step, drafted, planned, self._drafts))
        self._since_learned += 1
        if self._since_learned >= self.learn_every:
            self.settle()
        self.guard.step_done()

    def settle(self) -> None:
        """Learn from all that is over: every few steps, and when the engine has nothing more to do."""
        waiting, self._waiting, self._since_learned = self._waiting, [], 0
        for one in waiting:
            self.guard.call("outcome", None, self._done, one)
        if self._over:
            for request_id in self._over:
                self._forget(request_id)
            self._over.clear()
        self.board.show_guard(self.guard)

    def _done(self, one: _Waiting) -> None:
        step, drafted, planned, drafts = one
        batch = self._batch_of(step.request_ids)
        verified, accepted = np.array(step.verified, dtype=np.int64), np.array(step.accepted, dtype=np.int64)
        if not verified.size == accepted.size == len(batch.ids):
            raise EngineError("a step's outcome is not by sequence")
        if self.capture is not None:
            _keep(self.capture, batch, step, drafts.by_request())
        if self.survivals is not None:
            self._histories.learn(batch, verified, accepted)
        timed = step.prompt_tokens == 0 and step.seconds == step.seconds
        if self.policy is not None:
            batch.drafted.fill(min(max(drafted, 0), self.max_depth))
            seconds = step.seconds if timed else math.nan
            outcome = Outcome(
                decision=planned.decision,
                drafted=batch.drafted,
                verified=verified,
                accepted=accepted,
                seconds=seconds,
            )
            if not self.policy.observe(outcome):
                self.board.add("ignored_outcomes_total")
        self._show(step, planned, drafted, timed=timed)
        if self.capture is not None:
            self.capture.step(step, drafted)

    def _show(self, step: StepDone, planned: _Planned, drafted: int, *, timed: bool) -> None:
        board, batch = self.board, len(step.request_ids)
        accepted, verified = sum(step.accepted), sum(step.verified)
        depth = planned.depth if planned.depth >= 0 else drafted
        board.add_step(batch, verified, accepted, depth, step.seconds)
        if timed:
            board.smooth("goodput_tokens_per_second", (batch + accepted) / step.seconds, _FORGETTING)
        if self._steps % _LOOK_EVERY == 0:
            board.put("distinct_experts", step.distinct_experts)
            board.put("gating", float(self.survivals is not None and self._in_hand.gated))
            self._show_outlook(batch, depth)
        self._steps += 1
        if planned.expected:
            pairs = zip(step.request_ids, step.verified, strict=True)
            expected = sum(planned.expected.get(request_id, 0.0) for request_id, deep in pairs if deep)
            board.smooth("expected_acceptance", expected / max(verified, 1), _LOOK_FORGETTING)
            board.smooth("measured_acceptance", accepted / max(verified, 1), _LOOK_FORGETTING)
            board.put("calibration_error", abs(board["expected_acceptance"] - board["measured_acceptance"]))

    def _show_outlook(self, batch: int, depth: int) -> None:
        """Now and then: expectations move slowly."""
        outlook = None if self.policy is None else self.policy.outlook(batch, depth)
        if outlook is not None:
            self.board.put("expected_goodput_tokens_per_second", outlook.goodput_tokens_per_second)
            self.board.put("hurdle", outlook.hurdle)

    def close(self) -> None:
        self.settle()
        if self.capture is not None:
            self.capture.close()


def _keep(capture: BankWriter, batch: Batch, step: StepDone, confidence: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Rounds of the requests that are captured."""
    for i, (request_id, live) in enumerate(zip(batch.ids, batch.lives, strict=True)):
        if live.captured and step.verified[i]:
            capture.round(live, step.verified[i], step.accepted[i], step.contexts[i], confidence.get(request_id))


def _decided(policy: Policy, batch: int) -> Decision:
    """The policy's decision, checked: nothing is known of a policy that is broken."""
    decision: object = policy.draft(batch)
    if not isinstance(decision, Decision) or type(decision.depth) is not int or decision.depth < 0:
        raise EngineError(f"the policy's decision is {decision!r}")
    return decision


def _depths_of(chosen: object, drafted: Sequence[int]) -> list[int]:
    if not (isinstance(chosen, np.ndarray) and chosen.dtype.kind == "i" and chosen.shape == (len(drafted),)):
        raise EngineError("the policy's verify depths are not depths")
    depths: list[int] = chosen.tolist()
    if min(depths) < 0 or not all(map(le, depths, drafted)):
        raise EngineError("the policy's verify depths are not depths of these drafts")
    return depths
