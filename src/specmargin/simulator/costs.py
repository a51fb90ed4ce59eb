"""What a step costs, read from the tables: compiled, by interpolation, nothing is solved."""

from __future__ import annotations

from specmargin.compiling import compiled
from specmargin.simulator.state import (
    DECODE,
    EXTRA,
    LAUNCHES,
    OFF,
    PREFILL,
    PROMPT,
    ROUNDS,
    STEP_TARGET,
)


@compiled
def place(axis, value):  # type: ignore[no-untyped-def]
    """The interval of an axis that holds a value, and how far into it; beyond the end along the last one."""
    low, high = 0, axis.size - 2
    while low < high:
        middle = (low + high + 1) // 2
        if axis[middle] <= value:
            low = middle
        else:
            high = middle - 1
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


@compiled
def between(table, batch, depth, c, part):  # type: ignore[no-untyped-def]
    return (1.0 - part) * table[batch, depth, c] + part * table[batch, depth, c + 1]


@compiled
def _experts(tables, strangers):  # type: ignore[no-untyped-def]
    place = strangers / tables.expert_step
    low = min(int(place), tables.experts.size - 2)
    return tables.experts[low] + (place - low) * (tables.experts[low + 1] - tables.experts[low])


@compiled
def decode_seconds(tables, cells, batch, extra, context, strangers):  # type: ignore[no-untyped-def]
    """A verify step of `batch` sequences; the cell that it lies in gets the seconds, to be split by component."""
    mean = extra / batch
    depth = min(int(mean), tables.effective.size - 2)
    over = mean - depth
    c, part = place(tables.contexts, context / batch)
    seconds = between(tables.decode, batch, depth, c, part)
    effective = tables.effective[depth]
    if over > 0.0:
        seconds += over * (between(tables.decode, batch, depth + 1, c, part) - seconds)
        effective += over * (tables.effective[depth + 1] - effective)
    seconds += _experts(tables, strangers) - _experts(tables, batch * effective)
    cells[batch, min(int(mean + 0.5), cells.shape[1] - 1), c] += seconds
    return seconds


@compiled
def prefill_seconds(tables, positions, tokens, attended):  # type: ignore[no-untyped-def]
    """What prompt tokens add to a step of so many decoding positions."""
    p, over_p = place(tables.prefill_positions, positions)
    t, over_t = place(tables.prefill_tokens, tokens)
    a, over_a = place(tables.prefill_attended, max(attended, 1.0))
    # Alone (0) and beside somebody are not the same thing; positions are whole, so nothing lies between 0 and 1.
    seconds = 0.0
    for i in range(2):
        for j in range(2):
            for k in range(2):
                weight = (over_p if i else 1.0 - over_p) * (over_t if j else 1.0 - over_t)
                weight *= over_a if k else 1.0 - over_a
                if weight != 0.0:
                    seconds += weight * tables.prefill[p + i, t + j, a + k]
    return max(seconds, 0.0)


@compiled
def draft_pass_seconds(tables, sequences, depth, context):  # type: ignore[no-untyped-def]
    """Pass `depth` (from 1) of drafting, for so many sequences of this mean context."""
    if sequences == 0:
        return 0.0
    c, part = place(tables.contexts, context)
    return between(tables.draft, sequences, depth, c, part) - between(tables.draft, sequences, depth - 1, c, part)


@compiled
def target_seconds(limits, tables, log, state):  # type: ignore[no-untyped-def]
    """The target's part of the step as it was scheduled; sums by kind of time on the way."""
    n, sums, clocks = state.numbers, state.sums, state.clocks
    positions = n[ROUNDS] + n[EXTRA]
    seconds = 0.0
    if n[ROUNDS] > 0:
        seconds = decode_seconds(tables, log.cells, n[ROUNDS], n[EXTRA], sums[0], sums[1])
        clocks[DECODE] += seconds
    if n[PROMPT] > 0:
        more = prefill_seconds(tables, positions, n[PROMPT], sums[2] / n[PROMPT])
        clocks[PREFILL] += more
        seconds += more
    launches = max(tables.launches[1] - seconds, 0.0)
    if positions + n[PROMPT] > tables.launches[2]:
        launches = tables.launches[0]
    off = 0.0
    if limits.speculating and n[EXTRA] == 0 and n[ROUNDS] > 0:
        off = tables.off[0] + tables.off[1] * n[ROUNDS]
    clocks[LAUNCHES] += launches
    clocks[OFF] += off
    clocks[STEP_TARGET] = seconds + launches + off
