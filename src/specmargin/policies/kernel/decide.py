"""The decisions, compiled: how deep to draft, how much of each draft to verify, and what to learn from the outcome.

Every policy that is compiled is a `Kernel`: fixed depths and schedules (neither gates nor learns), the ragged gate
(gates), the controller (learns, and gates where it knows confidences before verifying). The simulator calls these
functions from its own compiled loop; an engine's plug-in calls the same ones through a `Handle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specmargin.compiler import HandleBase, StructType, compiled, define_handle, entry, register
from specmargin.policies.kernel.depth import (
    best_depth,
    best_whole_depth,
    choose_plain_probe,
    choose_probe,
    fill_goodput,
    fill_options,
    fill_time_weights,
    is_allowed,
    is_budgeted,
    is_probe_due,
    worth_probing,
)
from specmargin.policies.kernel.gains import remember_drafts
from specmargin.policies.kernel.gate import EarlyStop, Scratch, draft_lengths, ragged_gate
from specmargin.policies.kernel.learn import (
    Learned,
    acceptance_shift,
    conditional_acceptance,
    learn_acceptance,
    learn_shift,
    rounds_of_all,
)
from specmargin.policies.kernel.prices import FIRST_CONTEXT, drafting_seconds, verify_parts
from specmargin.policies.kernel.times import enter_state, fill_factors, learn_time, level_of, verify_part
from specmargin.policies.kernel.types import Expectation, Kernel, LookAhead
from specmargin.step import FloatArray, IntArray

WHOLE, GATED, UNUSABLE = 0, 1, 2  # how the drafts of a batch are verified


# --- how deep to draft ---


@compiled
def choose_depth(kernel: Kernel, batch: int) -> tuple[int, bool]:
    """Before drafting: the depth of the batch, and whether its drafts will be gated."""
    rules = kernel.rules
    if not rules.learns:
        return _depth_ahead(rules.ahead, batch), rules.gates
    marks, within = kernel.learned.marks[0], min(max(batch, 1), rules.table.rest_seconds.shape[0] - 1)
    marks.step += 1
    if marks.step < marks.off_until:
        return 0, rules.gates
    gated = rules.gates and kernel.learned.shift[0] >= rules.tuning[0].fallen
    plain_step = not (is_probe_due(kernel) or is_budgeted(kernel, within))
    if gated and plain_step:  # options would not be looked at
        marks.state = enter_state(kernel.learned.times, rules.table, within, marks.state, marks.step)
        marks.depth = _depth_ahead(rules.ahead, within)
        return marks.depth, True
    if plain_step:
        fill_goodput(kernel, within)
        best = best_whole_depth(kernel, within)
    else:
        if gated:
            return _gated_depth(kernel, within)
        fill_options(kernel, within)
        best = best_depth(kernel, within)
    if _is_worth_a_change(kernel, within, best):
        marks.depth = best
    probe = choose_probe(kernel, within, marks.depth)
    depth = marks.depth if probe < 0 else probe
    return depth, probe != marks.depth if is_budgeted(kernel, within) else rules.gates and probe < 0


@compiled
def _depth_ahead(ahead: LookAhead, batch: int) -> int:
    return int(ahead.depth_by_batch[min(batch, ahead.depth_by_batch.size - 1)])


@compiled
def _gated_depth(kernel: Kernel, batch: int) -> tuple[int, bool]:
    """The depth of the look-ahead, and whether it is gated: a probe is not."""
    rules, marks = kernel.rules, kernel.learned.marks[0]
    marks.depth = depth = _depth_ahead(rules.ahead, batch)
    inside = min(depth, rules.table.graph_depth_by_batch[batch])  # the gate keeps the step in its graph
    if depth == 0 or is_budgeted(kernel, batch):
        fill_options(kernel, batch)
    else:
        fill_time_weights(kernel, batch, inside)
    if depth == 0:
        probe = choose_probe(kernel, batch, 0)
    else:
        probe = choose_plain_probe(kernel, batch, inside, _ahead_of_plain(kernel))
    return (depth, True) if probe < 0 else (probe, False)


@compiled
def _is_worth_a_change(kernel: Kernel, batch: int, best: int) -> bool:
    depth, options = kernel.learned.marks[0].depth, kernel.options
    if depth < 0 or not is_allowed(kernel, batch, depth):
        return True
    return options[best].log_goodput - options[depth].log_goodput > kernel.rules.tuning[0].hysteresis


@compiled
def _ahead_of_plain(kernel: Kernel) -> float:
    """ln of gated goodput over that of plain decoding, by the guard's sums; 0 before there are any."""
    sums = kernel.learned.guard[0]
    return np.log(sums.committed / sums.plain) if sums.committed > 0.0 and sums.plain > 0.0 else 0.0


@compiled
def goodput_by_depth(kernel: Kernel, batch: int, out: FloatArray) -> None:
    """Fill `out` with tokens per second under learned acceptance and times."""
    fill_options(kernel, batch)
    level = level_of(kernel.learned.times, kernel.learned.marks[0].state)
    for depth in range(out.size):
        out[depth] = batch * np.exp(kernel.options[depth].log_goodput - level)


