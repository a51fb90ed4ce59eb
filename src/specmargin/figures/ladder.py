"""What policies gain, by concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt

if TYPE_CHECKING:
    from specmargin.decisions.policies.ladder import LadderRow

_SHOWN = {
    "oracle": "#bbbbbb",
    "ours": "#1b7837",
    "vLLM adaptive verification": "#2166ac",
    "one-width gate": "#92c5de",
    "SGLang ladder": "#b35806",
    "TurboSpec": "#f1a340",
    "Cascade": "#998ec3",
}
_COLUMNS = 2


def ladder_figure(rows: Sequence[tuple[str, LadderRow]]) -> alt.ConcatChart:
    """One panel for each set of prices; zero is the best fixed depth in hindsight."""
    titles = list(dict.fromkeys(title for title, _ in rows))
    panels = [_panel(title, [row for at, row in rows if at == title]) for title in titles]
    heading = alt.TitleParams(
        "Goodput over the best fixed depth in hindsight", subtitle="the same batches of a bank for every policy"
    )
    chart = alt.ConcatChart(concat=panels, columns=_COLUMNS, title=heading)
    styled: alt.ConcatChart = chart.configure_title(anchor="start")
    return styled


def _panel(title: str, rows: Sequence[LadderRow]) -> alt.LayerChart:
    values = [
        {"concurrency": row.concurrency, "gain": round(row.gain, 4), "policy": row.policy}
        for row in rows
        if row.policy in _SHOWN
    ]
    x = alt.X(
        "concurrency:Q",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
        title="sequences decoding together",
    )
    y = alt.Y("gain:Q", axis=alt.Axis(format="+%"), title="gain", scale=alt.Scale(domain=[-0.4, 0.65], clamp=True))
    colour = alt.Color(
        "policy:N", scale=alt.Scale(domain=list(_SHOWN), range=list(_SHOWN.values())), title=None, sort=None
    )
    base = alt.Chart(alt.InlineData(values=values))
    lines = base.mark_line(point=alt.OverlayMarkDef(size=18)).encode(
        x=x, y=y, color=colour, tooltip=["policy:N", "concurrency:Q", "gain:Q"]
    )
    nothing = alt.Chart(alt.InlineData(values=[{"gain": 0}]))
    zero = nothing.mark_rule(color="#333333", strokeDash=[3, 3]).encode(y="gain:Q")
    heading = alt.TitleParams(_wrapped(title), fontSize=11)
    return alt.LayerChart(layer=[zero, lines], width=330, height=220, title=heading)


def _wrapped(title: str) -> list[str]:
    head, _, tail = title.partition(", ")
    return [head, tail] if tail else [head]
