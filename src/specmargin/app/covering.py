"""The answer to a `coverage` request: distinct experts by number of positions, and its JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specmargin.answers.scenarios import scenario_of
from specmargin.answers.stamp import stamped
from specmargin.app.verbs_schema import CoverageRequest
from specmargin.architecture.types import Architecture, ExpertPool
from specmargin.catalog.lookup import find_model
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.amdahl import Amdahl, amdahl
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError
from specmargin.routing import coverage as maths
from specmargin.routing.profile import RoutingProfile
from specmargin.routing.tabulated import coverage_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    request: CoverageRequest
    architecture: Architecture
    pool: ExpertPool
    profile: RoutingProfile
    rows: list[dict[str, Any]]
    scenario: Scenario | None  # with a GPU
    split: Amdahl | None  # with a GPU

    @property
    def half_coverage_positions(self) -> float:
        return maths.half_coverage_positions(self.pool)

    @property
    def experts_over_k(self) -> float:
        return self.pool.experts / self.pool.experts_per_token

    @property
    def verdict(self) -> str:
        pool = self.pool
        return (
            f"{self.architecture.name}: {pool.experts_per_token} of {pool.experts} experts per token. "
            f"{self._effective()}Half of them are covered by {self.half_coverage_positions:.1f} positions under "
            f"uniform routing; n/k is {self.experts_over_k:.1f}."
        )

    def _effective(self) -> str:
        local = self.profile.local(self.pool)
        if local is None:
            return ""
        run = float(local.captured_run)
        independent = float(local.effective_positions(np.array([run]))[0])
        return f"A run of {run:.0f} positions touches as many as {independent:.1f} independent tokens. "


def coverage_of(request: CoverageRequest) -> Coverage:
    architecture = find_model(request.model)
    pool = expert_pool(architecture, request.layer)
    profile = find_routing(request.routing, architecture)
    if min(request.positions) < 1:
        raise ScenarioError("--positions must be at least 1")
    scenario = _scenario(request) if request.gpu else None
    return Coverage(
        request=request,
        architecture=architecture,
        pool=pool,
        profile=profile,
        rows=coverage_rows(pool, profile, request.positions, request.layer),
        scenario=scenario,
        split=None if scenario is None else amdahl(Pricer(scenario), batch=request.batch, depth=request.depth),
    )


def expert_pool(architecture: Architecture, layer: int | None) -> ExpertPool:
    groups = architecture.expert_groups
    if not groups:
        raise ScenarioError(f"{architecture.name} is dense: it has no experts to cover")
    routed = sum(group.count for group, _ in groups)
    if layer is not None and not 0 <= layer < routed:
        raise ScenarioError(f"--layer must lie in 0..{routed - 1}: {architecture.name} has {routed} MoE layers")
    return groups[0][1].pool  # every layer of a model has the same pool


def _scenario(request: CoverageRequest) -> Scenario:
    """With a free drafter: only the target's experts matter here."""
    return scenario_of(request.model_copy(update={"drafter": "free", "acceptance": "1"}))[1]


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """The JSON of `specmargin coverage --json`."""
    values: dict[str, Any] = {
        "schema": "specmargin.coverage/1",
        "model": coverage.architecture.name,
        "routing": coverage.profile.name,
        "layer": coverage.request.layer,
        "experts": coverage.pool.experts,
        "experts_per_token": coverage.pool.experts_per_token,
        "positions": coverage.rows,
        "half_coverage_positions": coverage.half_coverage_positions,
        "experts_over_k": coverage.experts_over_k,
        "sources": {"routing": str(coverage.profile.source), "model": str(coverage.architecture.source)},
        "amdahl": coverage.split and asdict(coverage.split),
    }
    values = stamped(values, coverage.request, coverage.scenario)
    values["options"]["routing"] = coverage.profile.name
    return values
