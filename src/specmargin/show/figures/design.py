"""The design space: goodput of the model with other experts."""

from __future__ import annotations

from typing import Any

import altair as alt

from specmargin.decisions.design import STEP, Design, DesignRow
from specmargin.modes import Hold
from specmargin.show.figures.figure import Figure, rounded
from specmargin.show.figures.marks import Plane, layers, ordinal, tips
from specmargin.sources import weakest

_CELL = 54  # pixels
_LEAST_SPAN = 1.25  # of the colour scale, so that differences of a few percent stay pale
_PALE = 1.6  # power by which the colour scale exceeds the data, so that dark text stays readable
_TICKS = (0.25, 0.35, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_EQUAL = {Hold.ACTIVE: "active", Hold.TOTAL: "active and total"}


def design_figure(design: Design) -> Figure:
    """Goodput relative to the unchanged model, by experts and experts per token, one panel per shared share."""
    scenario, hold = design.scenario, design.space.hold
    cells = sorted((_cell(design, row) for row in design.rows), key=lambda cell: cell["shared"])
    furthest = max(_LEAST_SPAN, *(max(cell["relative"], 1.0 / cell["relative"]) for cell in cells))
    small = "speed-up over no speculation" if hold is Hold.ACTIVE else "shared share of the active width"
    best = max(design.fitting or design.rows, key=lambda row: row.goodput_tokens_per_second)
    over = best.goodput_tokens_per_second / design.base.goodput_tokens_per_second
    return Figure(
        name="design",
        title=f"{scenario.architecture.name} with other experts",
        takeaway=(
            f"Batch {design.batch}, {scenario.drafter.name}, {scenario.device.title}, equal {_EQUAL[hold]} parameters: "
            f"{best.shape.experts_per_token} of {best.shape.experts} has {over:.2f}× the goodput. Large: goodput "
            f"relative to the unchanged model; small: {small}; parentheses: does not fit; empty: no width in "
            f"steps of {STEP} keeps the parameters equal. Quality is not predicted."
        ),
        source=f"Specmargin, prices: {scenario.prices.name}; weakest input: {weakest(design.sources.values())}",
        tables={"cells": cells},
        draw=_draw,
        shape=(
            tuple(dict.fromkeys(cell["panel"] for cell in cells)),
            tuple(sorted({cell["per_token"] for cell in cells})),
            tuple(sorted({cell["experts"] for cell in cells}, reverse=True)),
            rounded(furthest**_PALE, 3),
        ),
    )


def _cell(design: Design, row: DesignRow) -> dict[str, Any]:
    relative = round(row.goodput_tokens_per_second / design.base.goodput_tokens_per_second, 3)
    share = row.shape.shared_share
    return {
        "experts": row.shape.experts,
        "per_token": row.shape.experts_per_token,
        "relative": relative,
        "large": f"{relative:.2f}" if row.fits else f"({relative:.2f})",
        "small": f"{row.speedup:.2f}×" if design.space.hold is Hold.ACTIVE else f"{share:.0%}",
        "shared": round(share, 3),
        "width": row.shape.width,
        "parameters": row.parameters,
        "fits": row.fits,
        "panel": _panel(design, row),
    }


def _panel(design: Design, row: DesignRow) -> str:
    """The requested share nearest to the variant's, which is rounded to steps of width."""
    shares = design.space.shared_shares
    if not shares:
        return ""
    nearest = min(shares, key=lambda share: abs(share - row.shape.shared_share))
    return f"{nearest:.0%} shared" if nearest else "none shared"


def _draw(
    panels: tuple[str, ...], per_token: tuple[int, ...], experts: tuple[int, ...], reach: float
) -> alt.HConcatChart:
    return alt.HConcatChart(hconcat=[_draw_panel(name, per_token, experts, reach) for name in panels])


def _draw_panel(name: str, per_token: tuple[int, ...], experts: tuple[int, ...], reach: float) -> alt.LayerChart:
    on = Plane(
        ordinal("per_token", "experts per token", scale=alt.Scale(domain=list(per_token))),
        alt.Y("experts:O", title="experts", scale=alt.Scale(domain=list(experts))),
    )
    colour = alt.Color(
        "relative:Q",
        scale=alt.Scale(type="log", range="diverging", interpolate="lab", domain=[1.0 / reach, reach]),
        legend=alt.Legend(
            title="goodput", format=".2~f", values=[tick for tick in _TICKS if 1.0 / reach <= tick <= reach]
        ),
    )
    shown = ("experts:O", "per_token:O", "width:Q", "shared:Q", "parameters:Q", "relative:Q", "small:N")
    solid = alt.condition("datum.fits", alt.value(1.0), alt.value(0.5))
    marks = (
        on.rects("cells", color=colour, opacity=solid, tooltip=tips(*shown)),
        on.text("cells", "large:N", style="cell-low", fontSize=13, dy=-6, opacity=solid),
        on.text("cells", "small:N", style="cell-low", fontSize=10, dy=11, opacity=solid),
    )
    own = [mark.transform_filter(f"datum.panel === '{name}'") for mark in marks]
    heading = alt.TitleParams(name, fontSize=12, anchor="middle", offset=6)
    return layers(own, width=alt.Step(_CELL), height=alt.Step(_CELL), title=heading)
