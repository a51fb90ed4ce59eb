"""The answer to a `duel` request: one more sequence against one more draft token, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specmargin.app.scenarios import scenario_of
from specmargin.app.stamp import stamped
from specmargin.app.verbs_schema import DuelRequest
from specmargin.decisions.duel import Duel, Side, duel
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.unverified import LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class DuelAnswer:
    request: DuelRequest
    pricer: Pricer
    duel: Duel

    @property
    def verdict(self) -> str:
        scenario, turning = self.pricer.scenario, self.duel.turning_alpha
        routing = f", {scenario.routing.name} routing" if scenario.architecture.is_moe else ""
        threshold = (
            f"depth wins above an acceptance of {turning:.3f}"
            if turning <= 1
            else "depth does not win at any acceptance"
        )
        return (
            f"{self.duel.winner.capitalize()} wins: {scenario.architecture.name} on {scenario.device.name}, batch "
            f"{self.duel.batch}, acceptance {self.duel.alpha:g}{routing}; {threshold}."
        )


def duel_of(request: DuelRequest) -> DuelAnswer:
    _, scenario = scenario_of(request)
    pricer = Pricer(scenario)
    pricer.check_memory()
    return DuelAnswer(request=request, pricer=pricer, duel=duel(pricer, batch=request.batch, alpha=request.alpha))


def duel_json(answer: DuelAnswer) -> dict[str, Any]:
    """The JSON of `specmargin duel --json`."""
    scenario, duel = answer.pricer.scenario, answer.duel
    values = {
        "schema": "specmargin.duel/1",
        "model": scenario.architecture.name,
        "gpu": scenario.device.name,
        "batch": duel.batch,
        "alpha": duel.alpha,
        "context": scenario.context,
        "routing": scenario.routing.name if scenario.architecture.is_moe else None,
        "width": _side(duel.width),
        "depth": _side(duel.depth),
        "unverified": {"label": LABEL, **_side(duel.unverified)},
        "winner": duel.winner,
        "turning_alpha": duel.turning_alpha,
        "sources": {name: str(source) for name, source in answer.pricer.sources.items() if name != "acceptance"},
    }
    return stamped(values, answer.request, scenario)


def duel_rows(answer: DuelAnswer) -> list[dict[str, Any]]:
    """One row per side."""
    return [{"side": name, **_side(getattr(answer.duel, name))} for name in ("width", "depth")]


def _side(side: Side) -> dict[str, Any]:
    return {
        "goodput_tokens_per_second": side.goodput_tokens_per_second,
        "distinct_experts": side.distinct_experts,
        "step_seconds": side.step_seconds,
    }
