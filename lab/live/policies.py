"""A small policy file for tests and benchmarks, with synthetic prices and survivals at all levels of confidence."""

from __future__ import annotations

import numpy as np

from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import policy_text
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import ScheduledDepth
from specmargin.policies.tables import drafting_line


def small_policy(depth: int, ranks: int = 1) -> str:
    batch, deep = np.arange(33.0)[:, np.newaxis], np.arange(depth + 1.0)
    effective = (deep + 1.0) ** 0.8
    independent_positions = np.linspace(0.0, 32 * effective[-1], 256)
    table = PriceTable.of(
        rest_seconds=6e-3 + 0.1e-3 * batch * (deep + 1.0),
        expert_seconds=1.9e-3 * (1.0 - (1.0 - 4 / 64) ** independent_positions),
        expert_step=float(independent_positions[1]),
        effective_by_depth=effective,
        draft_seconds=drafting_line(
            fixed_seconds=1e-3, sequence_seconds=0.02e-3, max_batch=32, max_depth=depth, by_pass=True
        ),
    )
    confidence = np.random.default_rng(0).beta(1.2, 0.8, (512, depth))
    survival = 0.75 ** np.arange(1.0, depth + 1.0)
    depths = ScheduledDepth.homogeneous(table, survival).depth_by_batch
    file = make_policy(
        table=table,
        survival=survival,
        schedule=[(b, b, int(depths[b])) for b in range(1, 33)],
        model="test",
        drafter="draft_model",
        device="cpu",
        context=128.0,
        sources={"prices": "made up, for tests"},
        ranks=ranks,
        sample=np.asarray(np.cumprod(confidence, axis=1), dtype=np.float64),
    )
    return policy_text(file)
