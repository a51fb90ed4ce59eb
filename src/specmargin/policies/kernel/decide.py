"""The controller's decisions, compiled: what an engine's plug-in and the simulator both call. It looks up and adds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.compiling import compiled
from specmargin.policies.kernel.learn import (
    acceptance_shift,
    conditional_acceptance,
    corrected_seconds,
    learn_acceptance,
    learn_prices,
    learn_shift,
)
from specmargin.step import FloatArray, IntArray

_FALLEN = -1.0  # log-odds
_DEEP_PROBE = 32  # probes from one of the deepest depth to the next: it costs the most and is right the least

(DEPTH, STEP, PROBING, OFF_UNTIL, WHOLE_UNTIL, WHOLE_BATCH) = range(6)  # of `Learned.marks`; -1: none
(COMMITTED, PLAIN, SQUARES, WATCHED) = range(4)  # of `Learned.guard`
_SURE = 3.0  # standard deviations of what chance accepts in the guard's window
(NET, GATED) = range(2)  # of `Learned.gate`
_OTHER_LOAD = 2.0  # a batch so many times as large or as small is another case for the gate
# Of `Known.settings`:
(HYSTERESIS, PROBE_EVERY, GUARD_STEPS, GUARD_MARGIN, GUARD_REST, GATE_STEPS, GATE_REST) = range(7)


class Known(NamedTuple):
    """What does not change: prices, the prior and the settings. By batch from 0 on, by depth from 0 on."""

    rest: FloatArray  # (batch, depth): seconds of all but routed experts
    experts: FloatArray  # seconds over strangers, evenly spaced
    expert_step: float
    effective: FloatArray
    pass_by_batch: FloatArray  # seconds of a draft pass (or block), by sequences in it
    by_pass: bool
    prior: FloatArray  # conditional acceptance
    allowed: IntArray  # 1: a depth that the engine has graphs for
    settings: FloatArray
    gated: bool
    selective: bool  # the look-ahead knows how deep to draft: drafts end early, or depth costs nothing
    depth_by_batch: IntArray  # the look-ahead's; one entry of no meaning without it


class Learned(NamedTuple):
    """What does: the arrays of the controller's parts, shared with them."""

    tried: FloatArray
    taken: FloatArray
    normal: FloatArray
    right: FloatArray
    values: FloatArray
    shift: FloatArray  # one number, so that it can be changed in place
    guard: FloatArray  # tokens committed with drafts, what plain decoding would have, squares, steps
    gate: FloatArray  # tokens that gating is ahead of verifying all drafts, its own cost taken off; steps
    marks: IntArray


@compiled
def _experts_at(known, strangers):  # type: ignore[no-untyped-def]  # Numba reads the types
    place = min(max(strangers / known.expert_step, 0.0), known.experts.size - 1.0)
    low = min(int(place), known.experts.size - 2)
    return known.experts[low] + (place - low) * (known.experts[low + 1] - known.experts[low])


@compiled
def _goodput_at(known, learned, batch, depth, committed):  # type: ignore[no-untyped-def]
    passes = depth if known.by_pass else min(depth, 1)
    rest = known.rest[batch, depth] + passes * known.pass_by_batch[batch]
    experts = _experts_at(known, batch * known.effective[depth])
    return batch * committed / max(corrected_seconds(learned.values, rest, experts), 1e-6)


@compiled
def goodput_by_depth(known, learned, batch, out):  # type: ignore[no-untyped-def]
    """Fill `out` with tokens a second under learned acceptance and prices."""
    shift = acceptance_shift(known.prior, learned.tried, learned.taken)
    alive, committed = 1.0, 1.0
    out[0] = _goodput_at(known, learned, batch, 0, committed)
    for depth in range(1, known.effective.size):
        alive *= conditional_acceptance(known.prior, learned.tried, learned.taken, depth - 1, shift)
        committed += alive
        out[depth] = _goodput_at(known, learned, batch, depth, committed)


