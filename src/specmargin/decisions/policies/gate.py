"""The ragged gate: which drafted tokens of the batch to verify. Compiled; it looks up and never solves.

Tokens are taken in order of survival over marginal price, a sequence's own in order of depth, and the best prefix of
that order is kept: the one with the most of `tokens − rate · seconds`, where `rate` is the long-run goodput. Stopping
at the first decline would lose up to 6% in single cases: fixed times make the objective fall before it rises.
"""

from __future__ import annotations

import numba as nb
import numpy as np

_BINS = 1024


@nb.njit(cache=True, nogil=True, fastmath=True)
def ragged_gate(  # type: ignore[no-untyped-def]  # Numba reads the types from the arguments
    survival, drafted, rest_by_depth, expert_seconds, expert_step, effective, rate, depths, work_bin, work_order, heads
):  # pragma: no cover (compiled)
    """Fill `depths` with how much of each draft to verify; returns the expected tokens beyond one a sequence.

    `survival`: (sequences, depth), falling in depth. `rest_by_depth`: seconds of all but experts at equal depths, for
    this batch. The last three arguments are scratch of sizes B·K, B·K and BINS + 1.
    """
    batch, deepest = survival.shape
    strangers = batch * effective[0]
    slope = _expert_slope(expert_seconds, expert_step, strangers)
    per_position = (rest_by_depth[1] - rest_by_depth[0]) / batch + 1e-15
    cheapest = per_position + slope * (effective[deepest] - effective[deepest - 1])
    flattest = rest_by_depth[1] - rest_by_depth[0]
    for d in range(1, deepest):
        flattest = min(flattest, rest_by_depth[d + 1] - rest_by_depth[d])
    never = rate * max(flattest, 0.0) / batch  # a survival that pays for no position, wherever it stands
    heads[:] = 0
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
            work_bin[i * deepest + d] = place
            heads[place + 1] += 1
    for b in range(_BINS):
        heads[b + 1] += heads[b]
    total = heads[_BINS]
    for i in range(batch):
        for d in range(depths[i]):
            place = work_bin[i * deepest + d]
            work_order[heads[place]] = i * deepest + d
            heads[place] += 1
    tokens = 0.0
    kept = 0
    each = 1.0 / batch
    best = -rate * (rest_by_depth[0] + _experts(expert_seconds, expert_step, strangers))
    best_tokens = 0.0
    for n in range(total):
        item = work_order[n]
        i, d = item // deepest, item % deepest
        tokens += survival[i, d]
        strangers += effective[d + 1] - effective[d]
        mean = (n + 1) * each
        low = min(int(mean), deepest - 1)
        rest = rest_by_depth[low] + (mean - low) * (rest_by_depth[low + 1] - rest_by_depth[low])
        value = tokens - rate * (rest + _experts(expert_seconds, expert_step, strangers))
        if value > best:
            best, kept, best_tokens = value, n + 1, tokens
    depths[:batch] = 0
    for n in range(kept):
        depths[work_order[n] // deepest] += 1
    return best_tokens


@nb.njit(cache=True, nogil=True, inline="always", fastmath=True)
def _experts(expert_seconds, expert_step, strangers):  # type: ignore[no-untyped-def]  # pragma: no cover
    place = strangers * (1.0 / expert_step)
    low = min(int(place), expert_seconds.size - 2)
    return expert_seconds[low] + (place - low) * (expert_seconds[low + 1] - expert_seconds[low])


@nb.njit(cache=True, nogil=True, inline="always")
def _expert_slope(expert_seconds, expert_step, strangers):  # type: ignore[no-untyped-def]  # pragma: no cover
    low = min(int(strangers / expert_step), expert_seconds.size - 2)
    return (expert_seconds[low + 1] - expert_seconds[low]) / expert_step


@nb.njit(cache=True, nogil=True, fastmath=True)
def keep_drafting(  # type: ignore[no-untyped-def]
    survival,
    depth,
    rest_by_depth,
    expert_seconds,
    expert_step,
    effective,
    next_acceptance,
    rate,
    option,
    draft,
    going,
):  # pragma: no cover (compiled)
    """Clear `going` where the next token is not expected to pay for drafting and verifying it; all of it where the
    pass itself would not pay. `next_acceptance`: by depth, of the next token; `option`: what going on is worth over
    that token alone, to a sequence and to the pass; `draft`: seconds of a pass, and of a sequence in it. Returns how
    many go on.
    """
    batch = survival.size
    strangers = batch * effective[depth]
    slope = _expert_slope(expert_seconds, expert_step, strangers)
    verify = (rest_by_depth[depth + 1] - rest_by_depth[depth]) / batch + slope * (
        effective[depth + 1] - effective[depth]
    )
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
def sample_goodput(  # type: ignore[no-untyped-def]
    sample,
    picked,
    depth,
    rest_by_depth,
    expert_seconds,
    expert_step,
    effective,
    next_acceptance,
    rate,
    option,
    draft,
    by_pass,
    depths,
    work_bin,
    work_order,
    heads,
):  # pragma: no cover (compiled)
    """Expected tokens over seconds of batches drawn from a sample of survivals, drafted and gated as in the engine."""
    steps, batch = picked.shape
    deepest = sample.shape[1]
    survival = np.empty((batch, deepest))
    so_far = np.empty(batch)
    drafted = np.empty(batch, dtype=np.int64)
    going = np.empty(batch, dtype=np.bool_)
    tokens = seconds = 0.0
    for step in range(steps):
        for i in range(batch):
            survival[i] = sample[picked[step, i]]
        if by_pass:
            so_far[:] = 1.0
            drafted[:] = 0
            going[:] = True
            for at in range(depth):
                count = keep_drafting(
                    so_far,
                    at,
                    rest_by_depth,
                    expert_seconds,
                    expert_step,
                    effective,
                    next_acceptance,
                    rate,
                    option,
                    draft,
                    going,
                )
                if count == 0:
                    break
                seconds += draft[0] + draft[1] * count
                for i in range(batch):
                    if going[i]:
                        drafted[i] += 1
                        so_far[i] = survival[i, at]
        else:
            drafted[:] = depth
            seconds += draft[0] + draft[1] * batch
        gained = ragged_gate(
            survival,
            drafted,
            rest_by_depth,
            expert_seconds,
            expert_step,
            effective,
            rate,
            depths,
            work_bin,
            work_order,
            heads,
        )
        positions = 0
        strangers = 0.0
        for i in range(batch):
            positions += depths[i]
            strangers += effective[depths[i]]
        mean = positions / batch
        low = min(int(mean), deepest - 1)
        seconds += rest_by_depth[low] + (mean - low) * (rest_by_depth[low + 1] - rest_by_depth[low])
        seconds += _experts(expert_seconds, expert_step, strangers)
        tokens += batch + gained
    return tokens / seconds


class Scratch:
    """Memory of the gate, made once: nothing in the hot path allocates."""

    def __init__(self, max_batch: int, max_depth: int) -> None:
        self.depths = np.zeros(max_batch, dtype=np.int64)
        self.bins = np.zeros(max_batch * max_depth, dtype=np.int64)
        self.order = np.zeros(max_batch * max_depth, dtype=np.int64)
        self.heads = np.zeros(_BINS + 1, dtype=np.int64)
