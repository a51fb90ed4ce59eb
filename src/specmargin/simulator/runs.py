"""Whole runs in compiled code, one for each kind of policy that is compiled; the engine below them is the same."""

from __future__ import annotations

import numba as nb

from specmargin.simulator.costs import target_seconds
from specmargin.simulator.drafting import draft_alike
from specmargin.simulator.loop import arrive, close, commit, log_is_full, schedule
from specmargin.simulator.state import (
    READY,
)

FINISHED_ALL, LOG_IS_FULL = 0, 1
_JIT = {"cache": True, "nogil": True, "error_model": "numpy"}


@nb.njit(**_JIT)
def run_depths(rounds, limits, tables, log, state, depth_by_batch, most_steps):  # type: ignore[no-untyped-def]
    """Whole drafts of a depth by batch: fixed depths, schedules and no speculation. 0 when all is done, 1 where Python
    must look after the log."""
    n = state.numbers
    for _ in range(most_steps):
        if not arrive(limits, state):
            return 0
        if log_is_full(limits, log, state):
            return 1
        schedule(limits, tables, state)
        depth = depth_by_batch[min(n[READY], depth_by_batch.size - 1)]
        target_seconds(limits, tables, log, state)
        commit(rounds, state, depth)
        draft_alike(tables, state, depth)
        close(limits, tables, log, state, depth)
    return 1