@compiled
def best_by_goodput(known, learned, batch, held):  # type: ignore[no-untyped-def]
    """The depth with the most goodput under learned acceptance and prices, and by how much it beats the `held` one;
    depths without a graph are out."""
    shift = acceptance_shift(known.prior, learned.tried, learned.taken)
    alive, committed = 1.0, 1.0
    best, best_goodput, held_goodput = 0, 0.0, 0.0
    for depth in range(known.effective.size):
        if depth > 0:
            alive *= conditional_acceptance(known.prior, learned.tried, learned.taken, depth - 1, shift)
            committed += alive
        goodput = _goodput_at(known, learned, batch, depth, committed)
        if known.allowed[depth] and goodput > best_goodput:
            best, best_goodput = depth, goodput
        if depth == held:
            held_goodput = goodput
    return best, best_goodput / max(held_goodput, 1e-300)


@compiled
def choose_depth(known, learned, batch):  # type: ignore[no-untyped-def]
    """Before drafting. Off while the guard says so; another depth than the best one once in a while."""
    marks = learned.marks
    batch = min(max(batch, 1), known.rest.shape[0] - 1)
    marks[STEP] += 1
    marks[PROBING] = -1
    if marks[STEP] < marks[OFF_UNTIL]:
        return 0
    selective = known.selective and is_gating(known, learned, batch)
    if selective and learned.shift[0] >= _FALLEN:
        marks[DEPTH] = _selective(known, batch)
    else:
        best, gain = best_by_goodput(known, learned, batch, marks[DEPTH])
        if marks[DEPTH] < 0 or selective or gain > 1.0 + known.settings[HYSTERESIS]:
            marks[DEPTH] = best
    marks[PROBING] = _probe(known, marks, selective)
    return marks[DEPTH] if marks[PROBING] < 0 else marks[PROBING]


@compiled
def is_gating(known, learned, batch):  # type: ignore[no-untyped-def]
    """Whether drafts of such a batch are gated: there is a gate, and it does not rest."""
    marks = learned.marks
    if not known.gated or marks[STEP] >= marks[WHOLE_UNTIL]:
        return known.gated
    return batch > marks[WHOLE_BATCH] * _OTHER_LOAD or batch * _OTHER_LOAD < marks[WHOLE_BATCH]


@compiled
def account_for_gate(known, learned, batch, net):  # type: ignore[no-untyped-def]
    """Let the gate rest where it costs more tokens than it gains: reading confidences takes time too."""
    ledger, marks, steps = learned.gate, learned.marks, max(known.settings[GATE_STEPS], 1.0)
    ledger[NET] = (1.0 - 1.0 / steps) * ledger[NET] + net
    ledger[GATED] += 1.0
    if ledger[GATED] >= steps and ledger[NET] < 0.0:
        ledger[:] = 0.0
        marks[WHOLE_UNTIL], marks[WHOLE_BATCH] = marks[STEP] + int(known.settings[GATE_REST]), batch


@compiled
def _selective(known, batch):  # type: ignore[no-untyped-def]
    """With a gate, drafting may pay where the mean says it does not: as the look-ahead has it, unless acceptance has
    fallen far from the sample that it was made of."""
    depth = known.depth_by_batch[min(batch, known.depth_by_batch.size - 1)]
    while depth > 0 and not known.allowed[depth]:
        depth -= 1
    return depth


