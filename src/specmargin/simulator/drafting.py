"""Drafts in hand: what a policy sees of them, how much of each is verified, and what drafting the next ones costs."""

from __future__ import annotations

from specmargin.compiling import compiled
from specmargin.simulator.costs import between, draft_pass_seconds, place
from specmargin.simulator.state import (
    COMPUTED,
    DRAFTED,
    DRAFTS,
    EMITTED,
    HELD,
    PROMPT_TOKENS,
    READY,
    ROUND,
    RUNNING,
    STEP_DRAFT,
    STEP_DRAFTED,
    VERIFY,
    WHO,
)


@compiled
def draft_alike(tables, state, depth):  # type: ignore[no-untyped-def]  # Numba reads the types
    """Everybody drafts to the same depth."""
    n, clocks = state.numbers, state.clocks
    clocks[STEP_DRAFT] = 0.0
    n[STEP_DRAFTED] = depth * n[READY]
    n[DRAFTED] += n[STEP_DRAFTED]
    if n[STEP_DRAFTED] > 0:
        c, part = place(tables.contexts, state.sums[3] / n[READY])
        clocks[STEP_DRAFT] = between(tables.draft, n[READY], depth, c, part)


@compiled
def _decodes(q, r):  # type: ignore[no-untyped-def]
    return q[r, EMITTED] > 0 and q[r, PROMPT_TOKENS] + q[r, EMITTED] - q[r, COMPUTED] == 1


@compiled
def hold_signals(rounds, state, survival, drafted, drafting):  # type: ignore[no-untyped-def]
    """What a policy sees of the drafts in hand, or of those of the step that ends (`drafting`): fills both arrays, by
    sequence in order; returns how many."""
    q, places, known = state.requests, state.places, rounds.survival
    count = 0
    for i in range(state.numbers[RUNNING]):
        r = places[i, WHO]
        if places[i, DRAFTS] if drafting else _decodes(q, r):
            drafted[count] = q[r, HELD]
            at = q[r, ROUND]
            for d in range(known.shape[1]):
                survival[count, d] = known[at, d]
            count += 1
    return count


@compiled
def hold_outcomes(rounds, state, survival, drafting):  # type: ignore[no-untyped-def]
    """In place of the signal, for an oracle: 1 for tokens that will be accepted, 0 for the rest."""
    q, places = state.requests, state.places
    count = 0
    for i in range(state.numbers[RUNNING]):
        r = places[i, WHO]
        if places[i, DRAFTS] if drafting else _decodes(q, r):
            for d in range(survival.shape[1]):
                survival[count, d] = 1.0 if d < rounds.accepted[q[r, ROUND]] else 0.0
            count += 1


@compiled
def trim(state, depths):  # type: ignore[no-untyped-def]
    """How much of each draft in hand is verified, in the order of `hold_signals`."""
    q, places = state.requests, state.places
    count = 0
    for i in range(state.numbers[RUNNING]):
        r = places[i, WHO]
        if _decodes(q, r):
            q[r, VERIFY] = max(min(depths[count], q[r, HELD]), 0)
            count += 1


@compiled
def draft_ragged(tables, state, depths):  # type: ignore[no-untyped-def]
    """Everybody drafts to a depth of its own, in the order of `hold_signals`; pass j runs for those still drafting."""
    q, places, n, clocks = state.requests, state.places, state.numbers, state.clocks
    deepest = count = drafted = 0
    for i in range(n[RUNNING]):
        r = places[i, WHO]
        if places[i, DRAFTS]:
            q[r, HELD] = q[r, VERIFY] = depths[count]
            drafted += depths[count]
            deepest = max(deepest, depths[count])
            count += 1
    n[STEP_DRAFTED] = drafted
    n[DRAFTED] += drafted
    clocks[STEP_DRAFT] = 0.0
    context = state.sums[3] / max(n[READY], 1)
    for at in range(1, deepest + 1):
        going = 0
        for k in range(count):
            going += depths[k] >= at
        clocks[STEP_DRAFT] += draft_pass_seconds(tables, going, at, context)
