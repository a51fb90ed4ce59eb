"""The price of one more position, by component."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from specmargin.decisions.plan import deepest
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component, setting_depths, setting_goodput
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import Schedule
from specmargin.figures.curve import MAP_BATCHES, fitting
from specmargin.figures.figure import Figure, rounded, table
from specmargin.figures.words import price_source, setting
from specmargin.prices.work import Component
from specmargin.step import FloatArray, IntArray, Step

# The components of a ledger in six kinds, as many as colours can distinguish.
KINDS = {
    "routed experts": (Component.ROUTED_EXPERTS, Component.ROUTER),
    "attention": (Component.ATTENTION, Component.ATTENTION_PROJECTIONS),
    "dense and shared": (Component.DENSE_FFN, Component.SHARED_EXPERTS),
    "head, sampling": (Component.LM_HEAD, Component.SAMPLING),
    "collectives": (Component.COLLECTIVES,),
    "engine": (Component.LAYERS, Component.ENGINE, Component.LAUNCHES),
}
_KIND_OF = {component: kind for kind, components in KINDS.items() for component in components}


def ledger_figure(
    pricer: Pricer, *, max_depth: int = 8, graph_limit: int | None = None, schedule: Schedule | None = None
) -> Figure:
    """The price of one more draft position in committed tokens, by kind of work, at the schedule's depth of each batch.

    Seconds times current goodput: the survival that the token needs to be worth verifying. Without a schedule, the
    depths are the best ones.
    """
    batches = fitting(pricer, MAP_BATCHES)
    deep = deepest(pricer.scenario, max_depth)
    grid = pricer.grid(batches, deep)
    chosen = setting_depths(grid, graph_limit, schedule)
    goodput = setting_goodput(grid, chosen, schedule)
    seconds = _marginal_by_kind(pricer, batches, chosen)
    total = np.sum(list(seconds.values()), axis=0)
    survival = pricer.scenario.survival.up_to(deep + 1)[chosen]
    return Figure(
        name="ledger",
        title="The price of one more draft token",
        takeaway=_takeaway(pricer.scenario, batches, seconds, goodput),
        source=price_source(pricer),
        tables={
            "rows": [
                {
                    "batch": size,
                    "kind": kind,
                    "order": rank,
                    "hurdle": rounded(max(value[i], 0.0) * goodput[i]),
                    "microseconds": rounded(value[i] * 1e6),
                }
                for rank, (kind, value) in enumerate(seconds.items())
                for i, size in enumerate(batches)
            ],
            "totals": [
                {"batch": size, "hurdle": rounded(total[i] * goodput[i]), "text": f"{total[i] * 1e6:,.0f}"}
                for i, size in enumerate(batches)
            ],
            "heading": [{"text": "µs"}],
            "survival": [{"batch": size, "hurdle": rounded(survival[i])} for i, size in enumerate(batches)],
        },
        draw=_draw,
        shape=(tuple(kind for kind, value in seconds.items() if value.any()),),
    )


def _marginal_by_kind(pricer: Pricer, batches: Sequence[int], depths: IntArray) -> dict[str, FloatArray]:
    step = Step.uniform(batch=np.array(batches, dtype=np.float64), depth=depths, context=pricer.scenario.context)
    now, more = pricer.marginal(step)
    seconds: dict[str, FloatArray] = {kind: np.zeros(len(batches)) for kind in KINDS}
    for line, added in marginal_by_component(now, more, positions=pricer.scenario.layout.sequence_ranks):
        seconds[_KIND_OF[line.component]] = seconds[_KIND_OF[line.component]] + added
    return seconds


def _takeaway(scenario: Scenario, batches: Sequence[int], seconds: dict[str, FloatArray], goodput: FloatArray) -> str:
    total = np.sum(list(seconds.values()), axis=0)

    def price(i: int) -> str:
        most = max(seconds, key=lambda kind: float(seconds[kind][i]))
        return f"{total[i] * 1e6:,.0f} µs at batch {batches[i]} (mostly {most}), or {total[i] * goodput[i]:.2f} tokens"

    return (
        f"{setting(scenario)}: verifying one more token takes {price(0)}; {price(-1)}. "
        "Height: the survival it needs, drafting excluded. Tick: the survival it has."
    )


def _draw(kinds: tuple[str, ...]) -> alt.LayerChart:
    x = alt.X(
        "batch:O",
        title="sequences decoding together (batch)",
        axis=alt.Axis(labelAngle=0),
        scale=alt.Scale(paddingInner=0.35),  # domain from the rows: a new context then needs no new chart
    )
    # Survival never exceeds one: higher prices are clipped, with their number above the bar.
    scale = alt.Scale(domain=[0.0, 1.0], clamp=True)
    y = alt.Y("hurdle:Q", title="price in committed tokens (hurdle)", stack="zero", scale=scale)
    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=list(kinds)),
        legend=alt.Legend(title=None, orient="bottom", direction="horizontal", columns=3, symbolType="square"),
        sort=list(kinds),
    )
    tooltip = ["batch:O", "kind:N", alt.Tooltip("microseconds:Q", format=",.1f", title="µs")]
    bars = table("rows").mark_bar(clip=True).encode(x=x, y=y, color=colour, order="order:Q", tooltip=tooltip)
    plain = alt.Y("hurdle:Q", title="price in committed tokens (hurdle)", scale=scale)
    text = table("totals").mark_text().encode(x=x, y=alt.value(-14), text="text:N")
    heading = table("heading").mark_text(style="note", align="right")
    heading = heading.encode(x=alt.value(-12), y=alt.value(-14), text="text:N")
    survival = table("survival").mark_tick(style="average", orient="horizontal")
    survival = survival.encode(
        x=x, y=plain, tooltip=[alt.Tooltip("hurdle:Q", title="survival of the next token", format=".2f")]
    )
    return alt.LayerChart(layer=[bars, text, heading, survival])
