"""Measured kernels of a GPU: tables and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specmargin.cli import render

if TYPE_CHECKING:
    from specmargin.measure.gpu.laws import ExpertTimes, KernelReport, Turning

_QUERIES = (2, 4, 8, 16)


def as_text(report: KernelReport) -> str:
    """The report as JSON with one row per line."""
    values = dict(report.file)
    rows = ",\n".join("  " + json.dumps(row) for row in values.pop("rows"))
    head = json.dumps(values, indent=1, ensure_ascii=False)
    return f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n'


def show(report: KernelReport, output: Path) -> None:
    out = render.console()
    out.print(report.file["source"], style="bold", markup=False)
    launches = report.launch_seconds
    out.print(
        f"copy {report.bytes_per_second / 1e12:.2f} TB/s, matrices {report.operations_per_second / 1e12:.0f} TFLOP/s, "
        f"{launches[True] * 1e6:.1f} µs per launch inside a graph and {launches[False] * 1e6:.1f} µs without"
    )
    if report.experts is not None:
        _show_experts(report.experts)
    _show_turnings(report.turnings)
    shown = render.table("Laws", [("operation", "left"), ("law", "left"), ("held out", "left")])
    for law in report.file["laws"]:
        reads = f"{law['fixed_seconds'] * 1e6:.1f} µs + bytes at {law['bytes_per_second'] / 1e12:.2f} TB/s"
        errors = f"{law['evidence']['median_error']:.1%}, p90 {law['evidence']['p90_error']:.0%}"
        shown.add_row(law["operation"], f"{reads}, {law['operations_per_second'] / 1e12:.0f} TFLOP/s", errors)
    out.print(shown)
    unsteady = report.unsteady
    if unsteady:
        text = f"warning: {len(unsteady)} timings vary by more than 10%: {'; '.join(unsteady[:3])}"
        out.print(text, style="yellow", markup=False)
    for text in report.failures:
        out.print(f"warning: {text}", style="yellow", markup=False)
    out.print(f"Wrote {output}; use it with --prices {output}", markup=False)


def _show_experts(times: ExpertTimes) -> None:
    out = render.console()
    positions = sorted({t for growth in times.growth.values() for t in growth})
    columns = [("distinct experts", "right"), *((str(t), "right") for t in positions)]
    shown = render.table(
        "Fused experts: time by positions, relative to the shortest at the same distinct experts", columns
    )
    for distinct, growth in times.growth.items():
        shown.add_row(str(distinct), *(f"{growth[t]:.2f}" if t in growth else "" for t in positions))
    out.print(shown)
    lines = [f"{t}: {100 * off:.0f}%" for t, off in times.straightness.items()]
    out.print(f"largest deviation from a line in distinct experts, by positions: {', '.join(lines)}", style="dim")


def _show_turnings(turnings: list[Turning]) -> None:
    columns = [("attention", "left"), ("context", "right"), ("batch", "right")]
    columns += [(f"q = {q}", "right") for q in _QUERIES]
    columns += [("1.5× at", "right"), ("compute-bound at", "right")]
    shown = render.table("Several queries per sequence, relative to one", columns)
    for turn in turnings:
        reached = "not reached" if turn.measured_turn is None else f"{turn.measured_turn:.1f}"
        cells = [f"{turn.relative[q]:.2f}" if q in turn.relative else "" for q in _QUERIES]
        case = [turn.kind, f"{turn.context:,}", str(turn.batch)]
        shown.add_row(*case, *cells, reached, f"{turn.predicted_turn:.1f}")
    render.console().print(shown)


def payload(report: KernelReport) -> dict[str, Any]:
    return {
        "schema": "specmargin.measure-gpu/1",
        "source": report.file["source"],
        "laws": report.file["laws"],
        "copy_bytes_per_second": report.bytes_per_second,
        "operations_per_second": report.operations_per_second,
        "launch_seconds": {"graph": report.launch_seconds[True], "no_graph": report.launch_seconds[False]},
        "experts": None if report.experts is None else asdict(report.experts),
        "queries": [asdict(turn) for turn in report.turnings],
        "unsteady": report.unsteady,
        "failures": report.failures,
    }
