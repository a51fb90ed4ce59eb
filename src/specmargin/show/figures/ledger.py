"""The price of one more draft token, by kind of work."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from specmargin.decisions.next_token import DRAFTING, KINDS, NextToken, next_token
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.show.figures.curve import MAP_BATCHES, curve
from specmargin.show.figures.figure import Figure, rounded, table, x_at, y_at
from specmargin.show.figures.words import described, price_source

_TALLEST = 1.5  # survival never exceeds one: taller bars are cut here, and marked
_TICK = 0.01  # height of a tick, relative to the axis


def ledger_figure(pricer: Pricer, setting: Setting) -> Figure:
    """The price of one more draft token per sequence at the setting's depth of each batch that fits.

    In committed tokens, that is seconds times goodput: the survival that the token needs.
    """
    shown = curve(pricer, setting, MAP_BATCHES)
    drawn = [i for i in shown.shown if shown.batches[i] in MAP_BATCHES] or [0]
    batches = [shown.batches[i] for i in drawn]
    price = next_token(pricer, batches, shown.depths[drawn], setting)
    sizes = price.batches.tolist()
    tallest = float(max(np.minimum(price.hurdle, _TALLEST).max(), price.survival.max()))
    return Figure(
        name="ledger",
        title="The price of one more draft token",
        takeaway=_takeaway(pricer.scenario, price),
        source=price_source(pricer),
        tables={
            "rows": _bars(price),
            "totals": [
                {"batch": size, "text": f"{price.seconds[i] * 1e6:,.0f}{'' if price.has_graph[i] else '*'}"}
                for i, size in enumerate(sizes)
            ],
            "heading": [{"text": "µs"}],
            "survival": [
                {
                    "batch": size,
                    "hurdle": rounded(price.survival[i]),
                    "low": rounded(price.survival[i] - _TICK * tallest / 2),
                    "high": rounded(price.survival[i] + _TICK * tallest / 2),
                }
                for i, size in enumerate(sizes)
            ],
            "name": [
                {"batch": int(price.batches[0]), "hurdle": rounded(price.survival[0]), "text": "its survival"},
            ],
            "cut": [
                {"batch": size, "hurdle": _TALLEST, "text": f"▲ {price.hurdle[i]:.1f}"}
                for i, size in enumerate(sizes)
                if price.hurdle[i] > _TALLEST
            ],
        },
        draw=_draw,
        shape=(_named_kinds(price),),
    )


def _named_kinds(price: NextToken) -> tuple[str, ...]:
    """Kinds of work that occur; drafting is named even if it takes no time, so that drafters share one chart."""
    return tuple(
        kind for kind, value in price.seconds_by_kind.items() if kind == DRAFTING or np.abs(value).max() > 1e-9
    )


def _bars(price: NextToken) -> list[dict[str, Any]]:
    """Kinds that take less time one token deeper are left out of the stack; a cut bar keeps its proportions."""
    positive = {kind: np.maximum(value, 0.0) * price.goodput for kind, value in price.seconds_by_kind.items()}
    height = np.sum(list(positive.values()), axis=0)
    cut = np.minimum(1.0, _TALLEST / np.maximum(height, 1e-30))
    return [
        {
            "batch": size,
            "kind": kind,
            "order": rank,
            "hurdle": rounded(value[i] * cut[i]),
            "microseconds": rounded(price.seconds_by_kind[kind][i] * 1e6),
        }
        for rank, (kind, value) in enumerate(positive.items())
        for i, size in enumerate(price.batches.tolist())
    ]


def _takeaway(scenario: Scenario, price: NextToken) -> str:
    def said(i: int) -> str:
        most = max(price.seconds_by_kind, key=lambda kind: float(price.seconds_by_kind[kind][i]))
        return f"{price.seconds[i] * 1e6:,.0f} µs at batch {price.batches[i]} (mostly {most})"

    times = said(0) if price.batches.size == 1 else f"{said(0)}, {said(-1)}"
    return (
        f"{described(scenario)}: one more draft token per sequence takes {times}, drafting included. Bars: the "
        f"survival that it needs, averaged over the batch; ticks: the survival that it has.{_beyond(price)}"
        f"{'' if price.has_graph.all() else ' *: no CUDA graph for it.'}"
    )


def _beyond(price: NextToken) -> str:
    """Ticks above their bar: what the schedule leaves for the sake of fewer ranges."""
    gain = float(price.gain_in_graphs.max(initial=0.0))
    return "" if gain < 0.001 else f" Where the tick is above the bar, going deeper would gain up to {gain:.1%}."


def _draw(kinds: tuple[str, ...]) -> alt.LayerChart:
    x = alt.X(
        "batch:O",
        title="sequences decoding together (batch)",
        axis=alt.Axis(labelAngle=0),
        scale=alt.Scale(paddingInner=0.35),  # domain from the rows: a new context then needs no new chart
    )
    title = "survival that one more token needs"
    y = alt.Y("hurdle:Q", title=title, stack="zero")
    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=list(KINDS)),  # a kind keeps its colour where another does not occur
        legend=alt.Legend(
            title=None, orient="bottom", direction="horizontal", columns=3, symbolType="square", values=list(kinds)
        ),
    )
    tooltip = [alt.Tooltip("batch:O"), alt.Tooltip("kind:N"), alt.Tooltip("microseconds:Q", format=",.1f", title="µs")]
    bars = table("rows").mark_bar().encode(x=x, y=y, color=colour, order=alt.Order("order:Q"), tooltip=tooltip)
    plain = alt.Y("hurdle:Q", title=title)
    text = table("totals").mark_text().encode(x=x, y=y_at(-14), text=alt.Text("text:N"))
    heading = table("heading").mark_text(style="note", align="right")
    heading = heading.encode(x=x_at(-12), y=y_at(-14), text=alt.Text("text:N"))
    ticks = (
        table("survival")
        .mark_bar(style="tick")
        .encode(
            x=x,
            y=alt.Y("low:Q", title=title),
            y2=alt.Y2("high:Q"),
            tooltip=[alt.Tooltip("batch:O"), alt.Tooltip("hurdle:Q", title="survival of the next token", format=".2f")],
        )
    )
    names = [
        table("name")
        .mark_text(style=style, align="left", xOffset=-18, dy=-10)
        .encode(x=x, y=plain, text=alt.Text("text:N"))
        for style in ("note-halo", "note")
    ]
    cut = table("cut").mark_text(dy=-9, fontWeight=600).encode(x=x, y=plain, text=alt.Text("text:N"))
    return alt.LayerChart(layer=[bars, text, heading, ticks, *names, cut])
