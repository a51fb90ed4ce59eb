"""Which depth to draft, and which one to probe. Compiled.

A depth's goodput is its committed tokens, by learned acceptance, over its round, by the table and the steps that were
timed, with what a gate in the workers would gain. Another depth is probed for one step when what knowing it better
could have won since its last probe adds up to what the probe costs. Where that is nothing (it is far behind, or well
known) there are no probes; where a depth has no CUDA graph there are never any.

Steps that a gate cuts say nothing about the time of whole drafts, and a price that is too high would keep it from ever
finding out. So verifying the drafts of the current depth whole is a probe like any other.
"""

from __future__ import annotations

import math

from specmargin.compiler import compiled
from specmargin.policies.kernel.budget import LEAST_SURVIVAL, StepShape, choose_budget, rounds_for
from specmargin.policies.kernel.gains import LEAST_GATED
from specmargin.policies.kernel.learn import acceptance_shift, conditional_acceptance, rounds_of_all
from specmargin.policies.kernel.times import contrast_variance, draft_factor, enter_state, fill_factors, verify_part
from specmargin.policies.kernel.types import Kernel


@compiled
def is_budgeted(kernel: Kernel, batch: int) -> bool:
    """Whether the engine's workers gate the drafts of a batch of this size."""
    return kernel.rules.budgets and batch >= LEAST_GATED


@compiled
def fits_graph(kernel: Kernel, batch: int, depth: int) -> bool:
    """Whether a step that verifies whole drafts of this depth fits a CUDA graph."""
    return bool(depth <= kernel.rules.table.graph_depth_by_batch[batch])


@compiled
def is_allowed(kernel: Kernel, batch: int, depth: int) -> bool:
    """A gate in the workers keeps steps inside the largest graph, so drafts may be deeper than it holds for all. Needs
    `fill_options`."""
    return bool(kernel.rules.allowed[depth]) and (fits_graph(kernel, batch, depth) or is_cut(kernel, depth))


@compiled
def is_cut(kernel: Kernel, depth: int) -> bool:
    """Whether the workers' gate verifies less than whole drafts of this depth. Needs `fill_options`."""
    return bool(kernel.options[depth].log_goodput > kernel.options[depth].whole)


@compiled
def fill_options(kernel: Kernel, batch: int) -> None:
    """Every depth at this batch, by learned acceptance and times."""
    fill_goodput(kernel, batch)
    for depth in range(kernel.options.size):
        option = kernel.options[depth]
        option.whole = option.log_goodput = math.log(option.goodput)
        option.verify_weight, option.draft_weight = _weights(kernel, batch, depth, depth)
    if is_budgeted(kernel, batch):
        _add_gains(kernel, batch)


@compiled
def fill_goodput(kernel: Kernel, batch: int) -> None:
    """What a step needs that probes nothing; logarithms of every depth would take as long as all else."""
    rules, learned, options = kernel.rules, kernel.learned, kernel.options
    marks, times, table = learned.marks[0], learned.times, rules.table
    marks.state = enter_state(times, table, batch, marks.state, marks.step)
    shift, rounds = acceptance_shift(rules.prior, learned), rounds_of_all(learned)
    drafting = draft_factor(times, marks.state)
    alive = committed = 1.0
    for depth in range(options.size):
        option = options[depth]
        if depth > 0:
            alive *= options[depth - 1].acceptance
            committed += alive
        option.committed, option.alive = committed, alive
        if depth < rules.prior.size:
            option.acceptance = conditional_acceptance(rules.prior, learned, depth, shift, rounds)
            option.rounds = learned.tried[depth] + rules.tuning[0].prior_rounds
        seconds = verify_part(times, marks.state, batch, depth)[0] + table.draft_seconds[batch, depth, 0] * drafting
        option.goodput = committed / max(seconds, 1e-9)
        option.whole = option.log_goodput = 0.0
        option.verified = depth


