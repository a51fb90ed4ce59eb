"""How many experts positions touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

_NAMES = {
    "uniform": "uniform",
    "width": "width: strangers",
    "skew": "popularity alone",
    "depth": "depth: one run",
}
_COLOURS = ("#999999", "#2166ac", "#f1a340", "#1b7837")


def coverage_curves(model: str, routing: str, rows: Sequence[dict[str, Any]]) -> alt.LayerChart:
    """Distinct experts over positions, both on logarithmic axes."""
    values = [
        {"positions": row["positions"], "experts": round(row[key], 3), "curve": name}
        for row in rows
        for key, name in _NAMES.items()
    ]
    ticks = [2**power for power in range(13)]
    x = alt.X("positions:Q", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(values=ticks), title="positions")
    y = alt.Y(
        "experts:Q",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=ticks),
        title="distinct experts of a layer",
    )
    dash = alt.StrokeDash(
        "curve:N",
        scale=alt.Scale(domain=list(_NAMES.values()), range=[[1, 0], [1, 0], [4, 4], [1, 0]]),
        legend=None,
    )
    colour = alt.Color(
        "curve:N", scale=alt.Scale(domain=list(_NAMES.values()), range=list(_COLOURS)), title=None, sort=None
    )
    base = alt.Chart(alt.InlineData(values=values))
    lines = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash)
    points = base.mark_circle(size=26, opacity=1).encode(
        x=x, y=y, color=colour, tooltip=["curve:N", "positions:Q", "experts:Q"]
    )
    title = alt.TitleParams(f"{model}: experts that positions touch", subtitle=f"routing: {routing}", anchor="start")
    return alt.LayerChart(layer=[lines, points], width=420, height=300, title=title)
