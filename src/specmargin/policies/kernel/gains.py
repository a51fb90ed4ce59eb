"""What a gate in the engine's workers gains at each depth, by the drafts that they sent back. Compiled.

Such a gate verifies a total of tokens that is decided before the confidences are known (`kernel.budget`). The best
depth of whole drafts is too shallow for it at large batches, where only the drafts that are worth it are verified. So
the budget is taken for recent rounds as if they had been drafted to every depth, with learned acceptance in place of
tokens that were not drafted; what it commits and takes is the price of each depth. Recent confidences know a change of
traffic at once, where learned acceptance of deep tokens, which few rounds reach, follows slowly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.compiler import compiled
from specmargin.policies.kernel.times import STATES
from specmargin.step import FloatArray, IntArray

# A single sequence is not gated: its budget is chosen before its confidences are known, and no other sequence could use
# the rest of it.
LEAST_GATED = 2


class GateGains(NamedTuple):
    """By power of two of the batch, as learned times are. Empty without such a gate."""

    drafts: FloatArray  # (rounds, sequences, depth): acceptance of each token if those before it are accepted
    sequences: IntArray  # by round; 0: none yet
    newest: IntArray  # (1,): round
    ahead: FloatArray  # (states, 1 + depths): ln of goodput over that of plain decoding
    gain: FloatArray  # (states, 1 + depths): ln of goodput over that of whole drafts
    verified: FloatArray  # (states, 1 + depths): tokens per sequence that are verified
    looked: IntArray  # (states,): step of the last look; −1: none
    survival: FloatArray  # scratch: (rounds, sequences, depth)
    lengths: IntArray  # scratch: by sequence
    factors: FloatArray  # scratch: learned times over prices, of drafting and then by depth

    @classmethod
    def nothing(cls, max_batch: int, max_depth: int, rounds: int) -> GateGains:
        shape = (rounds, max_batch, max_depth)
        return cls(
            drafts=np.zeros(shape),
            sequences=np.zeros(rounds, dtype=np.int64),
            newest=np.zeros(1, dtype=np.int64),
            ahead=np.zeros((STATES, 1 + max_depth)),
            gain=np.zeros((STATES, 1 + max_depth)),
            verified=np.zeros((STATES, 1 + max_depth)),
            looked=np.full(STATES, -1),
            survival=np.zeros(shape),
            lengths=np.zeros(max_batch, dtype=np.int64),
            factors=np.zeros(2 + max_depth),
        )


@compiled
def remember_drafts(gate: GateGains, acceptance: FloatArray) -> None:
    """Drafts of one step, (sequences, depth); negative where a token was not drafted."""
    newest = (gate.newest[0] + 1) % gate.sequences.size
    count, depth = min(acceptance.shape[0], gate.drafts.shape[1]), min(acceptance.shape[1], gate.drafts.shape[2])
    for i in range(count):
        for d in range(gate.drafts.shape[2]):
            gate.drafts[newest, i, d] = acceptance[i, d] if d < depth else -1.0
    gate.newest[0] = newest
    gate.sequences[newest] = count
