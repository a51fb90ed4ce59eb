"""Variants of a model's experts: table, JSON and figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from specmargin.cli import render
from specmargin.decisions.design import STEP, TOLERANCE, Design, DesignRow
from specmargin.modes import Hold
from specmargin.sources import weakest

_SHOWN = 12
_EQUAL = {Hold.ACTIVE: "active", Hold.TOTAL: "active and total"}
_NOT_PREDICTED = "Acceptance and drafter are held equal; the quality of the variants is not predicted."


# --- as JSON ---


def _row(design: Design, row: DesignRow) -> dict[str, Any]:
    return {
        "experts": row.shape.experts,
        "experts_per_token": row.shape.experts_per_token,
        "expert_width": row.shape.width,
        "shared_width": row.shape.shared_width,
        "shared_share": row.shape.shared_share,
        "parameters": row.parameters,
        "active_parameters": row.active_parameters,
        "depth": row.depth,
        "goodput_tokens_per_second": row.goodput_tokens_per_second,
        "goodput_over_base": _over_base(design, row),
        "no_spec_tokens_per_second": row.no_spec_tokens_per_second,
        "speedup": row.speedup,
        "distinct_experts": row.distinct_experts,
        "fits": row.fits,
    }


def _over_base(design: Design, row: DesignRow) -> float:
    return row.goodput_tokens_per_second / design.base.goodput_tokens_per_second


def payload(design: Design) -> dict[str, Any]:
    scenario, sources = design.scenario, design.sources
    return {
        "schema": "specmargin.design/1",
        "model": scenario.architecture.name,
        "gpu": scenario.device.name,
        "gpus": scenario.layout.gpus,
        "batch": design.batch,
        "context": scenario.context,
        "drafter": scenario.drafter.name,
        "prices": scenario.prices.name,
        "routing": scenario.routing.name,
        "hold": design.space.hold,
        "note": _NOT_PREDICTED,
        "base": _row(design, design.base),
        "best": _row(design, design.fitting[0]) if design.fitting else None,
        "rows": [_row(design, row) for row in design.rows],
        "left_out": design.left_out,
        "sources": {name: str(source) for name, source in sources.items()},
        "weakest_source": str(weakest(sources.values())),
    }


# --- as a table ---


def show(design: Design) -> None:
    out = render.console()
    out.print(_verdict(design), style="bold", markup=False)
    out.print(_NOT_PREDICTED)
    out.print()
    _print_rows(out, design)
    out.print()
    render.sources(out, design.sources)


def _experts(row: DesignRow) -> str:
    return f"{row.shape.experts_per_token} of {row.shape.experts}"


def _verdict(design: Design) -> str:
    name, base = design.scenario.architecture.name, design.base
    if not design.fitting:
        return f"None of {len(design.rows)} variants of {name} fits at batch {design.batch}; try more --gpus."
    best, steepest = design.fitting[0], max(design.fitting, key=lambda row: row.speedup)
    over = _over_base(design, best)
    keep = "" if over > 1.0 else "No variant beats the unchanged model. Best variant: "
    return (
        f"{keep}{_experts(best)} experts, {best.shape.width} wide, {best.shape.shared_share:.0%} shared: "
        f"{render.tokens_per_second(best.goodput_tokens_per_second)} tokens/s at batch {design.batch}, "
        f"{over:.2f}× the unchanged {name}, with {_billions(best.parameters)} parameters instead of "
        f"{_billions(base.parameters)} (equal {_EQUAL[design.space.hold]}). Speculation gains most with "
        f"{_experts(steepest)}, {steepest.shape.shared_share:.0%} shared: {steepest.speedup:.2f}× instead of "
        f"{base.speedup:.2f}×."
    )


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B"


def _print_rows(out: Console, design: Design) -> None:
    scenario = design.scenario
    title = (
        f"{scenario.drafter.name} on {scenario.device.title}, batch {design.batch}, context {scenario.context:.0f}, "
        f"{scenario.prices.name} prices"
    )
    names = ("width", "shared", "params", "active", "draft", "tok/s", "× base", "plain", "speed-up", "distinct")
    shown = render.table(title, [("experts", "left"), *((name, "right") for name in names)])
    for row in (design.base, *design.rows[:_SHOWN]):
        shown.add_row(*_cells(design, row))
    out.print(shown)
    out.print(
        f"first row: the unchanged model; then the best {min(_SHOWN, len(design.rows))} of {len(design.rows)} variants"
    )
    if not all(row.fits for row in design.rows[:_SHOWN]):
        out.print("(parentheses: does not fit in memory at this batch)", style="dim")
    if design.left_out:
        out.print(f"{design.left_out} more cannot match within {TOLERANCE:.0%} in steps of {STEP}", style="dim")
    out.print("shared: fraction of the active width; distinct: experts per layer in a verify step", style="dim")


def _cells(design: Design, row: DesignRow) -> tuple[str, ...]:
    parameters = _billions(row.parameters)
    return (
        _experts(row),
        str(row.shape.width),
        f"{row.shape.shared_share:.0%}",
        parameters if row.fits else f"({parameters})",
        _billions(row.active_parameters),
        str(row.depth),
        render.tokens_per_second(row.goodput_tokens_per_second),
        f"{_over_base(design, row):.2f}",
        render.tokens_per_second(row.no_spec_tokens_per_second),
        f"{row.speedup:.2f}×",
        f"{row.distinct_experts:.0f}",
    )


# --- as a figure ---


def draw(design: Design, path: Path) -> None:
    from specmargin.figures.design import design_figure
    from specmargin.figures.files import save

    save(design_figure(design).chart(), path)
