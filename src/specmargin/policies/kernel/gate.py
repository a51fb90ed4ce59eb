"""The ragged gate: which drafted tokens of the batch to verify, and which sequences continue to draft. Look-ups only.

Tokens are taken in order of survival over marginal price, those of one sequence in order of depth, and the best prefix
of that order is kept: the one with the most `tokens − rate · seconds`, where `rate` is the long-run goodput. Stopping
at the first decline would lose up to 6% in single cases: fixed times make the objective fall before it rises.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.compiler import fast_apart, fast_entry, inlined
from specmargin.policies.kernel.prices import (
    FIRST_CONTEXT,
    PriceTable,
    drafting_seconds,
    pass_line,
    ragged_parts,
    verify_parts,
)
from specmargin.step import BoolArray, FloatArray, IntArray

_BINS = 1024  # of survival over price, in which tokens count as equal: steps of 0.001
_FEW = 48  # tokens up to which insertion sort is faster than clearing the bins; the order is the same


class Scratch(NamedTuple):
    """Memory of the hot path, made once so that nothing in it allocates."""

    depths: IntArray  # by sequence: what the gate decided
    bins: IntArray  # by token: its bin in the counting sort
    order: IntArray  # tokens, best first
    heads: IntArray  # by bin: the next free slot in `order`
    so_far: FloatArray  # by sequence: survival of the draft up to here
    active: BoolArray  # by sequence: still drafting
    believed: FloatArray  # (sequence, depth): survival that the gate decides from
    unseen: FloatArray  # (2, depth): tokens reached and accepted that are expected of drafts left out
    nothing: FloatArray  # the same where nothing was left out
    no_drafts: FloatArray  # (0, depth)

    @classmethod
    def of(cls, max_batch: int, max_depth: int) -> Scratch:
        bins, order = np.zeros((2, max_batch * max_depth), dtype=np.int64)
        return cls(
            depths=np.zeros(max_batch, dtype=np.int64),
            bins=bins,
            order=order,
            heads=np.zeros(_BINS + 1, dtype=np.int64),
            so_far=np.zeros(max_batch),
            active=np.zeros(max_batch, dtype=np.bool_),
            believed=np.zeros((max_batch, max_depth)),
            unseen=np.zeros((2, max_depth)),
            nothing=np.zeros((2, max_depth)),
            no_drafts=np.zeros((0, max_depth)),
        )


@fast_apart
def ragged_gate(table: PriceTable, survival: FloatArray, drafted: IntArray, rate: float, scratch: Scratch) -> float:
    """Fill `scratch.depths` with how much of each draft to verify; returns the expected tokens beyond one per sequence.

    `survival`: (sequences, depth), falling in depth, as deep as the prices.
    """
    batch, deepest = survival.shape
    effective, depths, order = table.effective_by_depth, scratch.depths, scratch.order
    total = sort_tokens(table, survival, drafted, rate, scratch)
    tokens, prefix, best_tokens = 0.0, 0, 0.0
    positions = batch * effective[0]
    rest, experts = ragged_parts(table, batch, 0.0, positions, FIRST_CONTEXT)
    best = -rate * (rest + experts)
    depth_per_token = 1.0 / batch  # what one more token adds to the mean depth
    for n in range(total):
        i = order[n] // deepest
        d = order[n] - i * deepest  # a remainder would be a second division
        tokens += survival[i, d]
        positions += effective[d + 1] - effective[d]
        rest, experts = ragged_parts(table, batch, (n + 1) * depth_per_token, positions, FIRST_CONTEXT)
        value = tokens - rate * (rest + experts)
        if value > best:
            best, prefix, best_tokens = value, n + 1, tokens
    depths[:batch] = 0
    for n in range(prefix):
        depths[order[n] // deepest] += 1
    return best_tokens


@fast_apart
def sort_tokens(table: PriceTable, survival: FloatArray, drafted: IntArray, rate: float, scratch: Scratch) -> int:
    """Tokens that may pay, by survival over marginal price (a stable sort); returns how many there are."""
    batch, deepest = survival.shape
    rest, effective = table.rest_seconds[batch, :, 0], table.effective_by_depth
    depths, bins, order, heads = scratch.depths, scratch.bins, scratch.order, scratch.heads
    slope = expert_slope(table, batch * effective[0])
    per_position = (rest[1] - rest[0]) / batch + 1e-15
    cheapest = per_position + slope * (effective[deepest] - effective[deepest - 1])
    cheapest_step = rest[1] - rest[0]
    for d in range(1, deepest):
        cheapest_step = min(cheapest_step, rest[d + 1] - rest[d])
    never = rate * max(cheapest_step, 0.0) / batch  # survival below which no token pays at any depth
    few = batch * deepest <= _FEW
    if not few:
        heads[:] = 0
    total = 0
    for i in range(batch):
        least = 1.0
        depths[i] = 0
        for d in range(min(drafted[i], deepest)):
            if survival[i, d] <= never:
                break
            depths[i] = d + 1
            price = per_position + slope * (effective[d + 1] - effective[d])
            least = min(least, survival[i, d] * cheapest / price)
            bin_ = min(max(int((1.0 - least) * (_BINS - 1)), 0), _BINS - 1)
            token = i * deepest + d
            bins[token] = bin_
            if few:
                _insert(order, bins, total, token)
            else:
                heads[bin_ + 1] += 1
            total += 1
    if not few:
        _counting_sort(depths, bins, order, heads, batch, deepest)
    return total


@inlined
def _insert(order: IntArray, bins: IntArray, count: int, token: int) -> None:
    """Insert the token in order among the first `count`, after those of the same bin."""
    slot = count
    while slot > 0 and bins[order[slot - 1]] > bins[token]:
        order[slot] = order[slot - 1]
        slot -= 1
    order[slot] = token


@fast_apart
def _counting_sort(
    depths: IntArray, bins: IntArray, order: IntArray, heads: IntArray, batch: int, deepest: int
) -> None:
    for bin_ in range(_BINS):
        heads[bin_ + 1] += heads[bin_]
    for i in range(batch):
        for d in range(depths[i]):
            token = i * deepest + d
            order[heads[bins[token]]] = token
            heads[bins[token]] += 1


@inlined
def expert_slope(table: PriceTable, effective: float) -> float:
    """Seconds that one more effective position adds to routed experts."""
    low = min(int(effective / table.expert_step), table.expert_seconds.size - 2)
    return float((table.expert_seconds[low + 1] - table.expert_seconds[low]) / table.expert_step)


class EarlyStop(NamedTuple):
    """When a sequence stops drafting, at one batch size."""

    rate: float  # tokens per second
    sequence_factor: float  # value of continuing to draft, relative to that of the next token alone: for a sequence
    pass_factor: float  # the same for the pass as a whole


@fast_apart
def keep_drafting(
    table: PriceTable, depth: int, next_acceptance: FloatArray, stop: EarlyStop, so_far: FloatArray, active: BoolArray
) -> int:
    """Before the pass after `depth` tokens: clear `active` where the next token is not expected to pay for drafting and
    verifying it, and everywhere if the pass as a whole would not pay. Returns how many continue.

    `next_acceptance`: by depth, of the next token.
    """
    batch = so_far.size
    rest, effective = table.rest_seconds[batch, :, 0], table.effective_by_depth
    fixed, per_sequence = pass_line(table, batch, depth + 1)
    slope = expert_slope(table, batch * effective[depth])
    # The gate keeps the step inside its CUDA graph, so single drafts may be longer than that graph holds for all.
    inside = min(depth, max(table.graph_depth_by_batch[batch] - 1, 0))
    verify = (rest[inside + 1] - rest[inside]) / batch + slope * (effective[depth + 1] - effective[depth])
    hurdle = stop.rate * (verify + per_sequence)
    total = 0.0
    count = 0
    for i in range(batch):
        if active[i]:
            worth = so_far[i] * next_acceptance[depth]
            if worth * stop.sequence_factor > hurdle:
                total += worth * stop.pass_factor - hurdle
                count += 1
            else:
                active[i] = False
    if total <= stop.rate * fixed:
        active[:] = False
        return 0
    return count


@fast_apart
def draft_lengths(
    table: PriceTable,
    survival: FloatArray,
    depth: int,
    next_acceptance: FloatArray,
    stop: EarlyStop,
    scratch: Scratch,
    drafted: IntArray,
) -> None:
    """Fill `drafted` as an engine would draft, pass by pass: each pass for the sequences whose next token is expected
    to pay. It looks at the survival of a token only after drafting it. A block is drafted whole."""
    batch = survival.shape[0]
    if not table.by_pass:
        drafted[:batch] = depth
        return
    so_far, active = scratch.so_far[:batch], scratch.active[:batch]
    so_far[:] = 1.0
    active[:] = True
    drafted[:batch] = 0
    for drafted_so_far in range(depth):
        if keep_drafting(table, drafted_so_far, next_acceptance, stop, so_far, active) == 0:
            break
        for i in range(batch):
            if active[i]:
                drafted[i] += 1
                so_far[i] = survival[i, drafted_so_far]


@fast_entry
def sample_goodput(
    table: PriceTable,
    sample: FloatArray,
    picked: IntArray,
    depth: int,
    next_acceptance: FloatArray,
    stop: EarlyStop,
    scratch: Scratch,
) -> float:
    """Expected tokens over seconds of batches drawn from a sample of survivals, drafted and gated as in an engine."""
    steps, batch = picked.shape
    drafted = np.empty(batch, dtype=np.int64)
    tokens = seconds = 0.0
    for step in range(steps):
        survival = sample[picked[step]]
        draft_lengths(table, survival, depth, next_acceptance, stop, scratch, drafted)
        seconds += drafting_seconds(table, drafted, batch, FIRST_CONTEXT)
        tokens += batch + ragged_gate(table, survival, drafted, stop.rate, scratch)
        rest, experts = verify_parts(table, scratch.depths, batch)
        seconds += rest + experts
    return float(tokens / seconds)
