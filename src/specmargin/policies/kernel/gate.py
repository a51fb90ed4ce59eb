"""The ragged gate: which drafted tokens of the batch to verify, and which sequences continue to draft. Look-ups only.

Tokens are taken in order of survival over marginal price, those of one sequence in order of depth, and the best prefix
of that order is kept: the one with the most `tokens − rate · seconds`, where `rate` is the long-run goodput. Stopping
at the first decline would lose up to 6% in single cases: fixed times make the objective fall before it rises.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.compiler import compiled, compiled_apart, fast, fast_apart, fast_entry, inlined
from specmargin.policies.kernel.prices import (
    FIRST_CONTEXT,
    PriceTable,
    drafting_seconds,
    pass_line,
    ragged_parts,
    verify_parts,
)
from specmargin.step import BoolArray, FloatArray, IntArray

Keys = npt.NDArray[np.int32]  # half as wide as other integers, so that twice as many are compared at a time

_BINS = 1024  # of survival over price, in which tokens count as equal: steps of 0.001
_FEW = 96  # tokens up to which counting those before each one is faster than clearing the bins; the order is the same
_LANES = 32  # comparisons at a time: loops over fewer would end in single ones
_DEPTH_BITS = 16  # of a token's number; its sequence is above them


class Scratch(NamedTuple):
    """Memory of the hot path, made once so that nothing in it allocates. Rows of prices, by batch, are filled from the
    one price table that it is used with, and are constant once they are filled."""

    depths: IntArray  # by sequence: what the gate decided
    bins: Keys  # by token: its bin
    tokens: IntArray  # `token_number` in order of sequence and depth
    order: IntArray  # the same, best first
    heads: Keys  # by bin: the next free slot in `order`; of few tokens, by token: its place there
    worth: FloatArray  # by depth: tokens that a draft pass is worth beyond those that it costs
    believed: FloatArray  # (sequence, depth): survival that the gate decides from, of the tokens that were drafted
    unseen: FloatArray  # (2, depth): tokens reached and accepted that are expected of drafts left out
    nothing: FloatArray  # the same where nothing was left out
    no_drafts: FloatArray  # (0, depth)
    priced: BoolArray  # by batch: rows below are filled
    weights: FloatArray  # (batch, depth): what survival is multiplied by to rank tokens
    cheapest: FloatArray  # by batch: seconds that the cheapest token adds at least
    passes: FloatArray  # (batch, depth, 2): a draft pass after that depth, as `_pass_prices`

    @classmethod
    def of(cls, max_batch: int, max_depth: int) -> Scratch:
        most = max_batch * max_depth + _LANES
        tokens, order = np.zeros((2, most), dtype=np.int64)
        return cls(
            depths=np.zeros(max_batch, dtype=np.int64),
            bins=np.zeros(most, dtype=np.int32),
            tokens=tokens,
            order=order,
            heads=np.zeros(_BINS + 1, dtype=np.int32),
            worth=np.zeros(max_depth),
            believed=np.zeros((max_batch, max_depth)),
            unseen=np.zeros((2, max_depth)),
            nothing=np.zeros((2, max_depth)),
            no_drafts=np.zeros((0, max_depth)),
            priced=np.zeros(max_batch + 1, dtype=np.bool_),
            weights=np.zeros((max_batch + 1, max_depth)),
            cheapest=np.zeros(max_batch + 1),
            passes=np.zeros((max_batch + 1, max_depth, 2)),
        )


@inlined
def sequence_of(token: int) -> int:
    return token >> _DEPTH_BITS


@inlined
def depth_of(token: int) -> int:
    return token & ((1 << _DEPTH_BITS) - 1)


# --- prices of a batch, filled once ---


@fast_apart
def _price_batch(table: PriceTable, batch: int, scratch: Scratch) -> None:
    """Fill what the table says of a batch that is new."""
    rest = table.rest_seconds[batch, :, 0]
    fill_weights(table, batch, scratch.weights[batch])
    cheapest_step = rest[1] - rest[0]
    for d in range(1, scratch.weights.shape[1]):
        cheapest_step = min(cheapest_step, rest[d + 1] - rest[d])
    scratch.cheapest[batch] = max(cheapest_step, 0.0) / batch
    for d in range(scratch.passes.shape[1]):
        per_sequence, fixed = _pass_prices(table, batch, d)
        scratch.passes[batch, d, 0], scratch.passes[batch, d, 1] = per_sequence, fixed
    scratch.priced[batch] = True


@compiled_apart
def fill_weights(table: PriceTable, batch: int, weights: FloatArray) -> None:
    """By depth: the cheapest marginal price over that of the token, which grows with what its experts add."""
    deepest = table.effective_by_depth.size - 1
    rest, effective = table.rest_seconds[batch, :, 0], table.effective_by_depth
    slope = expert_slope(table, batch * effective[0])
    per_position = (rest[1] - rest[0]) / batch + 1e-15
    cheapest = per_position + slope * (effective[deepest] - effective[deepest - 1])
    for d in range(weights.size):
        depth = min(d, deepest - 1)
        weights[d] = cheapest / (per_position + slope * (effective[depth + 1] - effective[depth]))


@fast
def _pass_prices(table: PriceTable, batch: int, depth: int) -> tuple[float, float]:
    """The draft pass after `depth` tokens: seconds of drafting and verifying one more token, and its fixed seconds."""
    rest, effective = table.rest_seconds[batch, :, 0], table.effective_by_depth
    fixed, per_sequence = pass_line(table, batch, depth + 1)
    slope = expert_slope(table, batch * effective[depth])
    # The gate keeps the step inside its CUDA graph, so single drafts may be longer than that graph holds for all.
    inside = min(depth, max(table.graph_depth_by_batch[batch] - 1, 0))
    verify = (rest[inside + 1] - rest[inside]) / batch + slope * (effective[depth + 1] - effective[depth])
    return verify + per_sequence, fixed


# --- which tokens to verify ---


@fast
def ragged_gate(
    table: PriceTable, survival: FloatArray, drafted: IntArray, rate: float, shift: float, scratch: Scratch
) -> float:
    """Fill `scratch.depths` with how much of each draft to verify; returns the expected tokens beyond one per sequence.
    `survival` and `shift`: as `sort_tokens` takes them."""
    batch = survival.shape[0]
    effective, believed, depths, order = table.effective_by_depth, scratch.believed, scratch.depths, scratch.order
    total = sort_tokens(table, survival, drafted, rate, shift, scratch)
    tokens, prefix, best_tokens = 0.0, 0, 0.0
    positions = batch * effective[0]
    rest, experts = ragged_parts(table, batch, 0.0, positions, FIRST_CONTEXT)
    best = -rate * (rest + experts)
    depth_per_token = 1.0 / batch  # what one more token adds to the mean depth
    for n in range(total):
        i, d = sequence_of(order[n]), depth_of(order[n])
        tokens += believed[i, d]
        positions += effective[d + 1] - effective[d]
        rest, experts = ragged_parts(table, batch, (n + 1) * depth_per_token, positions, FIRST_CONTEXT)
        value = tokens - rate * (rest + experts)
        is_better = value > best  # three choices and no branch, which would be mispredicted
        best = value if is_better else best
        prefix = n + 1 if is_better else prefix
        best_tokens = tokens if is_better else best_tokens
    for n in range(prefix):
        depths[sequence_of(order[n])] += 1
    return best_tokens


@fast
def sort_tokens(
    table: PriceTable, survival: FloatArray, drafted: IntArray, rate: float, shift: float, scratch: Scratch
) -> int:
    """Tokens that may pay, by survival over marginal price (a stable sort); returns how many there are. No token is
    chosen yet: `scratch.depths` are 0.

    `survival`: (sequences, depth), falling in depth. `scratch.believed` is filled with it, as far as was drafted, the
    odds of each token times e^shift; 0 where there is no signal.
    """
    batch, width = survival.shape
    if not scratch.priced[batch]:
        _price_batch(table, batch, scratch)
    bins, tokens, believed, weights = scratch.bins, scratch.tokens, scratch.believed, scratch.weights[batch]
    never = rate * scratch.cheapest[batch]  # survival below which no token pays at any depth
    odds = math.exp(-shift)
    total = 0
    for i in range(batch):
        scratch.depths[i] = 0
        before = alive = least = 1.0
        may_pay = True
        for d in range(min(drafted[i], believed.shape[1])):
            said = survival[i, d] if d < width else 0.0
            alive = said if shift == 0.0 else _shifted(said, before, alive, odds)
            before = said
            believed[i, d] = alive
            may_pay &= bool(alive > never)
            least = min(least, alive * weights[d])
            bins[total] = min(max(int((1.0 - least) * (_BINS - 1)), 0), _BINS - 1)
            tokens[total] = (i << _DEPTH_BITS) + d
            total += may_pay
    if total <= _FEW:
        _rank(bins, tokens, scratch.order, scratch.heads, total)
    else:
        _counting_sort(bins, tokens, scratch.order, scratch.heads, total)
    return total


@compiled
def _shifted(said: float, before: float, alive: float, odds: float) -> float:
    """Survival of a token after one that survives by `before` as its drafter said, and by `alive` as believed."""
    p = min(max(said / max(before, 1e-12), 1e-6), 1.0 - 1e-6)
    return alive * (1.0 / (1.0 + (1.0 - p) / p * odds))


@fast
def _rank(bins: Keys, tokens: IntArray, order: IntArray, places: Keys, total: int) -> None:
    """Each token after those of lower bins and earlier ones of the same. Comparing all is faster than a sort whose
    branches are mispredicted."""
    compared = (total + _LANES - 1) // _LANES * _LANES
    for n in range(compared):
        bins[n] = (bins[n] << _DEPTH_BITS) + n
        places[n] = 0
    for other in range(total):
        key = bins[other]
        for n in range(compared):
            places[n] += key < bins[n]
    for n in range(total):
        order[places[n]] = tokens[n]


@fast_apart
def _counting_sort(bins: Keys, tokens: IntArray, order: IntArray, heads: Keys, total: int) -> None:
    heads[:] = 0
    for n in range(total):
        heads[bins[n] + 1] += 1
    for bin_ in range(_BINS):
        heads[bin_ + 1] += heads[bin_]
    for n in range(total):
        order[heads[bins[n]]] = tokens[n]
        heads[bins[n]] += 1


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


@fast
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
    to pay for drafting and verifying it, and none after a pass that would not pay as a whole. It looks at the survival
    of a token only after drafting it. A block is drafted whole."""
    batch = survival.shape[0]
    if not table.by_pass:
        drafted[:batch] = depth
        return
    if not scratch.priced[batch]:
        _price_batch(table, batch, scratch)
    passes, worth = scratch.passes[batch], scratch.worth
    worth[:depth] = 0.0
    for i in range(batch):
        so_far, length, goes_on = 1.0, 0, True
        for d in range(depth):  # all of them: leaving the loop would be mispredicted
            gain, hurdle = so_far * next_acceptance[d], stop.rate * passes[d, 0]
            goes_on &= bool(gain * stop.sequence_factor > hurdle)
            worth[d] += gain * stop.pass_factor - hurdle if goes_on else 0.0
            so_far = survival[i, d]
            length += goes_on
        drafted[i] = length
    paying = 0
    while paying < depth and worth[paying] > stop.rate * passes[paying, 1]:
        paying += 1
    for i in range(batch):
        drafted[i] = min(drafted[i], paying)


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
        tokens += batch + ragged_gate(table, survival, drafted, stop.rate, 0.0, scratch)
        rest, experts = verify_parts(table, scratch.depths, batch)
        seconds += rest + experts
    return float(tokens / seconds)
