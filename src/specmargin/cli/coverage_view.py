"""Distinct experts by number of positions, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from specmargin.app.scenarios import scenario_of
from specmargin.app.verbs_schema import CoverageRequest
from specmargin.architecture.types import Architecture, ExpertPool
from specmargin.catalog.lookup import find_model
from specmargin.catalog.routing_profiles import find_routing
from specmargin.cli import render
from specmargin.decisions.amdahl import Amdahl, amdahl
from specmargin.decisions.pricer import Pricer
from specmargin.errors import ScenarioError, needs_extra
from specmargin.routing import coverage as maths
from specmargin.routing.profile import RoutingProfile
from specmargin.routing.tabulated import coverage_rows

if TYPE_CHECKING:
    from specmargin.routing.grouping import GroupingLine

_WORTH_IT = 0.05  # saved fraction of the distinct experts that would justify a scheduler change


def show(request: CoverageRequest, plot: Path | None, *, json: bool) -> None:
    architecture = find_model(request.model)
    pool = _pool(architecture, request.layer)
    profile = find_routing(request.routing, architecture)
    if min(request.positions) < 1:
        raise ScenarioError("--positions must be at least 1")
    rows = coverage_rows(pool, profile, request.positions, request.layer)
    if plot is not None:
        _draw(architecture, profile, rows, plot)
    split = _amdahl(request) if request.gpu else None
    if json:
        payload = _payload(architecture, pool, profile, rows, request.layer)
        render.json_out(payload | {"amdahl": split and asdict(split)})
    else:
        _print(architecture, pool, profile, rows, request.layer, split)


def show_grouping(request: CoverageRequest, capture: str, *, json: bool) -> None:
    architecture = find_model(request.model)
    _grouping(architecture, _pool(architecture, request.layer), capture, json=json)


def _pool(architecture: Architecture, layer: int | None) -> ExpertPool:
    groups = architecture.expert_groups
    if not groups:
        raise ScenarioError(f"{architecture.name} is dense: it has no experts to cover")
    routed = sum(group.count for group, _ in groups)
    if layer is not None and not 0 <= layer < routed:
        raise ScenarioError(f"--layer must lie in 0..{routed - 1}: {architecture.name} has {routed} MoE layers")
    return groups[0][1].pool  # every layer of a model has the same pool


def _summary(pool: ExpertPool) -> dict[str, float]:
    return {
        "half_coverage_positions": maths.half_coverage_positions(pool),
        "experts_over_k": pool.experts / pool.experts_per_token,
    }


def _payload(
    architecture: Architecture,
    pool: ExpertPool,
    profile: RoutingProfile,
    rows: list[dict[str, Any]],
    layer: int | None,
) -> dict[str, Any]:
    return {
        "schema": "specmargin.coverage/1",
        "model": architecture.name,
        "routing": profile.name,
        "layer": layer,
        "experts": pool.experts,
        "experts_per_token": pool.experts_per_token,
        "positions": rows,
        **_summary(pool),
        "sources": {"routing": str(profile.source), "model": str(architecture.source)},
    }


def _print(
    architecture: Architecture,
    pool: ExpertPool,
    profile: RoutingProfile,
    rows: list[dict[str, Any]],
    layer: int | None,
    split: Amdahl | None,
) -> None:
    out = render.console()
    summary = _summary(pool)
    out.print(
        f"{architecture.name}: {pool.experts_per_token} of {pool.experts} experts per token. "
        f"{_effective(pool, profile)}Half of them are covered by {summary['half_coverage_positions']:.1f} positions "
        f"under uniform routing; n/k is {summary['experts_over_k']:.1f}.",
        style="bold",
    )
    out.print()
    names = ("positions", "width", "depth", "skew", "uniform", "± stdev", "depth / uniform")
    layers = "mean of layers" if layer is None else f"layer {layer}"
    shown = render.table(f"distinct experts, {layers}, routing: {profile.name}", [(name, "right") for name in names])
    for row in rows:
        shown.add_row(
            str(row["positions"]),
            f"{row['width']:.2f}",
            f"{row['depth']:.2f}{'*' if row['extrapolated'] else ''}",
            f"{row['skew']:.2f}",
            f"{row['uniform']:.2f}",
            f"{row['uniform_stdev']:.2f}",
            f"{row['depth'] / row['uniform']:.0%}",
        )
    out.print(shown)
    if any(row["extrapolated"] for row in rows):
        out.print("*: longer than any captured run; extrapolated", style="dim")
    out.print()
    if split is not None:
        out.print(
            f"Routed experts take {split.expert_share:.0%} of a plain step at batch {split.batch}; drafts of "
            f"{split.depth} touch {split.expert_ratio:.2f}× the experts. By Amdahl's law the step "
            f"takes {split.predicted_ratio:.2f}× as long; with growth of all components, {split.priced_ratio:.2f}×.",
            markup=False,
        )
        out.print()
    render.sources(out, {"routing": profile.source, "model": architecture.source})


def _amdahl(request: CoverageRequest) -> Amdahl:
    """With a free drafter: only the target's experts matter here."""
    _, scenario = scenario_of(request.model_copy(update={"drafter": "free", "acceptance": "1"}))
    return amdahl(Pricer(scenario), batch=request.batch, depth=request.depth)


def _effective(pool: ExpertPool, profile: RoutingProfile) -> str:
    local = profile.local(pool)
    if local is None:
        return ""
    run = float(local.captured_run)
    independent = float(local.effective_positions(np.array([run]))[0])
    return f"A run of {run:.0f} positions touches as many as {independent:.1f} independent tokens. "


def _draw(architecture: Architecture, profile: RoutingProfile, rows: list[dict[str, Any]], path: Path) -> None:
    from specmargin.figures.experts import coverage_figure
    from specmargin.figures.files import save

    save(coverage_figure(architecture.name, profile.name, rows, profile.source).chart(), path)


def _grouping(architecture: Architecture, pool: ExpertPool, spec: str, *, json: bool) -> None:
    with needs_extra("routing"):
        from specmargin.routing.capture import open_captures
        from specmargin.routing.grouping import grouping_savings

    lines = grouping_savings(open_captures([spec]), experts=pool.experts)
    if json:
        rows = [asdict(line) for line in lines]
        render.json_out({"schema": "specmargin.grouping/1", "model": architecture.name, "rows": rows})
    else:
        _print_grouping(render.console(), lines)


def _print_grouping(out: Console, lines: Sequence[GroupingLine]) -> None:
    best = max(lines, key=lambda line: line.saving)
    verdict = "Worth trying" if best.saving >= _WORTH_IT else "Not worth it"
    out.print(
        f"{verdict}: choosing which sequences share a step by the experts of their last round saves "
        f"{best.saving:.1%} of the distinct experts at best (batch {best.batch}); knowing the next round saves "
        f"{max(line.oracle_saving for line in lines):.1%}.",
        style="bold",
    )
    out.print()
    names = ("batch", "random", "grouped", "saving", "± s.e.", "oracle", "oracle saving")
    shown = render.table("distinct experts, mean of layers", [(name, "right") for name in names])
    for line in lines:
        shown.add_row(
            str(line.batch),
            f"{line.random:.2f}",
            f"{line.grouped:.2f}",
            f"{line.saving:.1%}",
            f"{line.saving_standard_error:.1%}",
            f"{line.oracle:.2f}",
            f"{line.oracle_saving:.1%}",
        )
    out.print(shown)
