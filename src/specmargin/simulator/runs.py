"""Whole runs in compiled code, one for each kind of policy that is compiled; the engine below them is the same."""

from __future__ import annotations

from typing import NamedTuple

from specmargin.compiling import compiled
from specmargin.policies.kernel.decide import (
    PROBING,
    choose_depth,
    compare_with_gate,
    expected_of_gate,
    learn_rounds,
    shift_survival,
)
from specmargin.policies.kernel.gate import Memory, keep_drafting, ragged_gate
from specmargin.simulator.costs import target_seconds
from specmargin.simulator.drafting import draft_alike, draft_ragged, hold_signals, trim
from specmargin.simulator.loop import arrive, close, commit, log_is_full, schedule
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
)
from specmargin.step import BoolArray, FloatArray, IntArray

FINISHED_ALL, LOG_IS_FULL = 0, 1


@compiled
def run_depths(rounds, limits, tables, log, state, depth_by_batch, most_steps):  # type: ignore[no-untyped-def]
    """Whole drafts of a depth by batch: fixed depths, schedules and no speculation."""
    n = state.numbers
    depth = n[DEPTH]
    for _ in range(most_steps):
        if not arrive(limits, state):
            return FINISHED_ALL
        if log_is_full(limits, log, state):
            return LOG_IS_FULL
        schedule(limits, tables, state)
        if n[READY] > 0:
            depth = depth_by_batch[min(n[READY], depth_by_batch.size - 1)]
        target_seconds(limits, tables, log, state)
        commit(rounds, state, depth)
        draft_alike(tables, state, depth)
        close(limits, tables, log, state, depth)
    return LOG_IS_FULL


class Gate(NamedTuple):
    """A policy that looks at every draft: the gate's prices and rates, and what it works with."""

    rest: FloatArray  # (batch, depth)
    experts: FloatArray
    expert_step: float
    effective: FloatArray
    draft: FloatArray  # (batch, 2): a pass beside its sequences, and each of them
    by_pass: bool
    depth_by_batch: IntArray
    rate_by_batch: FloatArray
    option_by_batch: FloatArray
    next_acceptance: FloatArray
    memory: Memory
    survival: FloatArray  # (sequences, depth): of the drafts in hand
    drafted: IntArray
    so_far: FloatArray
    going: BoolArray
    unseen: FloatArray  # (2, depth): tokens reached and accepted that the gate expects of drafts it left out


@compiled
def _prices(gate, batch):  # type: ignore[no-untyped-def]
    return (gate.rest[batch], gate.experts, gate.expert_step, gate.effective, gate.draft[batch], gate.by_pass)


@compiled
def _verify_by_gate(rounds, state, gate, shift):  # type: ignore[no-untyped-def]
    """The gate decides how much of the drafts in hand is verified; returns how many there are."""
    count = hold_signals(rounds, state, gate.survival, gate.drafted, False)
    if count > 0:
        survival = gate.survival[:count]
        shift_survival(survival, shift)
        rate = gate.rate_by_batch[min(count, gate.rate_by_batch.size - 1)]
        ragged_gate(survival, gate.drafted[:count], _prices(gate, count), rate, gate.memory)
        trim(state, gate.memory[0])
    return count


@compiled
def _draft_by_gate(rounds, tables, state, gate, depth):  # type: ignore[no-untyped-def]
    """Pass by pass, each for the sequences whose next token is expected to pay."""
    count = hold_signals(rounds, state, gate.survival, gate.drafted, True)
    batch = min(count, gate.rate_by_batch.size - 1)
    rate, option = gate.rate_by_batch[batch], gate.option_by_batch[batch]
    so_far, going, drafted = gate.so_far[:count], gate.going[:count], gate.drafted[:count]
    so_far[:], going[:], drafted[:] = 1.0, True, 0
    for at in range(depth):
        left = keep_drafting(so_far, at, _prices(gate, count), gate.next_acceptance, rate, option, going)
        if left == 0:
            break
        for i in range(count):
            if going[i]:
                drafted[i] += 1
                so_far[i] = gate.survival[i, at]
    draft_ragged(tables, state, gate.drafted)


@compiled
def run_gate(rounds, limits, tables, log, state, gate, most_steps):  # type: ignore[no-untyped-def]
    """The ragged gate, with a depth by batch from its look-ahead."""
    n = state.numbers
    depths, depth = gate.depth_by_batch, n[DEPTH]
    for _ in range(most_steps):
        if not arrive(limits, state):
            return FINISHED_ALL
        if log_is_full(limits, log, state):
            return LOG_IS_FULL
        if n[DEPTH] > 0:
            _verify_by_gate(rounds, state, gate, 0.0)
        schedule(limits, tables, state)
        if n[READY] > 0:
            depth = depths[min(n[READY], depths.size - 1)]
        target_seconds(limits, tables, log, state)
        commit(rounds, state, depth)
        if depth > 0 and gate.by_pass and n[READY] > 0:
            _draft_by_gate(rounds, tables, state, gate, depth)
        else:
            draft_alike(tables, state, depth)
        close(limits, tables, log, state, depth)
    return LOG_IS_FULL


@compiled
def run_controller(rounds, limits, tables, log, state, gate, known, learned, most_steps):  # type: ignore[no-untyped-def]
    """The controller: with a signal it gates, without one it holds a depth; either way it learns from every step that
    only decodes (the time of others is not that of their rounds). Deciding takes no time here: its gate never rests."""
    n, places, clocks, marks = state.numbers, state.places, state.clocks, learned.marks
    depth = n[DEPTH]
    for _ in range(most_steps):
        if not arrive(limits, state):
            return FINISHED_ALL
        if log_is_full(limits, log, state):
            return LOG_IS_FULL
        held = 0
        if known.gated and marks[PROBING] < 0 and n[DEPTH] > 0:
            held = _verify_by_gate(rounds, state, gate, learned.shift[0])
        schedule(limits, tables, state)
        if n[READY] > 0:
            depth = choose_depth(known, learned, n[READY])
        target_seconds(limits, tables, log, state)
        commit(rounds, state, depth)
        if n[ROUNDS] > 0 and n[PROMPT] == 0:
            drafted = places[: n[ROUNDS], ROUND_DRAFTED]
            verified, accepted = places[: n[ROUNDS], ROUND_VERIFIED], places[: n[ROUNDS], ROUND_ACCEPTED]
            gate.unseen[:] = 0.0
            if held == n[ROUNDS]:
                depths = gate.memory[0]
                expected, reached = expected_of_gate(gate.survival, gate.drafted, depths, held, gate.unseen)
                compare_with_gate(learned, depths, expected, reached, verified, accepted)
            seconds = clocks[STEP_TARGET] + clocks[HELD_DRAFT]
            learn_rounds(known, learned, drafted, verified, accepted, gate.unseen, seconds)
        if known.gated and marks[PROBING] < 0 and depth > 0 and gate.by_pass and n[READY] > 0:
            _draft_by_gate(rounds, tables, state, gate, depth)
        else:
            draft_alike(tables, state, depth)
        close(limits, tables, log, state, depth)
    return LOG_IS_FULL
