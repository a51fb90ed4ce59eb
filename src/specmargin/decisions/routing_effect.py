"""What knowing the routing changes: the same plan under uniform routing, beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.decisions.grid import best_depths
from specmargin.decisions.plan import Plan
from specmargin.routing.profile import UNIFORM


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingEffectRow:
    batch: int
    depth: int
    uniform_depth: int
    goodput_gain: float  # over uniform routing, each at its own best depth
    loss_by_uniform: float  # share of goodput lost by drafting at the depth that is best under uniform routing


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingEffect:
    rows: tuple[RoutingEffectRow, ...]

    def __str__(self) -> str:
        deeper = max(self.rows, key=lambda row: abs(row.depth - row.uniform_depth))
        gain = max(self.rows, key=lambda row: row.goodput_gain)
        loss = max(self.rows, key=lambda row: row.loss_by_uniform)
        depths = (
            f"drafts {deeper.depth} instead of {deeper.uniform_depth} at batch {deeper.batch}"
            if deeper.depth != deeper.uniform_depth
            else "drafts as deep"
        )
        return (
            f"against uniform routing, the profile {depths} and gives up to {gain.goodput_gain:+.0%} goodput "
            f"(batch {gain.batch}); drafting as uniform routing says would lose up to {loss.loss_by_uniform:.1%}"
        )


def routing_effect(plan: Plan) -> RoutingEffect | None:
    """None for a dense model, and where the plan is made with uniform routing already."""
    pricer, scenario = plan.pricer, plan.scenario
    if not scenario.architecture.is_moe or scenario.routing is UNIFORM:
        return None
    batches = [row.batch for row in plan.rows]
    ours = pricer.grid(batches, plan.max_depth)
    uniform = pricer.under_uniform_routing().grid(batches, plan.max_depth)
    here, there = best_depths(ours, plan.graph_limit), best_depths(uniform, plan.graph_limit)
    at = np.arange(len(batches))
    best = ours.goodput[at, here]
    return RoutingEffect(
        rows=tuple(
            RoutingEffectRow(
                batch=batch,
                depth=int(here[i]),
                uniform_depth=int(there[i]),
                goodput_gain=float(best[i] / uniform.goodput[i, there[i]] - 1.0),
                loss_by_uniform=float(1.0 - ours.goodput[i, there[i]] / best[i]),
            )
            for i, batch in enumerate(batches)
        )
    )
