"""Distinct experts by number of positions, as a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from specmargin.answers.stamp import stamped
from specmargin.app.covering import Coverage, expert_pool
from specmargin.app.verbs_schema import CoverageRequest
from specmargin.architecture.types import Architecture, ExpertPool
from specmargin.catalog.lookup import find_model
from specmargin.cli import render
from specmargin.errors import needs_extra

if TYPE_CHECKING:
    from specmargin.routing.grouping import GroupingLine

_WORTH_IT = 0.05  # saved fraction of the distinct experts that would justify a scheduler change


def show(coverage: Coverage) -> None:
    out = render.console()
    out.print(coverage.verdict, style="bold")
    out.print()
    names = ("positions", "width", "depth", "skew", "uniform", "± stdev", "depth / uniform")
    layers = "mean of layers" if coverage.request.layer is None else f"layer {coverage.request.layer}"
    shown = render.table(
        f"distinct experts, {layers}, routing: {coverage.profile.name}", [(name, "right") for name in names]
    )
    for row in coverage.rows:
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
    if any(row["extrapolated"] for row in coverage.rows):
        out.print("*: longer than any captured run; extrapolated", style="dim")
    out.print()
    split = coverage.split
    if split is not None:
        out.print(
            f"Routed experts take {split.expert_share:.0%} of a plain step at batch {split.batch}; drafts of "
            f"{split.depth} touch {split.expert_ratio:.2f}× the experts. By Amdahl's law the step "
            f"takes {split.predicted_ratio:.2f}× as long; with growth of all components, {split.priced_ratio:.2f}×.",
            markup=False,
        )
        out.print()
    render.sources(out, {"routing": coverage.profile.source, "model": coverage.architecture.source})


def show_grouping(request: CoverageRequest, capture: str, *, json: bool) -> None:
    architecture = find_model(request.model)
    _grouping(architecture, expert_pool(architecture, request.layer), capture, json=json)


def _grouping(architecture: Architecture, pool: ExpertPool, spec: str, *, json: bool) -> None:
    with needs_extra("profile"):
        from specmargin.routing.capture import open_captures
        from specmargin.routing.grouping import grouping_savings

    lines = grouping_savings(open_captures([spec]), experts=pool.experts)
    if json:
        rows = [asdict(line) for line in lines]
        render.json_out(stamped({"schema": "specmargin.grouping/1", "model": architecture.name, "rows": rows}))
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
