"""Specmargin prices speculative decoding on mixture-of-experts models, and decides from the price.

The public names are listed here and imported on first use, so that `import specmargin` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specmargin._version import __version__

if TYPE_CHECKING:
    from specmargin.acceptance.survival import Survival, break_even_acceptance, parse_acceptance
    from specmargin.api.results import SimulateResult, SweepResult
    from specmargin.api.verbs import coverage, duel, plan, price, simulate, sweep
    from specmargin.architecture.reader import load_architecture, read_architecture
    from specmargin.architecture.types import Architecture, ExpertPool
    from specmargin.catalog.drafters import find_acceptance, find_drafter
    from specmargin.catalog.lookup import find_device, find_model
    from specmargin.catalog.routing_profiles import find_routing
    from specmargin.decisions.plan import Plan, make_plan
    from specmargin.decisions.pricer import Pricer
    from specmargin.decisions.rows import PlanRow
    from specmargin.decisions.scenario import Scenario
    from specmargin.decisions.verdict import verdict
    from specmargin.errors import InputError, SpecmarginError
    from specmargin.hardware.device import Device
    from specmargin.hardware.layout import Layout
    from specmargin.modes import Parallel, RooflineForm
    from specmargin.prices.model import EngineTime, PriceModel, StepPrice
    from specmargin.prices.roofline import Roofline
    from specmargin.routing.profile import RoutingProfile, UniformRouting
    from specmargin.step import Step
    from specmargin.verbs.coverage import CoverageAnswer
    from specmargin.verbs.duel import DuelAnswer
    from specmargin.verbs.plan import PlanAnswer
    from specmargin.verbs.price import PriceAnswer

_MODULE_BY_NAME = {
    "Architecture": "architecture.types",
    "CoverageAnswer": "verbs.coverage",
    "Device": "hardware.device",
    "DuelAnswer": "verbs.duel",
    "EngineTime": "prices.model",
    "ExpertPool": "architecture.types",
    "InputError": "errors",
    "Layout": "hardware.layout",
    "Parallel": "modes",
    "Plan": "decisions.plan",
    "PlanAnswer": "verbs.plan",
    "PlanRow": "decisions.rows",
    "PriceModel": "prices.model",
    "PriceAnswer": "verbs.price",
    "Pricer": "decisions.pricer",
    "Roofline": "prices.roofline",
    "RooflineForm": "modes",
    "RoutingProfile": "routing.profile",
    "Scenario": "decisions.scenario",
    "SimulateResult": "api.results",
    "SpecmarginError": "errors",
    "Step": "step",
    "StepPrice": "prices.model",
    "Survival": "acceptance.survival",
    "SweepResult": "api.results",
    "UniformRouting": "routing.profile",
    "break_even_acceptance": "acceptance.survival",
    "coverage": "api.verbs",
    "duel": "api.verbs",
    "find_acceptance": "catalog.drafters",
    "find_device": "catalog.lookup",
    "find_drafter": "catalog.drafters",
    "find_model": "catalog.lookup",
    "find_routing": "catalog.routing_profiles",
    "load_architecture": "architecture.reader",
    "make_plan": "decisions.plan",
    "parse_acceptance": "acceptance.survival",
    "plan": "api.verbs",
    "price": "api.verbs",
    "read_architecture": "architecture.reader",
    "simulate": "api.verbs",
    "sweep": "api.verbs",
    "verdict": "decisions.verdict",
}

__all__ = [  # the same names as above, spelt out for type checkers and readers
    "Architecture",
    "CoverageAnswer",
    "Device",
    "DuelAnswer",
    "EngineTime",
    "ExpertPool",
    "InputError",
    "Layout",
    "Parallel",
    "Plan",
    "PlanAnswer",
    "PlanRow",
    "PriceAnswer",
    "PriceModel",
    "Pricer",
    "Roofline",
    "RooflineForm",
    "RoutingProfile",
    "Scenario",
    "SimulateResult",
    "SpecmarginError",
    "Step",
    "StepPrice",
    "Survival",
    "SweepResult",
    "UniformRouting",
    "__version__",
    "break_even_acceptance",
    "coverage",
    "duel",
    "find_acceptance",
    "find_device",
    "find_drafter",
    "find_model",
    "find_routing",
    "load_architecture",
    "make_plan",
    "parse_acceptance",
    "plan",
    "price",
    "read_architecture",
    "simulate",
    "sweep",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'specmargin' has no attribute {name!r}")
    return getattr(import_module(f"specmargin.{_MODULE_BY_NAME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
