"""One more sequence against one more draft token, drawn."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from specmargin.show.figures.figure import Figure, Row
from specmargin.show.figures.marks import Plane, layers, tips

_NAMES = {"width": "sequence (width)", "depth": "draft token (depth)"}


def duel_figure(rows: Sequence[Row], *, verdict: str, source: str) -> Figure:
    """Goodput of both sides."""
    return Figure(
        name="duel",
        title="One more sequence, or one more draft token?",
        takeaway=verdict,
        source=source,
        tables={"rows": [{**row, "name": _NAMES[row["side"]]} for row in rows]},
        draw=_draw,
    )


def _draw() -> alt.LayerChart:
    goodput = "goodput_tokens_per_second:Q"
    x = alt.X(goodput, title="tokens per second", axis=alt.Axis(tickCount=5))
    on = Plane(x, alt.Y("name:N", title="one more", sort=list(_NAMES.values())))
    return layers(
        on.bars("rows", size=28, tooltip=tips(f"{goodput}|tokens/s|,.1f", "step_seconds:Q|step, s|.3~s")),
        on.text("rows", goodput, ",.1f", style="note", align="left", dx=4),
        width=460,
        height=alt.Step(44),
    )
