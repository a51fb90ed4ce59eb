"""Warnings about the prices themselves."""

from __future__ import annotations

from specmargin.decisions.pricer import Pricer
from specmargin.prices.kernels.advice import slow_kernels
from specmargin.prices.kernels.model import SiliconPrices
from specmargin.prices.work import Component
from specmargin.sources import SourceKind
from specmargin.step import Step

_LARGE = 0.1  # of the step


def price_warnings(pricer: Pricer, *, batch: int, depth: int) -> tuple[str, ...]:
    """Kernels that run far below the device's bandwidth, and large components without a measurement."""
    prices = pricer.scenario.prices
    if not isinstance(prices, SiliconPrices):
        return ()
    step = Step.uniform(batch=batch, depth=depth, context=pricer.scenario.context)
    price = pricer.verify(step)
    total = float(price.total_seconds)
    slow = [str(kernel) for kernel in slow_kernels(prices, pricer.works(step), total)]
    guessed = [
        str(line.component)
        for line in price.components
        if line.source.kind is SourceKind.DATASHEET and _matters(line.component, float(line.seconds), total)
    ]
    if guessed:
        slow.append(
            f"nobody measured {' and '.join(guessed)} on {pricer.scenario.device.name} in this format: "
            "priced by the datasheet, a lower bound, beside measured components"
        )
    return tuple(slow)


def _matters(component: Component, seconds: float, total: float) -> bool:
    """Routed experts always do: where a lower bound is wrong, it looks small."""
    return component is Component.ROUTED_EXPERTS or seconds > _LARGE * total