@compiled
def choose_lengths(kernel: Kernel, gated: bool, survival: FloatArray, depth: int, drafted: IntArray) -> None:
    """While drafting: fill `drafted` with where each sequence stops; all at `depth` where drafts are whole."""
    rules, ahead = kernel.rules, kernel.rules.ahead
    if not (gated and rules.early_stop):
        drafted[: survival.shape[0]] = depth
        return
    batch = min(survival.shape[0], ahead.rate_by_batch.size - 1)
    stop = EarlyStop(ahead.rate_by_batch[batch], ahead.option_by_batch[batch, 0], ahead.option_by_batch[batch, 1])
    draft_lengths(rules.table, survival, depth, ahead.next_acceptance, stop, kernel.scratch, drafted)


# --- how much to verify ---


@compiled
def choose_verify(kernel: Kernel, gated: bool, survival: FloatArray, drafted: IntArray) -> tuple[int, float, float]:
    """Before verifying: fill the scratch's depths with how much of each draft to verify, unless drafts are verified
    whole. Returns WHOLE, GATED or UNUSABLE (a survival is not a probability), and the tokens expected to be accepted
    and to be reached."""
    rules, scratch, (batch, width) = kernel.rules, kernel.scratch, survival.shape
    if not (gated and rules.gates):
        return WHOLE, 0.0, 0.0
    usable = True
    for i in range(batch):
        for d in range(width):
            usable &= (survival[i, d] >= 0.0) & (survival[i, d] <= 1.0)  # False for NaN
    if not usable:
        return UNUSABLE, 0.0, 0.0
    rate = rules.ahead.rate_by_batch[min(batch, rules.ahead.rate_by_batch.size - 1)]
    ragged_gate(rules.table, survival, drafted, rate, kernel.learned.shift[0], scratch)
    if not rules.learns:
        return GATED, 0.0, 0.0
    accepted, reached = _expected(scratch, drafted, batch)
    return GATED, accepted, reached


@compiled
def _expected(scratch: Scratch, drafted: IntArray, batch: int) -> tuple[float, float]:
    """Tokens expected to be accepted and reached; `unseen` is filled with both, by depth, for what is left out."""
    survival, depths, unseen = scratch.believed, scratch.depths, scratch.unseen
    accepted = reached = 0.0
    unseen[:] = 0.0
    for i in range(batch):
        before = 1.0
        for d in range(depths[i]):
            accepted += survival[i, d]
            reached += before
            before = survival[i, d]
        for d in range(depths[i], min(drafted[i], survival.shape[1])):
            unseen[0, d] += before
            unseen[1, d] += survival[i, d]
            before = survival[i, d]
    return accepted, reached


# --- outcomes ---


@compiled
def observe(
    kernel: Kernel, drafted: IntArray, verified: IntArray, accepted: IntArray, seconds: float, expected: Expectation
) -> bool:
    """After the step; False, and nothing learned, if these are not valid rounds. Seconds are NaN if the step's time
    cannot be used. `expected`: of the gate for this step; of another size if it decided nothing."""
    rules, learned, unseen = kernel.rules, kernel.learned, kernel.scratch.nothing
    if not rules.learns:
        return True
    if not rules.learns_times:
        seconds = np.nan
    if not _valid_rounds(drafted, verified, accepted, rules.prior.size):
        return False
    if expected.depths.size == verified.size:
        unseen = expected.unseen
        _compare_with_gate(learned, expected, verified, accepted)
    if rules.budgets and expected.acceptance.shape[0] > 0:
        remember_drafts(learned.gate, expected.acceptance)
    learn_acceptance(learned, verified, accepted, unseen)
    if np.isnan(seconds):
        return True
    expected_seconds = _learn_time(kernel, drafted, verified, seconds)
    if rules.gates or is_budgeted(kernel, verified.size):
        _guard_goodput(kernel, drafted, accepted, min(seconds, rules.tuning[0].stalled * expected_seconds))
    return True


@compiled
def _learn_time(kernel: Kernel, drafted: IntArray, verified: IntArray, seconds: float) -> float:
    """Returns the seconds that were expected of the step."""
    learned, table, batch = kernel.learned, kernel.rules.table, verified.size
    marks, total = learned.marks[0], 0
    for i in range(batch):
        total += verified[i]
    rest, experts = verify_parts(table, verified, batch)
    drafting = drafting_seconds(table, drafted, batch, FIRST_CONTEXT)
    state = enter_state(learned.times, table, batch, marks.state, marks.step)
    mean_depth, verifying = total / batch, rest + experts
    return learn_time(learned.times, state, batch, mean_depth, verifying, drafting, seconds, marks.step)


@compiled
def _valid_rounds(drafted: IntArray, verified: IntArray, accepted: IntArray, deepest: int) -> bool:
    """No sequence accepts more than it verified, or goes deeper than the tables."""
    for i in range(verified.size):  # noqa: SIM110 (Numba knows no generators here)
        if not (0 <= accepted[i] <= verified[i] <= deepest and 0 <= drafted[i] <= deepest):
            return False
    return True