@compiled
def fill_time_weights(kernel: Kernel, batch: int, depth: int) -> None:
    """All that `choose_plain_probe` reads of the current depth: gated drafts are compared with a plain step by the
    guard's sums, so that the goodput of every depth would be computed for nothing."""
    marks, option = kernel.learned.marks[0], kernel.options[depth]
    marks.state = enter_state(kernel.learned.times, kernel.rules.table, batch, marks.state, marks.step)
    option.verified = depth
    option.verify_weight, option.draft_weight = _weights(kernel, batch, depth, depth)


@compiled
def _weights(kernel: Kernel, batch: int, verified: int, drafted: int) -> tuple[float, float]:
    """How much the logarithm of a round that verifies and drafts so many tokens moves with each part's time."""
    times, state, table = kernel.learned.times, kernel.learned.marks[0].state, kernel.rules.table
    verify, z = verify_part(times, state, batch, verified)
    draft = table.draft_seconds[batch, drafted, 0] * draft_factor(times, state)
    seconds = max(verify + draft, 1e-9)
    return verify / seconds * z, draft / seconds


@compiled
def _add_gains(kernel: Kernel, batch: int) -> None:
    """Every option as the workers' gate would verify it; part of `fill_options`."""
    gate, marks, options = kernel.learned.gate, kernel.learned.marks[0], kernel.options
    tuning, state, looked = kernel.rules.tuning[0], marks.state, gate.looked[marks.state]
    every = max(tuning.probe_every, 1)
    if looked < 0 or marks.step >= looked + every:
        _look(kernel, batch, 1.0 if looked < 0 else 1.0 - (1.0 - tuning.new_look) ** ((marks.step - looked) / every))
    for depth in range(1, options.size):
        if not kernel.rules.allowed[depth]:
            continue
        option = options[depth]
        option.log_goodput = options[0].whole + gate.ahead[state, depth]
        option.whole = option.log_goodput - gate.gain[state, depth]
        if gate.gain[state, depth] > 0.0:
            option.verified = int(gate.verified[state, depth] + 0.5)
            option.verify_weight, option.draft_weight = _weights(kernel, batch, option.verified, depth)


@compiled
def _look(kernel: Kernel, batch: int, weight: float) -> None:
    """Take the gate's budget for recent drafts at every depth. `weight`: of this look."""
    rules, gate, marks = kernel.rules, kernel.learned.gate, kernel.learned.marks[0]
    state, lengths, factors = marks.state, gate.lengths[:batch], gate.factors
    gate.looked[state] = marks.step
    rounds = _fill_survivals(kernel, batch)
    fill_factors(kernel.learned.times, state, rules.table, batch, factors)
    for depth in range(1, kernel.options.size):
        if not rules.allowed[depth]:
            continue
        lengths[:] = depth
        shape = StepShape(batch, 0, rules.table.draft_seconds[batch, depth, 0] * factors[0], batch * depth)
        budget, best, whole = choose_budget(kernel.priced, gate.survival, rounds, lengths, shape, factors[1:])
        ahead = math.log(best / batch) - kernel.options[0].whole
        gate.ahead[state, depth] += weight * (ahead - gate.ahead[state, depth])
        gate.gain[state, depth] += weight * (math.log(best / whole) - gate.gain[state, depth])
        gate.verified[state, depth] += weight * (budget / batch - gate.verified[state, depth])


