"""The ragged gate: which drafted tokens of the batch to verify. Compiled; it looks up and never solves.

Tokens are taken in order of survival over marginal price, a sequence's own in order of depth, and the best prefix of
that order is kept: the one with the most of `tokens − rate · seconds`, where `rate` is the long-run goodput. Stopping
at the first decline would lose up to 6% in single cases: fixed times make the objective fall before it rises.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from specmargin.step import FloatArray, IntArray

_BINS = 1024
_FEW = 48  # tokens that are sorted by insertion: emptying the bins would take longer than the rest


# Plain tuples: a call with named ones takes 3 µs longer, most of a decision for one sequence.
# Prices of one batch size: seconds of all but routed experts, at equal depths; seconds of routed experts over M, evenly
# spaced from 0; that space; m(γ + 1); seconds of a draft pass and of one sequence in it; whether it goes by pass.
BatchPrices = tuple[FloatArray, FloatArray, float, FloatArray, FloatArray, bool]
# What the gate decides (depths), and what it sorts with: made once, so that nothing in the hot path allocates.
Memory = tuple[IntArray, IntArray, IntArray, IntArray]


def gate_memory(max_batch: int, max_depth: int) -> Memory:
    depths, heads = np.zeros(max_batch, dtype=np.int64), np.zeros(_BINS + 1, dtype=np.int64)
    bins, order = np.zeros((2, max_batch * max_depth), dtype=np.int64)
    return depths, bins, order, heads


@nb.njit(cache=True, nogil=True, fastmath=True)
def ragged_gate(survival, drafted, prices, rate, memory):  # type: ignore[no-untyped-def]  # Numba reads the types
    """Fill the depths with how much of each draft to verify; returns the expected tokens beyond one a sequence.

    `survival`: (sequences, depth), falling in depth, as deep as the prices.
    """
    batch, deepest = survival.shape
    effective, depths, order = prices[3], memory[0], memory[2]
    total = _ordered(survival, drafted, prices, rate, memory)
    tokens, kept, best_tokens = 0.0, 0, 0.0
    strangers = batch * effective[0]
    best = -rate * _verify(prices, 0.0, strangers)
    each = 1.0 / batch
    for n in range(total):
        i, d = order[n] // deepest, order[n] % deepest
        tokens += survival[i, d]
        strangers += effective[d + 1] - effective[d]
        value = tokens - rate * _verify(prices, (n + 1) * each, strangers)
        if value > best:
            best, kept, best_tokens = value, n + 1, tokens
    depths[:batch] = 0
    for n in range(kept):
        depths[order[n] // deepest] += 1
    return best_tokens


@nb.njit(cache=True, nogil=True, fastmath=True)
def _ordered(survival, drafted, prices, rate, memory):  # type: ignore[no-untyped-def]
    """Tokens that may pay, by survival over marginal price (a stable sort); returns how many there are."""
    batch, deepest = survival.shape
    rest, effective = prices[0], prices[3]
    depths, bins, order, heads = memory
    slope = _expert_slope(prices, batch * effective[0])
    per_position = (rest[1] - rest[0]) / batch + 1e-15
    cheapest = per_position + slope * (effective[deepest] - effective[deepest - 1])
    cheapest_step = rest[1] - rest[0]
    for d in range(1, deepest):
        cheapest_step = min(cheapest_step, rest[d + 1] - rest[d])
    never = rate * max(cheapest_step, 0.0) / batch  # a survival that pays for no position, wherever
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
            place = min(max(int((1.0 - least) * (_BINS - 1)), 0), _BINS - 1)
            token = i * deepest + d
            bins[token] = place
            if few:
                _insert(order, bins, total, token)
            else:
                heads[place + 1] += 1
            total += 1
    if not few:
        _counted(depths, bins, order, heads, batch, deepest)
    return total


@nb.njit(cache=True, nogil=True, inline="always")
def _insert(order, bins, count, token):  # type: ignore[no-untyped-def]
    """Into its place among the first `count`, after its equals."""
    at = count
    while at > 0 and bins[order[at - 1]] > bins[token]:
        order[at] = order[at - 1]
        at -= 1
    order[at] = token


@nb.njit(cache=True, nogil=True)
def _counted(depths, bins, order, heads, batch, deepest):  # type: ignore[no-untyped-def]
    for place in range(_BINS):
        heads[place + 1] += heads[place]
    for i in range(batch):
        for d in range(depths[i]):
            token = i * deepest + d
            order[heads[bins[token]]] = token
            heads[bins[token]] += 1


@nb.njit(cache=True, nogil=True, inline="always", fastmath=True)
def _verify(prices, mean_depth, strangers):  # type: ignore[no-untyped-def]
    """Seconds of a step of this mean depth whose runs touch the experts of so many strangers."""
    rest, experts, spacing = prices[0], prices[1], prices[2]
    low = min(int(mean_depth), rest.size - 2)
    place = strangers * (1.0 / spacing)
    at = min(int(place), experts.size - 2)
    return (
        rest[low]
        + (mean_depth - low) * (rest[low + 1] - rest[low])
        + experts[at]
        + (place - at) * (experts[at + 1] - experts[at])
    )


@nb.njit(cache=True, nogil=True, fastmath=True)
def ragged_seconds(prices, depths, batch):  # type: ignore[no-untyped-def]
    """Seconds of a step that verifies the first `batch` of these depths."""
    effective, total, strangers = prices[3], 0, 0.0
    for i in range(batch):
        depth = min(depths[i], effective.size - 1)
        total += depth
        strangers += effective[depth]
    return _verify(prices, total / batch, strangers)


@nb.njit(cache=True, nogil=True, inline="always")
def _expert_slope(prices, strangers):  # type: ignore[no-untyped-def]
    experts, spacing = prices[1], prices[2]
    low = min(int(strangers / spacing), experts.size - 2)
    return (experts[low + 1] - experts[low]) / spacing


@nb.njit(cache=True, nogil=True, fastmath=True)
def keep_drafting(survival, depth, prices, next_acceptance, rate, option, going):  # type: ignore[no-untyped-def]
    """Clear `going` where the next token is not expected to pay for drafting and verifying it; all of it where the
    pass itself would not pay. `next_acceptance`: by depth, of the next token; `option`: what going on is worth over
    that token alone, to a sequence and to the pass. Returns how many go on.
    """
    batch = survival.size
    rest, effective, draft = prices[0], prices[3], prices[4]
    slope = _expert_slope(prices, batch * effective[depth])
    verify = (rest[depth + 1] - rest[depth]) / batch + slope * (effective[depth + 1] - effective[depth])
    hurdle = rate * (verify + draft[1])
    total = 0.0
    count = 0
    for i in range(batch):
        if going[i]:
            worth = survival[i] * next_acceptance[depth]
            if worth * option[0] > hurdle:
                total += worth * option[1] - hurdle
                count += 1
            else:
                going[i] = False
    if total <= rate * draft[0]:
        going[:] = False
        return 0
    return count


@nb.njit(cache=True, nogil=True, fastmath=True)
def _drafting_seconds(survival, depth, prices, next_acceptance, rate, option, drafted):  # type: ignore[no-untyped-def]
    """Fill `drafted` as an engine would draft, pass by pass or a whole block; returns the seconds of it."""
    batch, draft, by_pass = survival.shape[0], prices[4], prices[5]
    if not by_pass:
        drafted[:] = depth
        return draft[0] + draft[1] * batch
    so_far, going = np.ones(batch), np.ones(batch, dtype=np.bool_)
    drafted[:] = 0
    seconds = 0.0
    for at in range(depth):
        count = keep_drafting(so_far, at, prices, next_acceptance, rate, option, going)
        if count == 0:
            break
        seconds += draft[0] + draft[1] * count
        for i in range(batch):
            if going[i]:
                drafted[i] += 1
                so_far[i] = survival[i, at]
    return seconds


@nb.njit(cache=True, nogil=True, fastmath=True)
def sample_goodput(sample, picked, depth, prices, next_acceptance, rate, option, memory):  # type: ignore[no-untyped-def]
    """Expected tokens over seconds of batches drawn from a sample of survivals, drafted and gated as in the engine."""
    steps, batch = picked.shape
    depths = memory[0]
    drafted = np.empty(batch, dtype=np.int64)
    tokens = seconds = 0.0
    for step in range(steps):
        survival = sample[picked[step]]
        seconds += _drafting_seconds(survival, depth, prices, next_acceptance, rate, option, drafted)
        tokens += batch + ragged_gate(survival, drafted, prices, rate, memory)
        seconds += ragged_seconds(prices, depths, batch)
    return tokens / seconds