@compiled
def _compare_with_gate(learned: Learned, expected: Expectation, verified: IntArray, accepted: IntArray) -> None:
    """Accepted tokens against what the gate expected of them; nothing where other drafts were verified."""
    observed = 0.0
    for i in range(verified.size):
        if expected.depths[i] != verified[i]:
            return
        observed += accepted[i]
    learn_shift(learned, expected.accepted, observed, expected.reached)


@compiled
def _guard_goodput(kernel: Kernel, drafted: IntArray, accepted: IntArray, seconds: float) -> None:
    """Turn speculation off after gated goodput has been below that of timed plain steps for long enough: confidences
    may be wrong. Without a gate depths are compared by what was accepted, and nothing has to be guarded."""
    batch, deepest, tokens, squares = drafted.size, 0, 0, 0
    for i in range(batch):
        deepest = max(deepest, drafted[i])
        tokens += accepted[i]
        squares += accepted[i] ** 2
    if deepest == 0:
        return
    times, state = kernel.learned.times, kernel.learned.marks[0].state
    plain = np.exp(level_of(times, state)) * verify_part(times, state, batch, 0)[0]
    # Decaying sums, not a count of bad steps: at batch 1 most rounds may accept nothing and speculation still pay.
    sums, marks, tuning = kernel.learned.guard[0], kernel.learned.marks[0], kernel.rules.tuning[0]
    steps = tuning.guard_steps
    keep = 1.0 - 1.0 / max(steps, 1.0)
    sums.committed = keep * sums.committed + batch + tokens
    sums.plain = keep * sums.plain + batch * seconds / max(plain, 1e-6)
    sums.squares = keep * sums.squares + squares
    sums.steps += 1.0
    likely = sums.committed + tuning.guard_sure * np.sqrt(sums.squares)
    if sums.steps >= steps and likely < sums.plain * (1.0 - tuning.guard_margin):
        sums.committed = sums.plain = sums.squares = sums.steps = 0.0
        marks.off_until = marks.step + tuning.guard_rest


# --- from Python ---


@register
class _HandleType(StructType):
    pass


class Handle(HandleBase):
    """A kernel held by compiled code. Passing its fifty arrays takes longer than a decision, several times longer in an
    engine whose forward pass has evicted the CPU caches; so they are passed once."""

    if TYPE_CHECKING:

        def __init__(self, kernel: Kernel) -> None: ...

        kernel: Kernel


define_handle(Handle, _HandleType, "kernel")


@entry
def draft_by_handle(handle: Handle, batch: int) -> tuple[int, bool]:
    return choose_depth(handle.kernel, batch)


@entry
def count_by_handle(handle: Handle) -> None:
    handle.kernel.learned.marks[0].step += 1


@entry
def probe_by_handle(handle: Handle, batch: int, depth: int, steps: int) -> int:
    """What is worth trying for one step while others decide that `depth` is drafted; −1: nothing. `steps`: since this
    was last asked."""
    kernel = handle.kernel
    within = min(max(batch, 1), kernel.rules.table.rest_seconds.shape[0] - 1)
    fill_options(kernel, within)
    if not (0 <= depth < kernel.options.size and is_allowed(kernel, within, depth)):
        return -1
    return worth_probing(kernel, within, depth, steps)


@entry
def lengths_by_handle(handle: Handle, gated: bool, survival: FloatArray, depth: int, drafted: IntArray) -> None:
    choose_lengths(handle.kernel, gated, survival, depth, drafted)


@entry
def verify_by_handle(handle: Handle, gated: bool, survival: FloatArray, drafted: IntArray) -> tuple[int, float, float]:
    return choose_verify(handle.kernel, gated, survival, drafted)


@entry
def observe_by_handle(
    handle: Handle, drafted: IntArray, verified: IntArray, accepted: IntArray, seconds: float, expected: Expectation
) -> bool:
    return observe(handle.kernel, drafted, verified, accepted, seconds, expected)


@entry
def goodput_by_handle(handle: Handle, batch: int, out: FloatArray) -> None:
    goodput_by_depth(handle.kernel, batch, out)


@entry
def factors_by_handle(handle: Handle, batch: int, out: FloatArray) -> None:
    """Fill `out` with learned times over prices, without the machine's speed: of drafting, then of each depth."""
    learned = handle.kernel.learned
    fill_factors(learned.times, learned.marks[0].state, handle.kernel.rules.table, batch, out)


@entry
def acceptance_by_handle(handle: Handle, out: FloatArray) -> None:
    """Fill `out` with learned acceptance by depth, of a token whose predecessors were accepted."""
    prior, learned = handle.kernel.rules.prior, handle.kernel.learned
    shift, rounds = acceptance_shift(prior, learned), rounds_of_all(learned)
    for depth in range(out.size):
        out[depth] = conditional_acceptance(prior, learned, depth, shift, rounds)