@compiled
def _fill_survivals(kernel: Kernel, batch: int) -> int:
    """Recent drafts as drafts of this batch, with learned acceptance beyond what was drafted and where nothing was;
    returns the rounds."""
    gate, options, rounds = kernel.learned.gate, kernel.options, 0
    while rounds < rounds_for(kernel.rules.tuning[0], batch):
        slot = (gate.newest[0] - rounds) % gate.sequences.size
        count = gate.sequences[slot]
        if count == 0 and rounds > 0:
            break
        for i in range(batch):
            alive = 1.0
            for d in range(options.size - 1):
                known = gate.drafts[slot, i % count, d] if count > 0 else -1.0
                alive *= known if known >= 0.0 else options[d].acceptance
                gate.survival[rounds, i, d] = max(alive, LEAST_SURVIVAL)
        rounds += 1
        if count == 0:
            break
    return rounds


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
def best_whole_depth(kernel: Kernel, batch: int) -> int:
    """The same where no worker gates drafts. Needs `fill_goodput`, and fills the logarithms of that depth and of the
    current one."""
    best, current, options = -1, kernel.learned.marks[0].depth, kernel.options
    for depth in range(options.size):
        if is_allowed(kernel, batch, depth) and (best < 0 or options[depth].goodput > options[best].goodput):
            best = depth
    best = max(best, 0)
    options[best].log_goodput = options[best].whole = math.log(options[best].goodput)
    if current >= 0 and current != best:
        options[current].log_goodput = options[current].whole = math.log(options[current].goodput)
    return best


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
def _resolved_variance(kernel: Kernel, batch: int, depth: int, verified: int, current: int) -> float:
    """Variance of the difference of two log goodputs that one step of `depth` would resolve: of a round that verifies
    so many of its tokens, and of one at the current depth."""
    other, times, state = kernel.options[current], kernel.learned.times, kernel.learned.marks[0].state
    verify, draft = _weights(kernel, batch, verified, depth)
    variance = contrast_variance(
        times, state, verified, verify, draft, other.verified, other.verify_weight, other.draft_weight
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
def is_probe_due(kernel: Kernel) -> bool:
    """Whether this step may be a probe."""
    return kernel.learned.marks[0].step % max(kernel.rules.tuning[0].probe_every, 1) == 0


@compiled
def choose_probe(kernel: Kernel, batch: int, current: int) -> int:
    """The depth to probe in this step; −1: none. Needs `fill_options`."""
    return worth_probing(kernel, batch, current, kernel.rules.tuning[0].probe_every) if is_probe_due(kernel) else -1


@compiled
def worth_probing(kernel: Kernel, batch: int, current: int, steps: int) -> int:
    """The same after so many steps without a look. Drafts of the current depth are a probe if they are verified whole
    where a gate would cut them."""
    options, credit = kernel.options, kernel.learned.credit
    chosen, most = -1, 1.0
    for depth in range(options.size):
        option, cut = options[depth], is_cut(kernel, depth)
        if depth == current and not (cut and fits_graph(kernel, batch, depth)):
            continue
        if not is_allowed(kernel, batch, depth):
            continue
        whole = depth == current or not cut
        verified = depth if whole else option.verified
        behind = options[current].log_goodput - (option.whole if whole else option.log_goodput)
        variance = _resolved_variance(kernel, batch, depth, verified, current)
        due = _add_credit(kernel, depth, behind, variance, whole, steps)
        if due >= most:
            chosen, most = depth, due
    if chosen >= 0:
        credit[chosen] = 0.0
    return chosen


@compiled
def choose_plain_probe(kernel: Kernel, batch: int, current: int, behind: float) -> int:
    """The same where drafts are gated: only plain steps are probed, which are `behind` by the guard's sums. Needs
    `fill_time_weights`."""
    if not (is_probe_due(kernel) and is_allowed(kernel, batch, 0)):
        return -1
    variance, steps = _resolved_variance(kernel, batch, 0, 0, current), kernel.rules.tuning[0].probe_every
    if _add_credit(kernel, 0, behind, variance, True, steps) < 1.0:
        return -1
    kernel.learned.credit[0] = 0.0
    return 0


@compiled
def _add_credit(kernel: Kernel, depth: int, behind: float, variance: float, whole: bool, steps: int) -> float:
    """Add what knowing this depth better could win in so many steps; returns credit over the cost of a probe."""
    tuning, credit, learned = kernel.rules.tuning[0], kernel.learned.credit, kernel.learned
    gain = expected_gain(behind, variance)
    state = learned.marks[0].state
    if whole and (learned.times.timed[state, depth] == 0 or learned.times.doubted[state, depth] != 0):
        gain = max(gain, tuning.cliff)
    credit[depth] += steps * gain
    return float(credit[depth]) / max(1.0 - math.exp(-max(behind, 0.0)), tuning.probe_cost)
