"""Which depth to draft, and which one to probe. Compiled.

A depth's goodput is its committed tokens, by learned acceptance, over its round, by the table and the steps that were
timed. Another depth is probed for one step when what knowing it better could have won since its last probe adds up to
what the probe costs. Where that is nothing (it is far behind, or well known) there are no probes; where a depth has no
CUDA graph there are never any.
"""

from __future__ import annotations

import math

from specmargin.compiling import compiled
from specmargin.policies.kernel.learn import PRIOR_ROUNDS, acceptance_shift, conditional_acceptance
from specmargin.policies.kernel.times import contrast_variance, enter_state, round_parts
from specmargin.policies.kernel.types import Kernel

_LEAST_COST = 0.005  # of a probe, as a part of a step's tokens: even an equally good depth is a change
_CLIFF = 0.005  # expected gain per step of a depth that was never timed: prices may miss a cliff (a graph, a kernel)


@compiled
def is_allowed(kernel: Kernel, batch: int, depth: int) -> bool:
    rules = kernel.rules
    return bool(rules.allowed[depth]) and depth <= rules.table.graph_depth_by_batch[batch]


@compiled
def fill_options(kernel: Kernel, batch: int) -> None:
    """Every depth at this batch, by learned acceptance and times."""
    rules, learned, options = kernel.rules, kernel.learned, kernel.options
    marks, times, table = learned.marks[0], learned.times, rules.table
    marks.state = enter_state(times, batch, marks.state, marks.step)
    shift = acceptance_shift(rules.prior, learned)
    alive = committed = 1.0
    for depth in range(options.size):
        option = options[depth]
        if depth > 0:
            alive *= options[depth - 1].acceptance
            committed += alive
        option.committed, option.alive = committed, alive
        if depth < rules.prior.size:
            option.acceptance = conditional_acceptance(rules.prior, learned, depth, shift)
            option.rounds = learned.tried[depth] + PRIOR_ROUNDS
        verify, draft, z = round_parts(times, marks.state, table, batch, depth)
        seconds = max(verify + draft, 1e-9)
        option.verify_weight, option.draft_weight = verify / seconds * z, draft / seconds
        option.log_goodput = math.log(committed / seconds)


@compiled
def best_depth(kernel: Kernel, batch: int) -> int:
    """The allowed depth with the most goodput; 0 if none is allowed. Needs `fill_options`."""
    best = -1
    for depth in range(kernel.options.size):
        if is_allowed(kernel, batch, depth) and (
            best < 0 or kernel.options[depth].log_goodput > kernel.options[best].log_goodput
        ):
            best = depth
    return max(best, 0)


@compiled
def _token_variance(kernel: Kernel, batch: int, depth: int, current: int) -> float:
    """Variance of ln(tokens) at `depth` that one step of it would resolve: of tokens deeper than the current draft."""
    options, variance = kernel.options, 0.0
    whole = options[depth].committed
    for j in range(current, depth):
        one = options[j]
        if one.acceptance <= 0.0:
            continue
        weight = (whole - one.committed) / (one.acceptance * whole)
        reached = batch * one.alive
        share = reached / (reached + one.rounds)
        variance += weight**2 * one.acceptance * (1.0 - one.acceptance) / (one.rounds + 1.0) * share
    return variance


@compiled
def _resolved_variance(kernel: Kernel, batch: int, depth: int, current: int) -> float:
    """Variance of the difference of two depths' log goodputs that one step of `depth` would resolve."""
    one, other, times = kernel.options[depth], kernel.options[current], kernel.learned.times
    state = kernel.learned.marks[0].state
    variance = contrast_variance(
        times, state, depth, one.verify_weight, one.draft_weight, current, other.verify_weight, other.draft_weight
    )
    resolved = variance * variance / (variance + times.noise[0])
    return float(resolved) + _token_variance(kernel, batch, depth, current)


@compiled
def expected_gain(behind: float, variance: float) -> float:
    """E[max(x, 0)] of a normal x with mean `−behind`."""
    if variance <= 1e-12:
        return max(-behind, 0.0)
    deviation = math.sqrt(variance)
    t = -behind / deviation
    density = math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    return deviation * (density + t * 0.5 * math.erfc(-t / math.sqrt(2.0)))


@compiled
def choose_probe(kernel: Kernel, batch: int, current: int) -> int:
    """The depth to probe instead of the current one in this step; −1: none. Needs `fill_options`."""
    options, credit = kernel.options, kernel.learned.credit
    every, step = max(kernel.rules.tuning[0].probe_every, 1), kernel.learned.marks[0].step
    if step % every != 0:
        return -1
    chosen, most = -1, 1.0
    for depth in range(options.size):
        if depth == current or not is_allowed(kernel, batch, depth):
            continue
        behind = options[current].log_goodput - options[depth].log_goodput
        due = _add_credit(kernel, depth, behind, _resolved_variance(kernel, batch, depth, current))
        if due >= most:
            chosen, most = depth, due
    if chosen >= 0:
        credit[chosen] = 0.0
    return chosen


@compiled
def choose_plain_probe(kernel: Kernel, batch: int, current: int, behind: float) -> int:
    """The same where drafts are gated: only plain steps are probed, which are `behind` by the guard's sums."""
    every, step = max(kernel.rules.tuning[0].probe_every, 1), kernel.learned.marks[0].step
    if step % every != 0 or not is_allowed(kernel, batch, 0):
        return -1
    if _add_credit(kernel, 0, behind, _resolved_variance(kernel, batch, 0, current)) < 1.0:
        return -1
    kernel.learned.credit[0] = 0.0
    return 0


@compiled
def _add_credit(kernel: Kernel, depth: int, behind: float, variance: float) -> float:
    """Add what knowing this depth better could win until the next look; returns credit over the cost of a probe."""
    credit, learned = kernel.learned.credit, kernel.learned
    gain = expected_gain(behind, variance)
    state = learned.marks[0].state
    if learned.times.timed[state, depth] == 0 or learned.times.doubted[state, depth] != 0:
        gain = max(gain, _CLIFF)
    credit[depth] += kernel.rules.tuning[0].probe_every * gain
    return float(credit[depth]) / max(1.0 - math.exp(-max(behind, 0.0)), _LEAST_COST)
