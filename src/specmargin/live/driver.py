"""Connects an engine to a policy: a decision per step, its outcome, and no exceptions.

The engine reports requests and steps; the driver returns a draft depth for the batch, the limits of single requests,
and what a gate in the engine's workers has to know. None leaves the engine's own behaviour.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.errors import EngineError
from specmargin.live.board import Board
from specmargin.live.capture import BankWriter
from specmargin.live.gate_messages import GateOrder
from specmargin.live.guard import Guard
from specmargin.live.sequences import Batch, LiveRequest, StepDone, confidence_by_request
from specmargin.live.settings_schema import Mode
from specmargin.policies.controller import Controller
from specmargin.policies.policy import NOT_DECIDED, Decision, Outcome, Policy, ScheduledDepth
from specmargin.policies.tables import to_depth
from specmargin.policies.vote import RankVote, VoteRules, lockstep_ratio
from specmargin.step import IntArray

_FORGETTING = 0.98  # per step, of the goodput on the board
_GAUGE_FORGETTING = 0.9  # per update, of gauges that are updated less often
_GAUGE_STEPS = 64  # between updates of gauges that no decision needs: a decision must stay quick


TimeFactors = Callable[[int], tuple[float, tuple[float, ...]]]  # by batch: of drafting, and of verifying by depth
_Drafts = tuple[Sequence[str], object]  # requests, and confidences of their drafts: one row each, or None


@dataclass(slots=True, kw_only=True)
class _Planned:
    """The decisions for a step, kept until its outcome is known."""

    decision: Decision  # for the drafts that it verifies
    depth: int = -1  # drafted at the end of the step; -1: the engine's own choice


class _FinishedStep(NamedTuple):
    """A finished step, kept until it is learned from."""

    step: StepDone
    drafted: int
    planned: _Planned
    drafts: _Drafts  # verified in the step
    loads: Sequence[int]  # of ranks that vote, when it ended


class Agreed(NamedTuple):
    """What data-parallel ranks know of each other by their votes. They must draft alike."""

    depth: Callable[[], int]
    loads: Callable[[], Sequence[int]]  # sequences of each rank; none while unknown


@dataclass(kw_only=True)
class Driver:
    mode: Mode
    policy: Policy | None
    max_depth: int
    guard: Guard
    board: Board
    device_gate: bool = False  # drafts are gated in the engine's workers
    time_factors: TimeFactors | None = None  # learned: for that gate, and for votes
    classes: Mapping[str, ScheduledDepth] = field(default_factory=dict)
    capture: BankWriter | None = None
    # Steps per learning update. A forward pass evicts this code from the CPU caches, and reloading it takes longer than
    # running it.
    learn_every: int = 1
    agreed: Agreed | None = None  # of ranks that vote; requests' limits then only shorten what is verified
    _requests: dict[str, LiveRequest] = field(default_factory=dict)
    _batch: Batch = field(default_factory=lambda: Batch((), {}))  # of the last step
    _drafts: _Drafts = ((), None)
    _planned: deque[_Planned] = field(default_factory=lambda: deque(maxlen=16))
    _pending: Decision = NOT_DECIDED  # of the pending drafts
    _verifying: Decision = NOT_DECIDED  # of the drafts that the step decided last verifies
    _unlearned: list[_FinishedStep] = field(default_factory=list)
    _since_learned: int = 0
    _steps: int = 0
    _finished: list[str] = field(default_factory=list)
    _limited: int = 0  # requests with a limit of their own
    _followed: int = 0  # steps since the last vote
    _drafted: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # by sequence, all alike

    # --- requests ---

    @property
    def limits_requests(self) -> bool:
        """Whether requests have limits of their own; otherwise nothing is asked per request."""
        return self._limited > 0 or bool(self.classes)

    def add(self, request_id: str, arguments: Mapping[str, Any] | None) -> None:
        self.guard.call("request", None, self._add, request_id, arguments)

    def drop(self, request_id: str) -> None:
        """The request is finished; the outcome of its last round may still follow."""
        self._finished.append(request_id)

    def _add(self, request_id: str, arguments: Mapping[str, Any] | None) -> None:
        if request_id in self._requests:
            self.settle()
            self._forget(request_id)
        request = self._requests[request_id] = LiveRequest.of(request_id, arguments)
        request.captured = self.capture is not None and self.capture.wants()
        self._limited += request.is_limited

    def _forget(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._batch = Batch((), {})
            self._limited -= request.is_limited

    def _batch_of(self, request_ids: Sequence[str]) -> Batch:
        if request_ids != self._batch.ids:
            self._batch = Batch(request_ids, self._requests)
        return self._batch

    def drafts(self, request_ids: Sequence[str], confidence: object) -> None:
        """New drafts with their confidences, one row per request, or None: for a capture."""
        self._drafts = request_ids, confidence

    # --- decisions ---

    def limits(self, request_ids: Sequence[str], drafted: Sequence[int]) -> list[int] | None:
        """How much of each draft its request allows to verify; None: all of it."""
        if self.policy is None or not request_ids or self.mode is Mode.OBSERVE:
            return None
        return self.guard.call("verify decision", None, self._limits, request_ids, drafted)

    def _limits(self, request_ids: Sequence[str], drafted: Sequence[int]) -> list[int]:
        batch = self._batch_of(request_ids)
        limits = (self._limit(request, len(batch.ids)) for request in batch.requests)
        return [min(pair) for pair in zip(drafted, limits, strict=True)]

    def draft_depth(self, request_ids: Collection[str]) -> int | None:
        """How deep the next step drafts at its end; None leaves the engine's own depth. Only the number of requests is
        looked at, unless some of them have limits or classes. The step verifies the drafts that were decided before."""
        self._verifying = self._pending
        planned = _Planned(decision=self._verifying)
        self._planned.append(planned)
        if self.policy is None or not request_ids:
            return None
        self._pending = NOT_DECIDED  # if the decision fails, the engine drafts at its own depth
        depth = self.guard.call("depth decision", None, self._draft_depth, self.policy, request_ids)
        planned.depth = -1 if depth is None else depth
        return None if self.mode is Mode.OBSERVE else depth

    def gate_order(self, batch: int, depth: int) -> GateOrder:
        """What the workers' gate needs to know of the step that was decided last. `depth`: drafted at its end."""
        gated = self._verifying.gated or self._verifying is NOT_DECIDED or not self._gates_by_policy
        priced = self._priced_order(batch)
        return priced._replace(gated=gated, depth=depth, confidences=self.capture is not None)

    def _priced_order(self, batch: int) -> GateOrder:
        """With learned times."""
        if self.time_factors is None:
            return GateOrder()
        drafting, verifying = self.time_factors(batch)
        return GateOrder(draft_factor=drafting, verify_factors=verifying)

    @property
    def _gates_by_policy(self) -> bool:
        """Whether the policy knows when not to gate."""
        kernel = None if self.policy is None else self.policy.kernel()
        return kernel is not None and kernel.rules.budgets

    @property
    def learned_depth(self) -> int:
        """Depths whose acceptance the policy learns; 0 if it does not learn."""
        kernel = None if self.policy is None else self.policy.kernel()
        return kernel.rules.prior.size if kernel is not None and kernel.rules.learns else 0

    def _draft_depth(self, policy: Policy, request_ids: Collection[str]) -> int:
        if self.agreed is not None:
            if isinstance(policy, Controller):
                policy.count_step()
                self._followed += 1
            self._pending = Decision(self.agreed.depth())
            return self._pending.depth
        batch_size = len(request_ids)
        self._pending = decision = _checked_decision(policy, batch_size)
        depth = min(decision.depth, self.max_depth)
        if not self._limited and not self.classes:
            return depth
        batch = self._batch_of(list(request_ids))
        deepest = max(self._limit(request, batch_size) for request in batch.requests)
        return min(deepest if self.classes else depth, deepest, self.max_depth)

    def _limit(self, request: LiveRequest, batch: int) -> int:
        """The deepest draft of a request: its own limit, and the schedule of its class if there are classes."""
        if not self.classes or self.policy is None:
            return request.limit
        return min(request.limit, _checked_decision(self.classes.get(request.group, self.policy), batch).depth)

    # --- votes among data-parallel ranks ---

    @property
    def vote_rules(self) -> VoteRules | None:
        """None: the policy has no prices to vote by."""
        policy = self.policy
        if not isinstance(policy, Controller):
            return None
        deepest = min(self.max_depth, policy.table.max_depth)
        depths = policy.settings.candidates or range(deepest + 1)
        return VoteRules(table=policy.table, candidates=tuple(depth for depth in depths if depth <= deepest))

    def show_observing(self) -> None:
        """The ranks do not vote: outcomes are counted, and the engine drafts at its own depth."""
        self.mode, self.agreed = Mode.OBSERVE, None
        self.board.put("mode", float(list(Mode).index(Mode.OBSERVE)))

    def vote(self, load: int) -> RankVote | None:
        """What this rank says while so many requests decode; None where it cannot."""
        if self.policy is None or self.time_factors is None or self.guard.off:
            return None
        return self.guard.call("depth decision", None, self._vote, self.policy, self.time_factors, load)

    def _vote(self, policy: Policy, time_factors: TimeFactors, load: int) -> RankVote:
        survival = to_depth(policy.mean_survival()[np.newaxis], self.max_depth)[0]
        tokens = load * (1.0 + np.concatenate([[0.0], np.cumsum(survival)]))
        drafting, verifying = time_factors(load)
        factors = (*verifying, *[1.0] * self.max_depth)[: self.max_depth + 1]
        probe, followed, self._followed = -1, self._followed, 0
        if load and self.agreed is not None and isinstance(policy, Controller):
            probe = policy.worth_probing(load, self.agreed.depth(), followed)
        return RankVote(
            load=load,
            tokens_by_depth=tuple(tokens.tolist()),
            draft_factor=drafting,
            verify_factors=factors,
            probe=probe,
        )

    # --- outcomes ---

    def done(self, step: StepDone, drafted: int) -> None:
        """A step is finished. `drafted`: how deep it drafted at its end."""
        planned = self._planned.popleft() if self._planned else _Planned(decision=NOT_DECIDED)
        if step.worker_faults:
            self.guard.faults["gate"] = step.worker_faults
        if step.verified.size:
            loads = () if self.agreed is None else self.agreed.loads()
            self._unlearned.append(_FinishedStep(step, drafted, planned, self._drafts, loads))
        self._since_learned += 1
        if self._since_learned >= self.learn_every:
            self.settle()
        self.guard.step_done()

    def settle(self) -> None:
        """Learn from all finished steps: every few steps, and when the engine becomes idle."""
        steps, self._unlearned, self._since_learned = self._unlearned, [], 0
        for finished in steps:
            self.guard.call("outcome", None, self._learn, finished)
        if self._finished:
            for request_id in self._finished:
                self._forget(request_id)
            self._finished.clear()
        self.board.show_guard(self.guard)

    def _learn(self, finished: _FinishedStep) -> None:
        step, drafted, planned, drafts, loads = finished
        verified, accepted = step.verified, step.accepted
        if verified.size != accepted.size or (self.capture is not None and verified.size != len(step.request_ids)):
            raise EngineError("a step's outcome must have one entry per sequence")
        if self.capture is not None:
            seen = drafts if step.confidence is None else (step.request_ids, step.confidence)
            _capture_rounds(self.capture, self._batch_of(step.request_ids), step, confidence_by_request(*seen))
        timed = step.prompt_tokens == 0 and step.seconds == step.seconds
        if self.policy is not None:
            if self._drafted.size != verified.size:
                self._drafted = np.zeros(verified.size, dtype=np.int64)
            self._drafted.fill(min(max(drafted, 0), self.max_depth))
            seconds = step.seconds if timed else math.nan
            if self.agreed is not None:
                seconds *= self._lockstep_ratio(self.policy, loads, verified, drafted)
            decision = planned.decision
            outcome = Outcome(
                decision=decision if step.expected is None else decision._replace(expected=step.expected),
                drafted=self._drafted,
                verified=verified,
                accepted=accepted,
                seconds=seconds,
            )
            if not self.policy.observe(outcome):
                self.board.add("ignored_outcomes_total")
        self._show(step, planned, drafted, timed=timed)
        if self.capture is not None:
            self.capture.step(step, drafted)

    def _lockstep_ratio(self, policy: Policy, loads: Sequence[int], verified: IntArray, drafted: int) -> float:
        """NaN where the loads of other ranks are not known: then a step's time says nothing."""
        if not (isinstance(policy, Controller) and any(loads)):
            return math.nan
        deepest = min(self.max_depth, policy.table.max_depth)
        depths = min(int(verified.max()), deepest), min(max(drafted, 0), deepest)
        return lockstep_ratio(policy.table, loads, verified.size, *depths)

    def _show(self, step: StepDone, planned: _Planned, drafted: int, *, timed: bool) -> None:
        board, batch = self.board, step.verified.size
        accepted, verified = step.accepted_tokens, step.verified_tokens
        depth = planned.depth if planned.depth >= 0 else drafted
        board.add_step(batch, verified, accepted, depth, step.seconds)
        if timed:
            board.smooth("goodput_tokens_per_second", (batch + accepted) / step.seconds, _FORGETTING)
        if self._steps % _GAUGE_STEPS == 0:
            board.put("distinct_experts", step.distinct_experts)
            board.put("gating", float(self.device_gate and self._pending.gated))
            self._show_outlook(batch, depth)
            if step.expected is not None:
                self._show_calibration(step.expected.accepted, accepted, verified)
        self._steps += 1

    def _show_calibration(self, expected: float, accepted: int, verified: int) -> None:
        board = self.board
        board.smooth("expected_acceptance", expected / max(verified, 1), _GAUGE_FORGETTING)
        board.smooth("measured_acceptance", accepted / max(verified, 1), _GAUGE_FORGETTING)
        board.put("calibration_error", abs(board["expected_acceptance"] - board["measured_acceptance"]))

    def _show_outlook(self, batch: int, depth: int) -> None:
        """Expectations change slowly, so this runs only every `_GAUGE_STEPS` steps."""
        outlook = None if self.policy is None else self.policy.outlook(batch, depth)
        if outlook is not None:
            self.board.put("expected_goodput_tokens_per_second", outlook.goodput_tokens_per_second)
            self.board.put("hurdle", outlook.hurdle)

    def close(self) -> None:
        self.settle()
        if self.capture is not None:
            self.capture.close()


def _capture_rounds(
    capture: BankWriter, batch: Batch, step: StepDone, confidence: Mapping[str, npt.NDArray[np.float32]]
) -> None:
    """Capture the rounds of the chosen requests."""
    lengths = zip(step.verified.tolist(), step.accepted.tolist(), step.contexts, strict=True)
    for request_id, request, (verified, accepted, context) in zip(batch.ids, batch.requests, lengths, strict=True):
        if request.captured and verified:
            capture.round(request, verified, accepted, context, confidence.get(request_id))


def _checked_decision(policy: Policy, batch: int) -> Decision:
    """The policy's decision, checked: the policy may come from outside."""
    decision: object = policy.draft(batch)
    if isinstance(decision, Decision):
        depth: object = decision.depth
        if type(depth) is int and depth >= 0:
            return decision
        if isinstance(depth, np.integer) and depth >= 0:
            return decision._replace(depth=int(depth))  # the engine gets a plain int
    raise EngineError(f"the policy returned an invalid decision: {decision!r}")
