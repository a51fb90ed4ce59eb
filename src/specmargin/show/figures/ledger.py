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
from specmargin.show.figures.figure import Figure, columns
from specmargin.show.figures.marks import BATCH, Plane, by_name, layers, ordinal, tips, x_at, y_at
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
    half = _TICK * tallest / 2
    cut = price.hurdle > _TALLEST
    return Figure(
        name="ledger",
        title="The price of one more draft token",
        takeaway=_takeaway(pricer.scenario, price),
        source=price_source(pricer),
        tables={
            "rows": _bars(price),
            "totals": columns(batch=sizes, text=_totals(price)),
            "heading": [{"text": "µs"}],
            "survival": columns(
                batch=sizes, hurdle=price.survival, low=price.survival - half, high=price.survival + half
            ),
            "name": columns(batch=sizes[:1], hurdle=price.survival[:1], text="its survival"),
            "cut": columns(
                batch=price.batches[cut], hurdle=_TALLEST, text=[f"▲ {value:.1f}" for value in price.hurdle[cut]]
            ),
        },
        draw=_draw,
        shape=(_named_kinds(price),),
    )


def _totals(price: NextToken) -> list[str]:
    graphs = zip(price.seconds, price.has_graph, strict=True)
    return [f"{seconds * 1e6:,.0f}{'' if has_graph else '*'}" for seconds, has_graph in graphs]


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
        row
        for rank, (kind, value) in enumerate(positive.items())
        for row in columns(
            batch=price.batches,
            hurdle=value * cut,
            microseconds=price.seconds_by_kind[kind] * 1e6,
            kind=kind,
            order=rank,
        )
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
    title = "survival that one more token needs"
    x = ordinal("batch", BATCH, scale=alt.Scale(paddingInner=0.35))  # domain from the rows: contexts share one chart
    stacked, plain = (Plane(x, alt.Y("hurdle:Q", title=title, stack=stack)) for stack in ("zero", None))
    ticks = Plane(x, alt.Y("low:Q", title=title))
    legend = alt.Legend(
        title=None, orient="bottom", direction="horizontal", columns=3, symbolType="square", values=list(kinds)
    )
    colour = by_name("kind", KINDS, legend)  # a kind keeps its colour where another does not occur
    kind_tips, tick_tips = ("kind:N", "microseconds:Q|µs|,.1f"), ("hurdle:Q|survival of the next token|.2f",)
    above = y_at(-14)
    return layers(
        stacked.bars("rows", color=colour, order=alt.Order("order:Q"), tooltip=tips("batch:O", *kind_tips)),
        Plane(x, above).text("totals"),
        Plane(x_at(-12), above).text("heading", style="note", align="right"),
        ticks.bars("survival", y2=alt.Y2("high:Q"), style="tick", tooltip=tips("batch:O", *tick_tips)),
        plain.haloed("name", style="note", align="left", xOffset=-18, dy=-10),
        plain.text("cut", dy=-9, fontWeight=600),
    )
