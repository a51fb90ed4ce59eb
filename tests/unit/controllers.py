"""Shared by the tests of policies: acceptance, drafts, a look-ahead."""

from __future__ import annotations

import numpy as np

from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.types import LookAhead
from specmargin.policies.policy import Decision, Policy
from specmargin.step import FloatArray, IntArray


def survivals(generator: np.random.Generator, count: int, depth: int) -> FloatArray:
    return np.asarray(np.cumprod(generator.beta(2.0, 1.0, (count, depth)), axis=1))


def verified(policy: Policy, survival: FloatArray, drafted: IntArray) -> IntArray:
    """How much of these drafts it verifies, where they are gated."""
    depths = policy.verify(Decision(int(drafted.max(initial=0)), gated=True), survival, drafted).verify_depths
    assert depths is not None
    return depths


def geometric(acceptance: float) -> FloatArray:
    return np.asarray(acceptance ** np.arange(1.0, 9.0), dtype=np.float64)


def look_ahead_at(table: PriceTable, rate: float) -> LookAhead:
    size = table.max_batch + 1
    return LookAhead(
        depth_by_batch=np.full(size, table.max_depth),
        rate_by_batch=np.full(size, rate),
        option_by_batch=np.ones((size, 2)),
        next_acceptance=np.full(table.max_depth, 0.6),
    )
