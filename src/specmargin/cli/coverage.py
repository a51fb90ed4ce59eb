"""`specmargin coverage`."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from specmargin.architecture.types import Architecture, ExpertPool
from specmargin.catalog.lookup import find_model
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import ScenarioError
from specmargin.routing import coverage as maths
from specmargin.routing.profile import RoutingProfile, find_routing
from specmargin.step import Step

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def coverage(
    model: o.Model,
    positions: Annotated[
        str, typer.Option("--positions", help="Numbers of positions: 1,2,4 or 1-16.")
    ] = "1,2,3,4,6,8,12,16,32,64,128,256",
    routing: o.RoutingOption = "uniform",
    layer: Annotated[int | None, typer.Option("--layer", help="One MoE layer (from 0) instead of the mean.")] = None,
    json: o.JsonOption = False,
) -> None:
    """Distinct experts by number of positions: as that many sequences (width) or as one run (depth).

    Under uniform routing width and depth are the same; a routing profile tells them apart.

    Example: specmargin coverage deepseek-v4-flash --positions 1-64
    """
    architecture = find_model(model)
    pool = _pool(architecture, layer)
    profile = find_routing(routing)
    counts = o.parse_numbers(positions, "--positions", most=1024)
    if counts[0] < 1:
        raise ScenarioError("--positions must be at least 1")
    rows = [_row(pool, profile, count) for count in counts]
    summary = {
        "half_coverage_positions": maths.half_coverage_positions(pool),
        "experts_over_k": pool.experts / pool.experts_per_token,
    }
    if json:
        render.json_out(
            {
                "schema": "specmargin.coverage/1",
                "model": architecture.name,
                "routing": profile.name,
                "layer": layer,
                "experts": pool.experts,
                "experts_per_token": pool.experts_per_token,
                "positions": rows,
                **summary,
                "sources": {"routing": str(profile.source), "model": str(architecture.source)},
            }
        )
        return
    _print(architecture, pool, profile, rows, summary)


def _pool(architecture: Architecture, layer: int | None) -> ExpertPool:
    groups = architecture.expert_groups
    if not groups:
        raise ScenarioError(f"{architecture.name} is dense: it has no experts to cover")
    routed = sum(group.count for group, _ in groups)
    if layer is not None and not 0 <= layer < routed:
        raise ScenarioError(f"--layer must lie in 0..{routed - 1}: {architecture.name} has {routed} MoE layers")
    return groups[0][1].pool  # every layer of a model has the same pool


def _row(pool: ExpertPool, profile: RoutingProfile, count: int) -> dict[str, Any]:
    width = profile.mean(pool, Step.uniform(batch=count))
    depth = profile.mean(pool, Step.uniform(batch=1, depth=count - 1))
    uniform = maths.uniform_mean(pool, count)
    return {
        "positions": count,
        "width": float(width),
        "depth": float(depth),
        "skew": float(width),
        "uniform": float(uniform),
        "uniform_stdev": float(np.sqrt(maths.uniform_variance(pool, count))),
    }


def _print(
    architecture: Architecture,
    pool: ExpertPool,
    profile: RoutingProfile,
    rows: list[dict[str, Any]],
    summary: dict[str, float],
) -> None:
    out = render.console()
    out.print(
        f"{architecture.name}: {pool.experts_per_token} of {pool.experts} experts a token. Half of them are covered by "
        f"{summary['half_coverage_positions']:.1f} positions under uniform routing; n/k is "
        f"{summary['experts_over_k']:.1f}.",
        style="bold",
    )
    out.print()
    columns = [(name, "right") for name in ("positions", "width", "depth", "uniform", "± stdev", "share of experts")]
    shown = render.table(f"distinct experts of one layer, {profile.name} routing", columns)
    for row in rows:
        shown.add_row(
            str(row["positions"]),
            f"{row['width']:.2f}",
            f"{row['depth']:.2f}",
            f"{row['uniform']:.2f}",
            f"{row['uniform_stdev']:.2f}",
            f"{row['width'] / pool.experts:.0%}",
        )
    out.print(shown)
    out.print()
    render.sources(out, {"routing": profile.source, "model": architecture.source})
