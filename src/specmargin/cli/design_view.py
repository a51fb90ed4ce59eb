"""Variants of a model's experts, as a table and as JSON."""

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
_NOT_PREDICTED = (
    "Prices alone: acceptance and drafter are held equal, and the quality of the variants is not predicted."
)


def show(found: Design, *, json: bool) -> None:
    (_emit_json if json else _emit_table)(found)


# --- as JSON ---


def _row(found: Design, row: DesignRow) -> dict[str, Any]:
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
        "goodput_over_base": _over_base(found, row),
        "no_spec_tokens_per_second": row.no_spec_tokens_per_second,
        "speedup": row.speedup,
        "distinct_experts": row.distinct_experts,
        "fits": row.fits,
    }


def _over_base(found: Design, row: DesignRow) -> float:
    return row.goodput_tokens_per_second / found.base.goodput_tokens_per_second


def _emit_json(found: Design) -> None:
    scenario, sources = found.scenario, found.sources
    render.json_out(
        {
            "schema": "specmargin.design/1",
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "gpus": scenario.layout.gpus,
            "batch": found.batch,
            "context": scenario.context,
            "drafter": scenario.drafter.name,
            "prices": scenario.prices.name,
            "routing": scenario.routing.name,
            "hold": found.space.hold,
            "note": _NOT_PREDICTED,
            "base": _row(found, found.base),
            "best": _row(found, found.fitting[0]) if found.fitting else None,
            "rows": [_row(found, row) for row in found.rows],
            "left_out": found.left_out,
            "sources": {name: str(source) for name, source in sources.items()},
            "weakest_source": str(weakest(sources.values())),
        }
    )


# --- as a table ---


def _emit_table(found: Design) -> None:
    out = render.console()
    out.print(_verdict(found), style="bold", markup=False)
    out.print(_NOT_PREDICTED)
    out.print()
    _print_rows(out, found)
    out.print()
    render.sources(out, found.sources)


def _experts(row: DesignRow) -> str:
    return f"{row.shape.experts_per_token} of {row.shape.experts}"


def _verdict(found: Design) -> str:
    name, base = found.scenario.architecture.name, found.base
    if not found.fitting:
        return f"None of {len(found.rows)} variants of {name} fits at batch {found.batch}; try more --gpus."
    best, steepest = found.fitting[0], max(found.fitting, key=lambda row: row.speedup)
    over = _over_base(found, best)
    keep = "" if over > 1.0 else "The experts are best as they are; next: "
    return (
        f"{keep}{_experts(best)} experts, {best.shape.width} wide, {best.shape.shared_share:.0%} shared: "
        f"{render.tokens_per_second(best.goodput_tokens_per_second)} tokens a second at batch {found.batch}, "
        f"{over:.2f}× {name} as it is, with {_billions(best.parameters)} parameters for its "
        f"{_billions(base.parameters)} (equal {_EQUAL[found.space.hold]}). Speculation itself gains most with "
        f"{_experts(steepest)}, {steepest.shape.shared_share:.0%} shared: {steepest.speedup:.2f}× for its "
        f"{base.speedup:.2f}×."
    )


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B"


def _print_rows(out: Console, found: Design) -> None:
    scenario = found.scenario
    title = (
        f"{scenario.drafter.name} on {scenario.device.title}, batch {found.batch}, context {scenario.context:.0f}, "
        f"{scenario.prices.name} prices"
    )
    names = ("width", "shared", "params", "active", "draft", "tok/s", "× as is", "plain", "speed-up", "distinct")
    shown = render.table(title, [("experts", "left"), *((name, "right") for name in names)])
    for row in (found.base, *found.rows[:_SHOWN]):
        shown.add_row(*_cells(found, row))
    out.print(shown)
    out.print(f"first: the model as it is; then the best {min(_SHOWN, len(found.rows))} of {len(found.rows)} variants")
    if not all(row.fits for row in found.rows[:_SHOWN]):
        out.print("(in brackets: more parameters than fit at this batch)", style="dim")
    if found.left_out:
        out.print(f"{found.left_out} more cannot be built equal within {TOLERANCE:.0%} in steps of {STEP}", style="dim")
    out.print("shared: of the width that a token uses; distinct: experts of a layer in a verify step", style="dim")


def _cells(found: Design, row: DesignRow) -> tuple[str, ...]:
    parameters = _billions(row.parameters)
    return (
        _experts(row),
        str(row.shape.width),
        f"{row.shape.shared_share:.0%}",
        parameters if row.fits else f"({parameters})",
        _billions(row.active_parameters),
        str(row.depth),
        render.tokens_per_second(row.goodput_tokens_per_second),
        f"{_over_base(found, row):.2f}",
        render.tokens_per_second(row.no_spec_tokens_per_second),
        f"{row.speedup:.2f}×",
        f"{row.distinct_experts:.0f}",
    )


# --- as a figure ---


def draw(found: Design, path: Path) -> None:
    from specmargin.figures.design import design_figure
    from specmargin.figures.files import save

    save(design_figure(found).chart(), path)
