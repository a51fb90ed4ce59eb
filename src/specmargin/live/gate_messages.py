"""What the scheduler and a gate in the workers tell each other, beside the engine's own fields.

Everything learned from the clock is learned in the scheduler's process and sent with the step, so that tensor-parallel
ranks decide alike. The workers send back what was verified: the engine itself counts drafts that a gate cut as
rejected, and acceptance learned from that would be too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.policies.kernel.types import Expectation
from specmargin.step import IntArray

ORDER = "specmargin_gate"  # attribute of the scheduler's output: a `GateOrder`
RETURNED = "specmargin_verified"  # attribute of the step's output: a `Returned`


class GateOrder(NamedTuple):
    """For one step."""

    gated: bool = True  # False: verify whole drafts, as in a probe
    depth: int = -1  # drafted at its end; −1: as deep as the drafts that it verifies
    draft_factor: float = 1.0  # learned time of drafting over its price
    verify_factors: tuple[float, ...] = ()  # by depth from 0: the same for verifying; empty: not learned
    confidences: bool = False  # send the drafter's own confidences back, for a capture


class Returned(NamedTuple):
    """Of one step, by sequence in the order of its output."""

    verified: npt.NDArray[np.int32]  # draft tokens
    acceptance: npt.NDArray[np.float32] | None = None  # (sequences, depth): what the gate expected, conditional
    confidence: npt.NDArray[np.float32] | None = None  # (sequences, depth): of the drafter, if ordered
    faults: Mapping[str, int] | None = None  # in the worker, so far


def expectation(returned: Returned, drafted: IntArray, verified: IntArray, depths: int) -> Expectation | None:
    """What the gate expected of the drafts that were verified and of those that it cut; None if it sent nothing.

    `drafted`, `verified`: by sequence, in the order of `returned`. `depths`: that the policy learns; 0: it does not.
    """
    if depths == 0 or returned.acceptance is None or returned.acceptance.shape[0] != verified.size:
        return None
    conditional = np.clip(np.nan_to_num(returned.acceptance[:, :depths].astype(np.float64), nan=0.0), 0.0, 1.0)
    survival = np.asarray(np.cumprod(conditional, axis=1))
    before = np.concatenate([np.ones((survival.shape[0], 1)), survival[:, :-1]], axis=1)
    depth = np.arange(survival.shape[1])
    taken, made = depth < verified[:, np.newaxis], depth < drafted[:, np.newaxis]
    cut = ~taken & made
    unseen = np.zeros((2, depths))
    unseen[0, : depth.size], unseen[1, : depth.size] = (before * cut).sum(axis=0), (survival * cut).sum(axis=0)
    return Expectation(
        depths=verified,
        accepted=float((survival * taken).sum()),
        reached=float((before * taken).sum()),
        unseen=unseen,
        acceptance=np.where(made, conditional, -1.0) if made.any() else conditional[:0],
    )
