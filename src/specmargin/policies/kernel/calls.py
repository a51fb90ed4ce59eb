"""A controller's decisions in one call each, for who calls from Python.

Handing twenty arrays to compiled code takes longer than what it does with them, several times so in an engine whose
forward pass has emptied the caches. So they are handed over once, as a structure that compiled code keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba as nb
import numpy as np
from numba.experimental import structref

from specmargin.compiling import Kept
from specmargin.policies.kernel.decide import (
    Known,
    Learned,
    account_for_gate,
    are_rounds,
    choose_depth,
    compare_with_gate,
    expected_of_gate,
    is_gating,
    learn_rounds,
    shift_survival,
)
from specmargin.policies.kernel.gate import Memory, ragged_gate, ragged_seconds
from specmargin.step import FloatArray, IntArray


@structref.register
class _HandleType(Kept):
    pass


class Handle(structref.StructRefProxy):
    """What a controller knows, has learned and gates with; the arrays are its own, changed in place."""

    if TYPE_CHECKING:

        def __init__(  # what the proxy takes, in this order
            self,
            known: Known,
            learned: Learned,
            memory: Memory,  # of the gate
            rate_by_batch: FloatArray,  # at which the gate charges time
            floor: IntArray,  # the deepest allowed depth up to each
            believed: FloatArray,  # survivals that the gate last decided by
            unseen: FloatArray,  # (2, depth): what it expected of drafts that it left out
        ) -> None: ...


_FIELDS = ["known", "learned", "memory", "rate_by_batch", "floor", "believed", "unseen"]
structref.define_proxy(Handle, _HandleType, _FIELDS)  # type: ignore[no-untyped-call]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def choose(handle, batch):  # type: ignore[no-untyped-def]  # Numba reads the types
    return choose_depth(handle.known, handle.learned, batch)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def gate(handle, survival, drafted):  # type: ignore[no-untyped-def]
    """Fill the memory's depths with how much of each draft to verify; returns how many tokens it expects to be accepted
    and to be reached, and by how many it is ahead of verifying all drafts; all NaN where a survival is no probability.
    """
    known, believed, floor, depths = handle.known, handle.believed, handle.floor, handle.memory[0]
    batch, width, deepest = survival.shape[0], survival.shape[1], believed.shape[1]
    for i in range(batch):
        for d in range(width):
            if not 0.0 <= survival[i, d] <= 1.0:  # also NaN
                return np.nan, np.nan, np.nan
        for d in range(deepest):
            believed[i, d] = survival[i, d] if d < width else 0.0
    shift_survival(believed[:batch], handle.learned.shift[0])
    rate = handle.rate_by_batch[min(batch, handle.rate_by_batch.size - 1)]
    prices = (known.rest[batch], known.experts, known.expert_step, known.effective)  # drafting is over
    ragged_gate(believed[:batch], drafted, prices, rate, handle.memory)
    for i in range(batch):
        if depths[i] < drafted[i]:
            depths[i] = floor[depths[i]]
    expected, reached = expected_of_gate(believed, drafted, depths, batch, handle.unseen)
    saved = ragged_seconds(prices, drafted, batch) - ragged_seconds(prices, depths, batch)
    return expected, reached, rate * saved - handle.unseen[1].sum()


@nb.njit(cache=True, nogil=True, error_model="numpy")
def gating(handle, batch):  # type: ignore[no-untyped-def]
    return is_gating(handle.known, handle.learned, batch)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def observe(handle, drafted, verified, accepted, seconds, depths, expected, reached, unseen, gain, spent):  # type: ignore[no-untyped-def]
    """After the step; False, and nothing learned, where these are no rounds. `depths` and what follows: as `gate` had
    it for this step; of another size where it had nothing."""
    known, learned = handle.known, handle.learned
    if not are_rounds(drafted, verified, accepted, known.effective.size - 1):
        return False
    if depths.size == verified.size:
        compare_with_gate(learned, depths, expected, reached, verified, accepted)
        if not np.isnan(seconds):
            cost = (verified.size + accepted.sum()) * spent / seconds
            account_for_gate(known, learned, verified.size, gain - cost)
    learn_rounds(known, learned, drafted, verified, accepted, unseen, seconds)
    return True
