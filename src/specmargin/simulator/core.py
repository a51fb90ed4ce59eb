"""The one engine step, compiled. Compiled policies decide inside the loop; for others it stops and asks.

A step: requests arrive; how much of the drafts in hand is verified; what is scheduled; how deep to draft next; the
target's part; what came of it; drafting; the clock goes on.
"""

from __future__ import annotations

import numpy as np

from specmargin.compiling import compiled
from specmargin.policies.kernel.decide import (
    GATED,
    Expectation,
    choose_depth,
    choose_lengths,
    choose_verify,
    observe,
)
from specmargin.simulator.costs import draft_alike, draft_ragged, target_seconds
from specmargin.simulator.scheduling import arrive, close, commit, log_is_full, schedule
from specmargin.simulator.state import ARRIVE, DEPTH, OUTCOME, VERIFY, RequestRow, Simulation, State
from specmargin.step import IntArray

GOING_ON, ALL_DONE, LOG_IS_FULL, ASKING = range(4)  # why the loop came back


@compiled
def run(simulation: Simulation, most_steps: int) -> int:
    """Up to so many steps. ASKING: Python decides what `engine.phase` says, and calls again."""
    engine, step, asks = simulation.state.engine[0], simulation.state.step[0], simulation.limits.by_python
    for _ in range(most_steps):
        expected = _nothing(simulation)
        if engine.phase == ARRIVE:
            code = _begin(simulation)
            if code != GOING_ON:
                return code
        if engine.phase == VERIFY:
            expected = _verify(simulation)
            schedule(simulation)
            engine.phase = DEPTH
            if asks and step.ready > 0:
                return ASKING
        if engine.phase == DEPTH:
            _work(simulation)
            engine.phase = OUTCOME
            if asks:
                return ASKING
        _finish(simulation, expected)
        engine.phase = ARRIVE
    return GOING_ON


@compiled
def _begin(simulation: Simulation) -> int:
    """Requests arrive; signals of the drafts in hand are held, where somebody decides on them."""
    limits, state = simulation.limits, simulation.state
    engine, step = state.engine[0], state.step[0]
    if not arrive(limits, state):
        return ALL_DONE
    if log_is_full(limits, simulation.log, state):
        return LOG_IS_FULL
    decided_on = engine.depth > 0 and (limits.by_python or engine.gated)
    step.held = hold_signals(simulation, False) if decided_on else 0
    engine.phase = VERIFY
    return ASKING if limits.by_python and step.held > 0 else GOING_ON


@compiled
def _work(simulation: Simulation) -> None:
    """How deep to draft next, and the target's part; signals of the new drafts are held, where they may stop early."""
    state, kernel, asks = simulation.state, simulation.kernel, simulation.limits.by_python
    engine, step = state.engine[0], state.step[0]
    if not asks and step.ready > 0:
        engine.chosen_depth, engine.chosen_gated = choose_depth(kernel, step.ready)
    target_seconds(simulation)
    commit(simulation)
    may_stop = asks or (engine.chosen_gated and kernel.rules.early_stop)
    drafting = may_stop and engine.chosen_depth > 0 and step.ready > 0
    step.held = hold_signals(simulation, True) if drafting else 0


@compiled
def _finish(simulation: Simulation, expected: Expectation) -> None:
    """What came of the step, drafting, and the clock."""
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
def _nothing(simulation: Simulation) -> Expectation:
    return Expectation(simulation.state.lengths[:0], 0.0, 0.0, simulation.kernel.scratch.nothing, 0.0, 0.0)


@compiled
def _verify(simulation: Simulation) -> Expectation:
    """How much of the drafts in hand is verified, as Python or the kernel decides. Deciding takes no time here."""
    state, kernel, held = simulation.state, simulation.kernel, simulation.state.step[0].held
    if held == 0:
        return _nothing(simulation)
    if simulation.limits.by_python:
        _trim(state, state.lengths)
        return _nothing(simulation)
    kind, accepted, reached, gain = choose_verify(kernel, True, state.survival[:held], state.lengths[:held])
    if kind != GATED:
        return _nothing(simulation)
    _trim(state, kernel.scratch.depths)
    return Expectation(kernel.scratch.depths[:held], accepted, reached, kernel.scratch.unseen, gain, 0.0)


@compiled
def _learn(simulation: Simulation, expected: Expectation) -> None:
    """Acceptance from every step; prices from those that only decode: the time of others says nothing of rounds."""
    state, step = simulation.state, simulation.state.step[0]
    if step.rounds > 0:
        drafted, verified, accepted = (
            state.drafted[: step.rounds],
            state.verified[: step.rounds],
            state.accepted[: step.rounds],
        )
        seconds = step.target_seconds + state.engine[0].draft_seconds if step.prompt_tokens == 0 else np.nan
        observe(simulation.kernel, drafted, verified, accepted, seconds, expected)


# --- drafts in hand ---


@compiled
def _decodes(request: RequestRow) -> bool:
    return request.emitted > 0 and request.prompt_tokens + request.emitted - request.computed == 1


@compiled
def hold_signals(simulation: Simulation, drafting: bool) -> int:
    """What a policy sees of the drafts in hand, or of those that the step makes (`drafting`): fills the state's
    survival and lengths, by sequence in order; returns how many. An oracle is told 1 for tokens that will be accepted.
    """
    state, rounds, told = simulation.state, simulation.rounds, simulation.limits.told
    survival, count = state.survival, 0
    for i in range(state.engine[0].running):
        slot = state.slots[i]
        request = state.requests[slot.request]
        if slot.drafts if drafting else _decodes(request):
            state.lengths[count] = request.held
            for d in range(survival.shape[1]):
                if told:
                    survival[count, d] = 1.0 if d < rounds.accepted[request.round] else 0.0
                else:
                    survival[count, d] = rounds.survival[request.round, d]
            count += 1
    return count


@compiled
def _trim(state: State, depths: IntArray) -> None:
    """How much of each draft in hand is verified, in the order of `hold_signals`."""
    count = 0
    for i in range(state.engine[0].running):
        request = state.requests[state.slots[i].request]
        if _decodes(request):
            request.verify = max(min(depths[count], request.held), 0)
            count += 1
