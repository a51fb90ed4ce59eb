"""Texts shared by several figures."""

from __future__ import annotations

from collections.abc import Iterable

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.sources import Source, weakest


def described(scenario: Scenario) -> str:
    """`qwen3.6-35b-a3b on 8 × h200, mtp, context 1,024`."""
    return f"{machine(scenario)}, context {scenario.context:,.0f}"


def machine(scenario: Scenario) -> str:
    """`qwen3.6-35b-a3b on 8 × h200, mtp`."""
    gpus = scenario.layout.gpus
    count = f"{gpus} × " if gpus > 1 else ""
    return f"{scenario.architecture.name} on {count}{scenario.device.name}, {scenario.drafter.name}"


def price_source(pricer: Pricer) -> str:
    """The prices, and the weakest source among their inputs."""
    return _priced(pricer, pricer.sources.values())


def step_source(pricer: Pricer) -> str:
    """The same for a figure that does not depend on acceptance."""
    return _priced(pricer, pricer.step_sources.values())


def _priced(pricer: Pricer, inputs: Iterable[Source]) -> str:
    return f"Specmargin, prices: {pricer.scenario.prices.name}; weakest input: {short(weakest(inputs))}"


def acceptance_source(scenario: Scenario) -> str:
    return f"Specmargin; acceptance {short(scenario.survival.source)}"


def short(source: Source, most: int = 150) -> str:
    """A source cut to at most `most` characters."""
    text = str(source)
    return text if len(text) <= most else f"{text[: most - 1].rsplit(' ', 1)[0]} …"
