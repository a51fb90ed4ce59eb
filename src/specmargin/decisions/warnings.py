"""Warnings about the prices themselves."""

from __future__ import annotations

from collections.abc import Iterator

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices.kernels.advice import slow_kernels
from specmargin.prices.kernels.model import SiliconPrices
from specmargin.prices.rdna import RdnaPrices
from specmargin.prices.verify_attention import EngineAttention
from specmargin.prices.work import ROUTED, Component
from specmargin.sources import SourceKind
from specmargin.step import Step

_LARGE_SHARE = 0.1  # of the step's seconds


def price_warnings(pricer: Pricer, *, batch: int, depth: int) -> tuple[str, ...]:
    """Bundled entries that the user's replace, what was assumed of an unknown family, a limit of drafts, kernels that
    run far below the device's bandwidth, and large components without a measurement."""
    return (*_overrides(pricer), *_model_warnings(pricer.scenario), *_kernel_warnings(pricer, batch=batch, depth=depth))


def _overrides(pricer: Pricer) -> Iterator[str]:
    """Entries of the user's that replace bundled ones."""
    for name, source in pricer.scenario.input_sources.items():
        if source.overrides:
            yield f"{name}: your {source.file} replaces the bundled entry of the same name"


def _model_warnings(scenario: Scenario) -> Iterator[str]:
    model = scenario.architecture
    if model.assumptions:
        yield f"family {model.family!r} is unknown, read by its fields: {'; '.join(model.assumptions)}"
    longest = scenario.longest_draft
    if longest is not None:
        yield f"{scenario.engine} verifies at most {longest} draft tokens of this model: deeper drafts are left out"


def _kernel_warnings(pricer: Pricer, *, batch: int, depth: int) -> tuple[str, ...]:
    prices = pricer.scenario.prices
    while isinstance(prices, (RdnaPrices, EngineAttention)):
        prices = prices.inner
    if not isinstance(prices, SiliconPrices):
        return ()
    step = Step.uniform(batch=batch, depth=depth, context=pricer.scenario.context)
    price = pricer.verify(step)
    total = float(price.total_seconds)
    warnings = [str(kernel) for kernel in slow_kernels(prices, pricer.works(step), total)]
    unmeasured = [
        str(line.component)
        for line in price.components
        if line.source.kind is SourceKind.DATASHEET and _matters(line.component, float(line.seconds), total)
    ]
    if unmeasured:
        named = " and ".join(unmeasured)
        warnings.append(f"{named} on {pricer.scenario.device.name}: not measured; datasheet price, a lower bound")
    return tuple(warnings)


def _matters(component: Component, seconds: float, total: float) -> bool:
    """Routed experts always do: a datasheet price that is far too low looks like a small share."""
    return component in ROUTED or seconds > _LARGE_SHARE * total
