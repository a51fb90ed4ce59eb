"""Specmargin prices speculative decoding on mixture-of-experts models, and decides from the price.

The public names are listed here and imported on first use, so that `import specmargin` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specmargin._version import __version__

if TYPE_CHECKING:
    from specmargin.acceptance.survival import Survival, break_even_acceptance, parse_acceptance
    from specmargin.api import coverage, design, duel, plan, price, simulate, sweep
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
    from specmargin.verbs.design import DesignAnswer
    from specmargin.verbs.duel import DuelAnswer
    from specmargin.verbs.plan import PlanAnswer
    from specmargin.verbs.price import PriceAnswer
    from specmargin.verbs.simulate import SimulateAnswer
    from specmargin.verbs.sweep import SweepAnswer

_MODULE_BY_NAME = {
    "Architecture": "architecture.types",
    "CoverageAnswer": "verbs.coverage",
    "DesignAnswer": "verbs.design",
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
    "SimulateAnswer": "verbs.simulate",
    "SpecmarginError": "errors",
    "Step": "step",
    "StepPrice": "prices.model",
    "Survival": "acceptance.survival",
    "SweepAnswer": "verbs.sweep",
    "UniformRouting": "routing.profile",
    "break_even_acceptance": "acceptance.survival",
    "coverage": "api",
    "design": "api",
    "duel": "api",
    "find_acceptance": "catalog.drafters",
    "find_device": "catalog.lookup",
    "find_drafter": "catalog.drafters",
    "find_model": "catalog.lookup",
    "find_routing": "catalog.routing_profiles",
    "load_architecture": "architecture.reader",
    "make_plan": "decisions.plan",
    "parse_acceptance": "acceptance.survival",
    "plan": "api",
    "price": "api",
    "read_architecture": "architecture.reader",
    "simulate": "api",
    "sweep": "api",
    "verdict": "decisions.verdict",
}

__all__ = [  # the same names as above, spelt out for type checkers and readers
    "Architecture",
    "CoverageAnswer",
    "DesignAnswer",
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
    "SimulateAnswer",
    "SpecmarginError",
    "Step",
    "StepPrice",
    "Survival",
    "SweepAnswer",
    "UniformRouting",
    "__version__",
    "break_even_acceptance",
    "coverage",
    "design",
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
        return _verb(name)
    return getattr(import_module(f"specmargin.{_MODULE_BY_NAME[name]}"), name)


def _verb(name: str) -> Any:
    """Any other verb, such as `specmargin.models()`: its options are keywords."""
    from specmargin.verbs import find_verb, typed_name, verb_names  # noqa: PLC0415

    if name.startswith("_") or typed_name(name) not in verb_names():
        raise AttributeError(f"module 'specmargin' has no attribute {name!r}")
    return find_verb(typed_name(name)).ask


def __dir__() -> list[str]:
    return sorted(__all__)
