"""The gate's prices from a policy file."""

from __future__ import annotations

import numpy as np

from specmargin.live.policy_schema import PolicyFile
from specmargin.live.vllm.gate.pricing import GatePrices
from specmargin.step import FloatArray

_SUREST = 0.999


def gate_prices(file: PolicyFile, depths: int) -> GatePrices:
    """`depths`: draft tokens of the engine. Compiled here, before the first step."""
    prices = GatePrices(table=file.table.table, depths=depths, prior=_conditional(np.array(file.survival), depths))
    prices.warm_up()
    return prices


def _conditional(survival: FloatArray, depths: int) -> FloatArray:
    """Acceptance of each token whose predecessors were accepted; constant beyond the last known depth."""
    known = np.clip(survival[:depths], 1e-6, 1.0)
    conditional = np.clip(known / np.concatenate([[1.0], known[:-1]]), 0.0, _SUREST)
    return np.pad(conditional, (0, depths - conditional.size), mode="edge")
