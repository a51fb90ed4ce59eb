"""A policy plays a run: in compiled code where its kind is compiled, else stepping out to Python once a step.

Both call the same engine functions in the same order: how much of the drafts in hand is verified, what is scheduled,
how deep to draft next, what came of it, and drafting.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from specmargin.policies.controller import Controller
from specmargin.policies.kernel.gate import gate_memory
from specmargin.policies.policy import FixedDepth, Gated, Outcome, Policy, RaggedGate, Schedule
from specmargin.policies.study.lookahead import LookAhead
from specmargin.policies.tables import PriceTable
from specmargin.simulator import runs
from specmargin.simulator.costs import target_seconds
from specmargin.simulator.drafting import draft_alike, draft_ragged, hold_outcomes, hold_signals, trim
from specmargin.simulator.loop import arrive, close, commit, log_is_full, schedule
from specmargin.simulator.policies import PolicyChoice
from specmargin.simulator.pricing import StepTables
from specmargin.simulator.state import (
    DEPTH,
    HELD_DRAFT,
    PROMPT,
    READY,
    ROUND_ACCEPTED,
    ROUND_DRAFTED,
    ROUND_VERIFIED,
    ROUNDS,
    STEP_TARGET,
    Limits,
    Log,
    Rounds,
    State,
)
from specmargin.step import FloatArray, IntArray

# One call plays up to so many steps; it is called again until it says that all is done.
Player = Callable[[Rounds, Limits, StepTables, Log, State, int], int]


def player(choice: PolicyChoice, max_batch: int, depth: int, *, compiled: bool = True) -> Player:
    """`depth`: of the signal, which is that of the step tables."""
    policy = choice.policy
    if compiled and isinstance(policy, FixedDepth | Schedule):
        depths = np.array([policy.draft_depth(batch) if batch else 0 for batch in range(max_batch + 1)])
        return _by_depths(depths)
    if compiled and isinstance(policy, RaggedGate):
        return _by_gate(_gate(policy.table, policy.look_ahead, max_batch, depth))
    if compiled and isinstance(policy, Controller):
        return _by_controller(_gate(policy.table, policy.look_ahead, max_batch, depth), policy)
    memory = (np.zeros((max_batch, depth)), np.zeros(max_batch, dtype=np.int64))
    return partial(_step_by_step, policy, choice.told, memory)


def _by_depths(depths: IntArray) -> Player:
    def play(rounds: Rounds, limits: Limits, tables: StepTables, log: Log, state: State, most_steps: int) -> int:
        return int(runs.run_depths(rounds, limits, tables, log, state, depths, most_steps))

    return play


def _by_gate(gate: runs.Gate) -> Player:
    def play(rounds: Rounds, limits: Limits, tables: StepTables, log: Log, state: State, most_steps: int) -> int:
        return int(runs.run_gate(rounds, limits, tables, log, state, gate, most_steps))

    return play


def _by_controller(gate: runs.Gate, own: Controller) -> Player:
    """What it learns stays in the controller's own arrays."""

    def play(rounds: Rounds, limits: Limits, tables: StepTables, log: Log, state: State, most_steps: int) -> int:
        return int(runs.run_controller(rounds, limits, tables, log, state, gate, own.known, own.learned, most_steps))

    return play


def _gate(table: PriceTable, ahead: LookAhead | None, max_batch: int, depth: int) -> runs.Gate:
    """Without a look-ahead nothing of it is used, but compiled code wants its arrays all the same."""
    return runs.Gate(
        rest=table.rest_by_batch_depth,
        experts=table.expert_seconds,
        expert_step=table.expert_step,
        effective=table.effective_by_depth,
        draft=table.draft.tangent(),
        by_pass=table.draft.by_pass,
        depth_by_batch=np.zeros(1, dtype=np.int64) if ahead is None else ahead.depth_by_batch.astype(np.int64),
        rate_by_batch=np.zeros(1) if ahead is None else ahead.rate_by_batch,
        option_by_batch=np.zeros((1, 2)) if ahead is None else ahead.option_by_batch,
        next_acceptance=np.zeros(depth) if ahead is None else ahead.next_acceptance,
        memory=gate_memory(max_batch, depth),
        survival=np.zeros((max_batch, depth)),
        drafted=np.zeros(max_batch, dtype=np.int64),
        so_far=np.zeros(max_batch),
        going=np.zeros(max_batch, dtype=bool),
        unseen=np.zeros((2, depth)),
    )


# --- any policy ---


def _step_by_step(
    policy: Policy,
    told: bool,
    memory: tuple[FloatArray, IntArray],
    rounds: Rounds,
    limits: Limits,
    tables: StepTables,
    log: Log,
    state: State,
    most_steps: int,
) -> int:
    n, depth = state.numbers, int(state.numbers[DEPTH])
    survival, drafted = memory
    for _ in range(most_steps):
        if not arrive(limits, state):
            return runs.FINISHED_ALL
        if log_is_full(limits, log, state):
            return runs.LOG_IS_FULL
        gated = None  # of this step: one that held prompts is not observed, and what was decided for it ends with it
        if n[DEPTH] > 0:
            count = _look(rounds, state, survival, drafted, told, drafting=False)
            if count:
                trim(state, policy.verify_depths(survival[:count], drafted[:count].copy()))
                gated = policy.take_gated() if isinstance(policy, Controller) else None
        schedule(limits, tables, state)
        if n[READY] > 0:
            depth = min(max(int(policy.draft_depth(int(n[READY]))), 0), survival.shape[1])
        target_seconds(limits, tables, log, state)
        commit(rounds, state, depth)
        if n[ROUNDS] > 0 and n[PROMPT] == 0:
            policy.observe(_outcome(state, gated))
        if depth > 0 and n[READY] > 0:
            _draft(policy, told, survival, drafted, rounds, tables, state, depth)
        else:
            draft_alike(tables, state, depth)
        close(limits, tables, log, state, depth)
    return runs.LOG_IS_FULL


def _look(rounds: Rounds, state: State, survival: FloatArray, drafted: IntArray, told: bool, *, drafting: bool) -> int:
    count = int(hold_signals(rounds, state, survival, drafted, drafting))
    if told:
        hold_outcomes(rounds, state, survival, drafting)
    return count


def _outcome(state: State, gated: Gated | None) -> Outcome:
    """Of the rounds verified in this step: with the seconds of the step, and of the drafting before it."""
    rows = state.places[: int(state.numbers[ROUNDS])]
    return Outcome(
        drafted=rows[:, ROUND_DRAFTED].copy(),
        verified=rows[:, ROUND_VERIFIED].copy(),
        accepted=rows[:, ROUND_ACCEPTED].copy(),
        seconds=float(state.clocks[STEP_TARGET] + state.clocks[HELD_DRAFT]),
        gated=gated,
    )


def _draft(
    policy: Policy,
    told: bool,
    survival: FloatArray,
    drafted: IntArray,
    rounds: Rounds,
    tables: StepTables,
    state: State,
    depth: int,
) -> None:
    """Pass by pass, as long as the policy keeps somebody drafting."""
    count = _look(rounds, state, survival, drafted, told, drafting=True)
    drafted[:count] = 0
    so_far, going = np.ones(count), np.ones(count, dtype=bool)
    for at in range(depth):
        going = going & policy.keep_drafting(np.where(going, so_far, 0.0), at)  # who has stopped asks for nothing
        if not going.any():
            break
        drafted[:count][going] += 1
        so_far = np.where(going, survival[:count, at], so_far)
    draft_ragged(tables, state, drafted)
