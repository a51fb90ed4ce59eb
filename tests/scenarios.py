"""Scenarios that many tests start from."""

from __future__ import annotations

from typing import Any

from specmargin.acceptance.survival import Survival, parse_acceptance
from specmargin.catalog.drafters import find_drafter
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices.roofline import Roofline
from specmargin.routing.profile import UNIFORM


def scenario(
    model: str = "qwen3.6-35b-a3b",
    gpu: str = "h200",
    drafter: str = "free",
    acceptance: str | Survival = "0.8",
    **changes: Any,
) -> Scenario:
    architecture, device = find_model(model), find_device(gpu)
    survival = parse_acceptance(acceptance) if isinstance(acceptance, str) else acceptance
    return Scenario(
        **{
            "architecture": architecture,
            "device": device,
            "prices": Roofline(device=device),
            "routing": UNIFORM,
            "drafter": find_drafter(drafter, architecture).drafter,
            "survival": survival,
            **changes,
        }
    )


def pricer(
    model: str = "qwen3.6-35b-a3b",
    gpu: str = "h200",
    drafter: str = "free",
    acceptance: str | Survival = "0.8",
    **changes: Any,
) -> Pricer:
    return Pricer(scenario(model, gpu, drafter, acceptance, **changes))
