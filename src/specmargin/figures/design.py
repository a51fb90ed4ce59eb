"""The design space: what other experts would make of speculation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

_CELL = 54  # pixels
_LEAST_SPAN = 1.25  # so that a few percent do not look like a difference
_PALE = 1.6  # power by which colours reach beyond the data: dark ink stays readable on all of them
_TICKS = (0.25, 0.35, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)


def heat_map(title: str, where: str, rows: Sequence[dict[str, Any]], *, note: str) -> alt.HConcatChart:
    """Experts over experts a token, a panel for each shared share; the `note` of a cell: speedup or shared_share."""
    values = [_value(row, note) for row in rows]
    furthest = max(_LEAST_SPAN, *(max(value["relative"], 1.0 / value["relative"]) for value in values))
    names = dict.fromkeys(value["panel"] for value in sorted(values, key=lambda value: value["shared"]))
    per_token = sorted({value["per_token"] for value in values})
    panels = [
        _panel([value for value in values if value["panel"] == name], name, per_token, furthest**_PALE)
        for name in names
    ]
    small = "speed-up over no speculation" if note == "speedup" else "shared share of the width that a token uses"
    subtitle = [
        where,
        f"large: speculative goodput over the model as it is; small: {small}; in brackets: does not fit",
    ]
    chart = alt.HConcatChart(hconcat=panels, title=alt.TitleParams(title, subtitle=subtitle, anchor="start"))
    styled: alt.HConcatChart = chart.configure_view(stroke=None).configure_axis(grid=False, domain=False, ticks=False)
    return styled


def _value(row: dict[str, Any], note: str) -> dict[str, Any]:
    relative = round(row["goodput_over_base"], 3)
    return {
        "experts": row["experts"],
        "per_token": row["experts_per_token"],
        "relative": relative,
        "large": f"{relative:.2f}" if row["fits"] else f"({relative:.2f})",
        "small": f"{row['speedup']:.2f}×" if note == "speedup" else f"{row['shared_share']:.0%}",
        "shared": round(row["shared_share"], 3),
        "width": row["expert_width"],
        "parameters": row["parameters"],
        "fits": row["fits"],
        "panel": row["panel"],
    }


def _panel(values: list[dict[str, Any]], name: str, per_token: list[int], reach: float) -> alt.LayerChart:
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("per_token:O", title="experts a token", scale=alt.Scale(domain=per_token), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("experts:O", title="experts", sort="descending"),
    )
    colour = alt.Color(
        "relative:Q",
        scale=alt.Scale(type="log", scheme="purplegreen", domain=[1.0 / reach, reach]),
        legend=alt.Legend(
            title="goodput", format=".2~f", values=[tick for tick in _TICKS if 1.0 / reach <= tick <= reach]
        ),
    )
    tooltip = ["experts:O", "per_token:O", "width:Q", "shared:Q", "parameters:Q", "relative:Q", "small:N"]
    solid = alt.condition("datum.fits", alt.value(1.0), alt.value(0.5))
    cells = base.mark_rect(stroke="white", strokeWidth=2).encode(color=colour, opacity=solid, tooltip=tooltip)
    large = base.mark_text(fontSize=13, dy=-6).encode(text="large:N", opacity=solid)
    small = base.mark_text(fontSize=10, dy=11).encode(text="small:N", opacity=solid)
    return alt.LayerChart(
        layer=[cells, large, small],
        width=alt.Step(_CELL),
        height=alt.Step(_CELL),
        title=alt.TitleParams(name, fontSize=12, anchor="middle"),
    )
