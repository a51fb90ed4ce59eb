"""One engine step, compiled. Compiled policies decide inside the loop; for policies in Python the loop returns.

A step: requests arrive, the policy decides how much of each pending draft is verified, positions are scheduled, the
policy decides the next draft depth, the target runs, outcomes are learned from, the drafter runs, the clock advances.
"""

from __future__ import annotations

import numpy as np

from specmargin.compiler import compiled, compiled_entry
from specmargin.policies.kernel.decide import (
    GATED,
    choose_depth,
    choose_lengths,
    choose_verify,
    observe,
)
from specmargin.policies.kernel.types import Expectation
from specmargin.simulator.arrivals import arrive
from specmargin.simulator.costs import draft_alike, draft_ragged, target_seconds
from specmargin.simulator.scheduler import close, commit, log_is_full, schedule
from specmargin.simulator.state import ARRIVE, DEPTH, OUTCOME, VERIFY, Simulation, State
from specmargin.simulator.workload import Request
from specmargin.step import IntArray

RUNNING, FINISHED, LOG_FULL, NEEDS_DECISION = range(4)  # why the loop returned


@compiled_entry
def run(simulation: Simulation, max_steps: int) -> int:
    """Run up to `max_steps` steps. NEEDS_DECISION: Python makes the decision of `engine.phase`, then calls again."""
    engine, step, by_python = simulation.state.engine[0], simulation.state.step[0], simulation.limits.by_python
    for _ in range(max_steps):
        expected = _no_expectation(simulation)
        if engine.phase == ARRIVE:
            code = _begin(simulation)
            if code != RUNNING:
                return code
        if engine.phase == VERIFY:
            expected = _verify(simulation)
            schedule(simulation)
            engine.phase = DEPTH
            if by_python and step.ready > 0:
                return NEEDS_DECISION
        if engine.phase == DEPTH:
            _run_target(simulation)
            engine.phase = OUTCOME
            if by_python:
                return NEEDS_DECISION
        _finish(simulation, expected)
        engine.phase = ARRIVE
    return RUNNING


@compiled
def _begin(simulation: Simulation) -> int:
    """Requests arrive. Signals of the pending drafts are gathered if the policy decides on them."""
    limits, state = simulation.limits, simulation.state
    engine, step = state.engine[0], state.step[0]
    if not arrive(limits, state):
        return FINISHED
    if log_is_full(limits, simulation.log, state):
        return LOG_FULL
    policy_decides = engine.depth > 0 and (limits.by_python or engine.gated)
    step.held = gather_signals(simulation, False) if policy_decides else 0
    engine.phase = VERIFY
    return NEEDS_DECISION if limits.by_python and step.held > 0 else RUNNING


@compiled
def _run_target(simulation: Simulation) -> None:
    """Choose the next draft depth and run the target. Signals are gathered if the new drafts may stop early."""
    state, kernel, by_python = simulation.state, simulation.kernel, simulation.limits.by_python
    engine, step = state.engine[0], state.step[0]
    if not by_python and step.ready > 0:
        engine.chosen_depth, engine.chosen_gated = choose_depth(kernel, step.ready)
    target_seconds(simulation)
    commit(simulation)
    may_stop = by_python or (engine.chosen_gated and kernel.rules.early_stop)
    drafting = may_stop and engine.chosen_depth > 0 and step.ready > 0
    step.held = gather_signals(simulation, True) if drafting else 0


@compiled
def _finish(simulation: Simulation, expected: Expectation) -> None:
    """Learn from the step, draft, and advance the clock."""
    state, step = simulation.state, simulation.state.step[0]
    if not simulation.limits.by_python:
        _learn(simulation, expected)
        if step.held > 0:
            survival, depth = state.survival[: step.held], state.engine[0].chosen_depth
            choose_lengths(simulation.kernel, True, survival, depth, state.lengths)
    if step.held > 0:
        draft_ragged(simulation)
    else:
        draft_alike(simulation)
    close(simulation)


@compiled
def _no_expectation(simulation: Simulation) -> Expectation:
    scratch = simulation.kernel.scratch
    return Expectation(simulation.state.lengths[:0], 0.0, 0.0, scratch.nothing, scratch.no_drafts)


@compiled
def _verify(simulation: Simulation) -> Expectation:
    """Set the verify depths that Python or the kernel chose. Deciding takes no simulated time."""
    state, kernel, held = simulation.state, simulation.kernel, simulation.state.step[0].held
    if held == 0:
        return _no_expectation(simulation)
    if simulation.limits.by_python:
        _trim(state, state.lengths)
        return _no_expectation(simulation)
    kind, accepted, reached = choose_verify(kernel, True, state.survival[:held], state.lengths[:held])
    if kind != GATED:
        return _no_expectation(simulation)
    _trim(state, kernel.scratch.depths)
    scratch = kernel.scratch
    return Expectation(scratch.depths[:held], accepted, reached, scratch.unseen, scratch.no_drafts)


@compiled
def _learn(simulation: Simulation, expected: Expectation) -> None:
    """Acceptance is learned from every step, prices only from steps without prompt tokens."""
    state, step = simulation.state, simulation.state.step[0]
    if step.rounds > 0:
        drafted, verified, accepted = (
            state.drafted[: step.rounds],
            state.verified[: step.rounds],
            state.accepted[: step.rounds],
        )
        seconds = step.target_seconds + state.engine[0].draft_seconds if step.prompt_tokens == 0 else np.nan
        observe(simulation.kernel, drafted, verified, accepted, seconds, expected)


# --- pending drafts ---


@compiled
def _decodes(request: Request) -> bool:
    return request.emitted > 0 and request.prompt_tokens + request.emitted - request.computed == 1


@compiled
def gather_signals(simulation: Simulation, drafting: bool) -> int:
    """Fill the state's survival and lengths, by sequence in batch order, with what the policy sees of the pending
    drafts or (`drafting`) of the drafts that this step makes. Returns the number of sequences. The oracle sees a
    survival of 1 for every token that will be accepted.
    """
    state, rounds, sees_outcomes = simulation.state, simulation.rounds, simulation.limits.sees_outcomes
    survival, count = state.survival, 0
    for i in range(state.engine[0].running):
        slot = state.slots[i]
        request = state.requests[slot.request]
        if slot.drafts if drafting else _decodes(request):
            state.lengths[count] = request.held
            round_ = request.next_round
            for d in range(survival.shape[1]):
                survival[count, d] = rounds.survival[round_, d]
            if sees_outcomes:
                for d in range(survival.shape[1]):
                    survival[count, d] = 1.0 if d < rounds.accepted[round_] else 0.0
            count += 1
    return count


@compiled
def _trim(state: State, depths: IntArray) -> None:
    """Set how much of each pending draft is verified, in the order of `gather_signals`."""
    count = 0
    for i in range(state.engine[0].running):
        request = state.requests[state.slots[i].request]
        if _decodes(request):
            request.verify = max(min(depths[count], request.held), 0)
            count += 1
