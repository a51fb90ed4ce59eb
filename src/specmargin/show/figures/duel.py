"""One more sequence against one more draft token, drawn."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from specmargin.show.figures.figure import Figure, Row, table


def duel_figure(rows: Sequence[Row], *, verdict: str, source: str) -> Figure:
    """Goodput of both sides."""
    return Figure(
        name="duel",
        title="One more sequence, or one more draft token?",
        takeaway=verdict,
        source=source,
        tables={"rows": rows},
        draw=_draw,
    )


def _draw() -> alt.LayerChart:
    x = alt.X("goodput_tokens_per_second:Q", title="tokens per second")
    y = alt.Y("side:N", title="one more", sort=["width", "depth"])
    bars = table("rows").mark_bar(size=28).encode(x=x, y=y)
    values = table("rows").mark_text(style="note", align="left", dx=4)
    return alt.LayerChart(
        layer=[bars, values.encode(x=x, y=y, text=alt.Text("goodput_tokens_per_second:Q", format=",.1f"))],
        width=460,
        height=alt.Step(44),
    )
