"""Small servings that the simulator's tests start from."""

from __future__ import annotations

from typing import Any

from specmargin.acceptance.survival import parse_acceptance
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.rounds import RoundBank, drawn_rounds
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import Arrivals, FixedLength, Length, Poisson, Workload
from tests.scenarios import pricer


def curve_bank(acceptance: str = "0.7", depth: int = 4, **changes: Any) -> RoundBank:
    return drawn_rounds({"all": parse_acceptance(acceptance)}, depth, **changes)


def serving(
    *,
    arrivals: Arrivals | None = None,
    prompt: Length | None = None,
    output: Length | None = None,
    model: str = "qwen3-30b-a3b",
    drafter: str = "free",
    scenario_changes: dict[str, Any] | None = None,
    **changes: Any,
) -> Serving:
    priced = pricer(model=model, drafter=drafter, **(scenario_changes or {}))
    workload = Workload(
        arrivals=arrivals or Poisson(requests_per_second=20.0, requests=60),
        prompt=prompt or FixedLength(tokens=100),
        output=output or FixedLength(tokens=40),
    )
    settings: dict[str, Any] = {
        "engine": EngineSettings(max_num_seqs=32, max_num_batched_tokens=1024),
        "bank": curve_bank(),
        "policy": "none",
        "max_depth": 4,
    }
    return Serving(pricer=priced, workload=workload, **(settings | changes))
