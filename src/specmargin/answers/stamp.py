"""What every JSON answer says about itself: the release and, of a scenario, its options and the survival curve.

Options are those of the command line, defaults included; where a default depends on the model, the engine or the
prices, the value that was used is given.
"""

from __future__ import annotations

from typing import Any

from specmargin._version import __version__
from specmargin.answers.request_schema import Request, ScenarioRequest
from specmargin.answers.scenarios import ENGINE_TIMES
from specmargin.decisions.scenario import Scenario


def stamped(
    payload: dict[str, Any], request: Request | None = None, scenario: Scenario | None = None
) -> dict[str, Any]:
    """The answer with `version` after its schema, and `options` and `survival` at its end."""
    schema = {"schema": payload["schema"], "version": __version__}
    values = schema | {name: value for name, value in payload.items() if name != "schema"}
    if not isinstance(request, ScenarioRequest):
        return values
    values["options"] = used_options(request, scenario)
    if scenario is not None and "acceptance" not in request.unused:
        depth = getattr(request, "depth", 0) or scenario.survival.by_depth.size
        values["survival"] = [float(part) for part in scenario.survival.up_to(depth)]
    return values


def used_options(request: Request, scenario: Scenario | None) -> dict[str, Any]:
    """By field, without those that the verb does not take."""
    values = {name: value for name, value in request.model_dump(mode="json").items() if name not in request.unused}
    if scenario is None:
        return values
    engine_time = scenario.engine_time
    resolved: dict[str, Any] = {
        "drafter": scenario.drafter.name,
        "acceptance": str(scenario.survival.source),
        "routing": scenario.routing.name if scenario.architecture.is_moe else None,
        "context": scenario.context,
        "weights": scenario.weight_names,
        "kv_cache": scenario.kv_precision.name,
        "engine": scenario.engine,
        "prices": scenario.prices.name,
        "engine_time": str(engine_time.source),
        "graph_limit": engine_time.graph_limit,
        **{field: getattr(engine_time, name) / scale for name, (field, scale) in ENGINE_TIMES.items()},
    }
    return {name: resolved[name] if value is None and name in resolved else value for name, value in values.items()}
