"""What a user should know about the prices themselves."""

from __future__ import annotations

from specmargin.decisions.scenario import Scenario
from specmargin.prices.silicon.advice import slow_kernels
from specmargin.prices.silicon.model import SiliconPrices
from specmargin.step import Step


def price_warnings(scenario: Scenario, *, batch: int, depth: int) -> tuple[str, ...]:
    """Kernels that run far under the device's bandwidth in this step, with what is measured to be faster."""
    prices = scenario.prices
    if not isinstance(prices, SiliconPrices):
        return ()
    step = Step.uniform(batch=batch, depth=depth, context=scenario.context)
    total = float(scenario.verify(step).total_seconds)
    return tuple(str(slow) for slow in slow_kernels(prices, scenario.works(step), total))
