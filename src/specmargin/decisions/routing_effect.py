"""What the routing profile changes: the plan compared with the same plan under uniform routing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
            f"drafts {deeper.depth} tokens instead of {deeper.uniform_depth} at batch {deeper.batch}"
            if deeper.depth != deeper.uniform_depth
            else "gives the same depths"
        )
        most = gain.goodput_gain
        change = f"adds up to {most:.0%}" if most >= 0.0 else f"loses at least {-most:.0%} of"
        return (
            f"compared with uniform routing, the routing profile {depths} and {change} goodput (batch {gain.batch}); "
            f"using the best depths of uniform routing would lose up to {loss.loss_by_uniform:.1%}"
        )


def routing_effect(plan: Plan) -> RoutingEffect | None:
    """None for a dense model, and where the plan is made with uniform routing already."""
    pricer, scenario = plan.pricer, plan.scenario
    if not scenario.architecture.is_moe or scenario.routing is UNIFORM:
        return None
    batches, setting = [row.batch for row in plan.rows], plan.setting
    profiled = pricer.grid(batches, setting.max_depth)
    uniform = pricer.under_uniform_routing().grid(batches, setting.max_depth)
    depths, uniform_depths = setting.best_depths(profiled), setting.best_depths(uniform)
    goodput = profiled.goodput[np.arange(len(batches)), depths]
    return RoutingEffect(
        rows=tuple(
            RoutingEffectRow(
                batch=batch,
                depth=int(depths[i]),
                uniform_depth=int(uniform_depths[i]),
                goodput_gain=float(goodput[i] / uniform.goodput[i, uniform_depths[i]] - 1.0),
                loss_by_uniform=float(1.0 - profiled.goodput[i, uniform_depths[i]] / goodput[i]),
            )
            for i, batch in enumerate(batches)
        )
    )
