"""Between an engine and a policy: two decisions a step, what came of them, and never an exception.

The engine tells it of requests, drafts and steps; it answers with a depth for the batch and a depth for every draft.
An answer of None leaves the engine as it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specmargin.decisions.policies.controller import Controller
from specmargin.decisions.policies.policy import Outcome, Policy, Schedule
from specmargin.engines.live.board import Board
from specmargin.engines.live.capture import BankWriter
from specmargin.engines.live.guard import Guard
from specmargin.engines.live.sequences import Live, Survivals, usable
from specmargin.engines.live.settings_schema import Mode
from specmargin.errors import EngineError

_FORGETTING = 0.98  # a step, of the goodput that is shown
_LOOK_EVERY = 16  # steps between looks at what is only shown: a decision must stay quick


@dataclass(slots=True, kw_only=True)
class StepDone:
    """One step as the engine saw it, by decoding sequence."""

    request_ids: list[str]
    verified: list[int]
    accepted: list[int]
    contexts: list[int]
    prompt_tokens: int
    seconds: float  # NaN where it was not timed
    distinct_experts: float = math.nan


@dataclass(slots=True, kw_only=True)
class _Planned:
    """What was decided for a step, until its outcome comes."""

    depth: int = -1  # drafted at its end; -1: the engine's own choice
    expected: dict[str, float] = field(default_factory=dict)  # accepted tokens, by request


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
    _live: dict[str, Live] = field(default_factory=dict)
    _planned: deque[_Planned] = field(default_factory=lambda: deque(maxlen=16))
    _next: _Planned = field(default_factory=_Planned)
    _over: list[str] = field(default_factory=list)

    # --- requests ---

    def add(self, request_id: str, arguments: Mapping[str, Any] | None) -> None:
        self.guard.call("request", None, self._add, request_id, arguments)

    def drop(self, request_id: str) -> None:
        """It is over; its last round may still be on its way."""
        self._over.append(request_id)

    def _add(self, request_id: str, arguments: Mapping[str, Any] | None) -> None:
        live = self._live[request_id] = Live.of(request_id, arguments)
        live.captured = self.capture is not None and self.capture.wants()

    # --- signals ---

    def drafts(self, request_ids: Sequence[str], confidence: object) -> None:
        """New drafts came with these confidences: a row a request, or None."""
        self.guard.call("confidence", None, self._drafts, request_ids, confidence)

    def _drafts(self, request_ids: Sequence[str], confidence: object) -> None:
        rows = usable(confidence, len(request_ids)) if confidence is not None else [None] * len(request_ids)
        for request_id, row in zip(request_ids, rows, strict=True):
            live = self._live.get(request_id)
            if live is not None:
                live.confidence = row
        if confidence is not None and any(row is None for row in rows):
            self.board.add("ignored_signals_total", sum(row is None for row in rows))

    # --- decisions ---

    def verify(self, request_ids: Sequence[str], drafted: Sequence[int]) -> list[int] | None:
        """How much of each draft to verify in the step that begins; None leaves every draft as it is."""
        self._next = _Planned()
        if self.policy is None or not request_ids:
            return None
        wanted = self.guard.call("verify decision", None, self._verify, request_ids, drafted)
        return None if self.mode is Mode.OBSERVE else wanted

    def _verify(self, request_ids: Sequence[str], drafted: Sequence[int]) -> list[int] | None:
        batch = [self._live.get(request_id) or Live(number=0) for request_id in request_ids]
        depths = self._gated(request_ids, batch, drafted)
        limits = [self._limit(live, len(batch)) for live in batch]
        if all(limit >= length for limit, length in zip(limits, drafted, strict=True)):
            return depths
        return [min(pair) for pair in zip(drafted if depths is None else depths, limits, strict=True)]

    def _gated(self, request_ids: Sequence[str], batch: Sequence[Live], drafted: Sequence[int]) -> list[int] | None:
        policy = self.policy
        if self.survivals is None or not isinstance(policy, Controller) or not any(drafted):
            return None
        survival = self.survivals.of(batch, lambda: policy.survival)
        if survival is None:
            return None
        held = np.array(drafted, dtype=np.int64)
        chosen = np.asarray(policy.verify_depths(survival, held))
        depths: list[int] = chosen.tolist() if chosen.shape == held.shape and chosen.dtype.kind == "i" else [-1]
        if not all(0 <= depth <= most for depth, most in zip(depths, drafted, strict=False)):
            raise EngineError("the policy's verify depths are not depths of these drafts")
        if int(self.board["steps_total"]) % _LOOK_EVERY == 0:
            rows = zip(request_ids, survival, depths, strict=True)
            self._next.expected = {name: float(row[:depth].sum()) for name, row, depth in rows}
        return depths

    def draft_depth(self, request_ids: Sequence[str]) -> int | None:
        """How deep the step that begins drafts at its end; None leaves the engine's own depth."""
        if self.policy is None or not request_ids:
            self._planned.append(self._next)
            return None
        wanted = self.guard.call("depth decision", None, self._draft_depth, request_ids)
        self._next.depth = -1 if wanted is None else wanted
        self._planned.append(self._next)
        return None if self.mode is Mode.OBSERVE else wanted

    def _draft_depth(self, request_ids: Sequence[str]) -> int:
        assert self.policy is not None
        batch = len(request_ids)
        depth = _depth_of(self.policy, batch)
        live = [self._live[request_id] for request_id in request_ids if request_id in self._live]
        deepest = max((self._limit(one, batch) for one in live), default=self.max_depth)
        return int(min(deepest if self.classes else depth, deepest, self.max_depth))

    def _limit(self, live: Live, batch: int) -> int:
        """The deepest draft of a request: its own wish, and its class's schedule where there are classes."""
        if not self.classes or self.policy is None:
            return live.limit
        return min(live.limit, _depth_of(self.classes.get(live.group, self.policy), batch))

    # --- outcomes ---

    def done(self, step: StepDone, drafted: int) -> None:
        """A step is over. `drafted`: how deep it drafted at its end."""
        planned = self._planned.popleft() if self._planned else _Planned()
        if step.request_ids:
            self.guard.call("outcome", None, self._done, step, drafted, planned)
        for request_id in self._over:
            self._live.pop(request_id, None)
        self._over.clear()
        self.guard.step_done()
        self.board.show_guard(self.guard)

    def _done(self, step: StepDone, drafted: int, planned: _Planned) -> None:
        self._remember(step)
        verified, accepted = np.array(step.verified, dtype=np.int64), np.array(step.accepted, dtype=np.int64)
        timed = step.prompt_tokens == 0 and step.seconds == step.seconds
        if self.policy is not None:
            held = np.full(verified.size, min(max(drafted, 0), self.max_depth))
            seconds = step.seconds if timed else math.nan
            self.policy.observe(Outcome(drafted=held, verified=verified, accepted=accepted, seconds=seconds))
        self._show(step, planned, drafted, timed=timed)
        if self.capture is not None:
            self.capture.step(step, drafted)

    def _remember(self, step: StepDone) -> None:
        for i, request_id in enumerate(step.request_ids):
            live = self._live.get(request_id)
            if live is None or not step.verified[i]:
                continue
            if live.captured and self.capture is not None:
                self.capture.round(live, step.verified[i], step.accepted[i], step.contexts[i])
            live.learn(step.verified[i], step.accepted[i])
            live.confidence = None

    def _show(self, step: StepDone, planned: _Planned, drafted: int, *, timed: bool) -> None:
        board, batch = self.board, len(step.request_ids)
        accepted, verified = sum(step.accepted), sum(step.verified)
        board.add("steps_total")
        board.add_depth(planned.depth if planned.depth >= 0 else drafted)
        board.add("verify_positions_total", batch + verified)
        board.add("draft_tokens_total", verified)
        board.add("accepted_tokens_total", accepted)
        board.add("committed_tokens_total", batch + accepted)
        board.put("sequences", batch)
        board.put("distinct_experts", step.distinct_experts)
        if step.seconds == step.seconds:
            board.add("step_seconds_total", step.seconds)
        if timed:
            board.smooth("goodput_tokens_per_second", (batch + accepted) / step.seconds, _FORGETTING)
            self._show_expectations(batch, planned, drafted)
        if planned.expected:
            pairs = zip(step.request_ids, step.verified, strict=True)
            expected = sum(planned.expected.get(request_id, 0.0) for request_id, deep in pairs if deep)
            board.smooth("expected_acceptance", expected / max(verified, 1), _FORGETTING)
            board.smooth("measured_acceptance", accepted / max(verified, 1), _FORGETTING)
            board.put("calibration_error", abs(board["expected_acceptance"] - board["measured_acceptance"]))

    def _show_expectations(self, batch: int, planned: _Planned, drafted: int) -> None:
        """Now and then: expectations move slowly."""
        policy = self.policy
        if not isinstance(policy, Controller) or int(self.board["steps_total"]) % _LOOK_EVERY:
            return
        goodput = policy.expected_goodput(batch)
        depth = min(planned.depth if planned.depth >= 0 else drafted, goodput.size - 1)
        self.board.put("expected_goodput_tokens_per_second", float(goodput[max(depth, 0)]))
        table, size = policy.table, min(batch, policy.table.max_batch)
        seconds = table.equal_seconds(size)
        at = min(max(depth, 0), seconds.size - 2)
        self.board.put("hurdle", float((seconds[at + 1] - seconds[at]) / size * goodput[at]))

    def close(self) -> None:
        if self.capture is not None:
            self.capture.close()


def _depth_of(policy: Policy, batch: int) -> int:
    depth: object = policy.draft_depth(batch)  # nothing is known of a policy that is broken
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < 0:
        raise EngineError(f"the policy's depth is {depth!r}")
    return int(depth)