@compiled
def _probe(known, marks, selective):  # type: ignore[no-untyped-def]
    """Once in a while the next allowed depth, seldom the deepest; more often where nothing else is learned. A gate
    that drafts needs no probes: confident sequences go deep by themselves."""
    deepest = known.effective.size - 1
    if selective and marks[DEPTH] > 0:
        return -1
    every = max(int(known.settings[PROBE_EVERY]) // (4 if marks[DEPTH] == 0 else 1), 1)
    if marks[STEP] % every != 0 or marks[DEPTH] == deepest:
        return -1
    upwards = (marks[STEP] // every) % _DEEP_PROBE != 0
    found = -1
    for depth in range(marks[DEPTH] + 1, deepest + 1):
        if known.allowed[depth]:
            found = depth
            if upwards:
                break
    return found


@compiled
def are_rounds(drafted, verified, accepted, deepest):  # type: ignore[no-untyped-def]
    """No sequence accepts more than it verified, or goes deeper than the tables."""
    for i in range(verified.size):  # noqa: SIM110 (Numba knows no generators here)
        if not (0 <= accepted[i] <= verified[i] <= deepest and 0 <= drafted[i] <= deepest):
            return False
    return True


@compiled
def round_parts(known, drafted, verified):  # type: ignore[no-untyped-def]
    """Seconds of these rounds by the table: all but experts, and experts."""
    batch, deepest = verified.size, known.effective.size - 1
    total, strangers, most = 0, 0.0, 0
    for i in range(batch):
        total += verified[i]
        strangers += known.effective[verified[i]]
        most = max(most, min(drafted[i], deepest))
    mean = total / batch
    low = min(int(mean), deepest - 1)
    rest = known.rest[batch, low] + (mean - low) * (known.rest[batch, low + 1] - known.rest[batch, low])
    for at in range(most if known.by_pass else min(most, 1)):
        going = 0
        for i in range(batch):
            going += drafted[i] > at
        rest += known.pass_by_batch[going]
    return rest, _experts_at(known, strangers)


@compiled
def learn_rounds(known, learned, drafted, verified, accepted, unseen, seconds):  # type: ignore[no-untyped-def]
    """After the step: acceptance, prices, and whether to go on at all."""
    learn_acceptance(learned.tried, learned.taken, verified, accepted, unseen)
    if np.isnan(seconds):  # its time says nothing
        return
    rest, experts = round_parts(known, drafted, verified)
    learn_prices(learned.normal, learned.right, learned.values, rest, experts, seconds)
    _watch(known, learned, drafted, accepted, seconds)


@compiled
def _watch(known, learned, drafted, accepted, seconds):  # type: ignore[no-untyped-def]
    """Turn speculation off when it has been worse than plain decoding for long enough."""
    batch, most, taken, squares = drafted.size, 0, 0, 0
    for i in range(batch):
        most = max(most, drafted[i])
        taken += accepted[i]
        squares += accepted[i] ** 2
    if most == 0:
        return
    plain = corrected_seconds(learned.values, known.rest[batch, 0], _experts_at(known, batch * known.effective[0]))
    # Leaky sums, not a count of bad steps: at batch 1 most rounds may accept nothing and the rest pay for them.
    guard, steps = learned.guard, known.settings[GUARD_STEPS]
    keep = 1.0 - 1.0 / max(steps, 1.0)
    guard[COMMITTED] = keep * guard[COMMITTED] + batch + taken
    guard[PLAIN] = keep * guard[PLAIN] + batch * seconds / max(plain, 1e-6)
    guard[SQUARES] = keep * guard[SQUARES] + squares
    guard[WATCHED] += 1.0
    likely = guard[COMMITTED] + _SURE * np.sqrt(guard[SQUARES])
    if guard[WATCHED] >= steps and likely < guard[PLAIN] * (1.0 - known.settings[GUARD_MARGIN]):
        guard[:] = 0.0
        learned.marks[OFF_UNTIL] = learned.marks[STEP] + int(known.settings[GUARD_REST])


@compiled
def shift_survival(survival, by):  # type: ignore[no-untyped-def]
    """Every token's odds times e^by, in place."""
    if by == 0.0:
        return
    odds = np.exp(-by)
    for i in range(survival.shape[0]):
        before, alive = 1.0, 1.0
        for d in range(survival.shape[1]):
            p = min(max(survival[i, d] / max(before, 1e-12), 1e-6), 1.0 - 1e-6)
            before = survival[i, d]
            alive *= 1.0 / (1.0 + (1.0 - p) / p * odds)
            survival[i, d] = alive


@compiled
def expected_of_gate(survival, drafted, depths, batch, unseen):  # type: ignore[no-untyped-def]
    """Tokens that are expected to be accepted, and those that are expected to be reached. `unseen` is filled with both,
    by depth, for drafts that are left out."""
    expected = reached = 0.0
    unseen[:] = 0.0
    for i in range(batch):
        before = 1.0
        for d in range(min(drafted[i], survival.shape[1])):
            if d < depths[i]:
                expected += survival[i, d]
                reached += before
            else:
                unseen[0, d] += before
                unseen[1, d] += survival[i, d]
            before = survival[i, d]
    return expected, reached


@compiled
def compare_with_gate(learned, depths, expected, reached, verified, accepted):  # type: ignore[no-untyped-def]
    """Accepted tokens against what the gate expected of them; nothing where other drafts were verified."""
    observed = 0.0
    for i in range(verified.size):
        if depths[i] != verified[i]:
            return
        observed += accepted[i]
    learn_shift(learned.shift, expected, observed, reached)
