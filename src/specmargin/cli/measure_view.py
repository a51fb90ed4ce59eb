"""Measured and fitted steps: tables and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specmargin.cli import render

if TYPE_CHECKING:
    from specmargin.measure.pricing import Fitted

_RESOLVED = 2.0  # high / low beyond which the steps hardly depend on the parameter
_UNITS = {
    "weight_bytes_per_second": (1e-12, "TB/s", "weights are read at"),
    "operations_per_second": (1e-12, "TFLOP/s", "matrices multiply at"),
    "kv_bytes_per_second": (1e-12, "TB/s", "the KV cache is read at"),
    "attention_operations_per_second": (1e-12, "TFLOP/s", "attention computes at"),
    "step_seconds": (1e3, "ms", "engine, per step"),
    "verify_step_seconds": (1e3, "ms", "engine, per step that verifies drafts"),
    "sequence_seconds": (1e6, "µs", "engine, per sequence"),
    "position_seconds": (1e6, "µs", "engine, per position"),
}


def show(fitted: Fitted, failures: dict[str, str], output: Path, log: Path) -> None:
    out = render.console()
    file = fitted.file
    conditions = file.conditions
    out.print(f"{file.model.name} in {conditions['engine']}", style="bold", markup=False)
    out.print(f"{conditions['machine']}; {conditions['software']}; {conditions['date']}", style="dim", markup=False)
    columns = [("what", "left"), ("fitted", "right"), ("5% to 95%", "right")]
    shown = render.table("Prices", columns)
    for name, (value, low, high) in _values(fitted).items():
        scale, unit, text = _UNITS[name]
        interval = (
            f"{low * scale:,.3g} to {high * scale:,.3g}" if high < _RESOLVED * low else "not resolved by these points"
        )
        shown.add_row(text, f"{value * scale:,.3g} {unit}", interval)
    out.print(shown)
    _show_graphs(fitted)
    _show_errors(fitted)
    for run, error in failures.items():
        text = f"warning: engine {run} did not finish ({error}); run the same command to resume, or see {log}"
        out.print(text, style="yellow", markup=False)
    out.print(f"Wrote {output}; use it with --prices {output}", markup=False)


def _values(fitted: Fitted) -> dict[str, tuple[float, float, float]]:
    file = fitted.file
    time = next(iter(file.modes.values()))
    values = file.rates.model_dump() | time.model_dump()
    return {name: (values[name], *file.ranges.get(name, (values[name], values[name]))) for name in _UNITS}


def _show_graphs(fitted: Fitted) -> None:
    out = render.console()
    layers = fitted.file.model.layers
    for mode, time in fitted.file.modes.items():
        parts = [f"mode {mode}: {time.step_seconds * 1e3:.3g} ms per step"]
        if time.graph_limit:
            eager_ms = time.eager_layer_seconds * layers * 1e3
            parts.append(f"captured up to {time.graph_limit} positions, {eager_ms:.3g} ms more beyond")
        if time.floor_layer_seconds:
            parts.append(f"no step under {time.floor_layer_seconds * layers * 1e3:.3g} ms")
        if time.off_floor_layer_seconds:
            parts.append(f"speculation disabled: no step under {time.off_floor_layer_seconds * layers * 1e3:.3g} ms")
        elif time.off_step_seconds or time.off_sequence_seconds:
            off = f"{time.off_step_seconds * 1e3:.3g} ms and {time.off_sequence_seconds * 1e6:.3g} µs per sequence"
            parts.append(f"speculation disabled: {off} more")
        out.print("; ".join(parts), markup=False)
    drafter = fitted.file.drafter
    if drafter is not None:
        first = f"{drafter.first_seconds * 1e3:.3g} ms + {drafter.first_sequence_seconds * 1e6:.3g} µs per sequence"
        later = f"{drafter.later_seconds * 1e3:.3g} ms + {drafter.later_sequence_seconds * 1e6:.3g} µs"
        out.print(f"drafter {drafter.method}: first pass {first}, later passes {later}", markup=False)


def _show_errors(fitted: Fitted) -> None:
    out = render.console()
    columns = [("steps", "left"), ("points", "right"), ("fitted", "right"), ("held out", "right")]
    shown = render.table("Median (worst) error, fitted to all and to half of the points", columns)
    for name, line in errors_by_kind(fitted).items():
        own = f"{line['median_error']:.1%} ({line['worst_error']:.1%})"
        held = f"{line['held_out_median_error']:.1%} ({line['held_out_worst_error']:.1%})"
        shown.add_row(name, str(line["points"]), own, held)
    out.print(shown)
    if fitted.file.evidence.noisy:
        text = "warning: other work ran on this machine; lower quartiles and the speed of each batch were fitted"
        out.print(text, style="yellow")
    if not fitted.file.evidence.counted_experts and fitted.file.model.experts:
        out.print("warning: experts could not be counted; uniform routing was assumed", style="yellow")


def errors_by_kind(fitted: Fitted) -> dict[str, dict[str, Any]]:
    kinds = np.array([row["kind"] for row in fitted.rows])
    errors = {}
    for kind in [*dict.fromkeys(kinds.tolist()), "all"]:
        chosen = np.ones(kinds.size, dtype=bool) if kind == "all" else kinds == kind
        own, held = fitted.judgement.errors[chosen], fitted.judgement.held_out_errors[chosen]
        errors[kind] = {
            "points": int(chosen.sum()),
            "median_error": float(np.median(own)),
            "worst_error": float(own.max()),
            "held_out_median_error": float(np.median(held)),
            "held_out_worst_error": float(held.max()),
        }
    return errors


def payload(fitted: Fitted, failures: dict[str, str]) -> dict[str, Any]:
    values = fitted.file.model_dump(by_alias=True, exclude={"rows"})
    return values | {"schema": "specmargin.measure/1", "errors": errors_by_kind(fitted), "unfinished": failures}
