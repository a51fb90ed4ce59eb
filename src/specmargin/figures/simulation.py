"""Simulated serving: load over time, policies side by side, goodput against latency. From plain records to charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

_WIDTH = 640
Record = Mapping[str, Any]


def day_figure(
    title: str, timeline: Sequence[Record], *, subtitle: str = "", hours: float | None = None
) -> alt.VConcatChart:
    """Load and depth over time. A record: `hour, batch, depth, tokens_per_second, busy_share` and whatever else."""
    values = [{key: round(float(row[key]), 5) for key in _DAY_KEYS} for row in timeline]
    last = hours or max((value["hour"] for value in values), default=1.0)
    scale = alt.Scale(domain=[0, last], nice=False)
    x = alt.X("hour:Q", title=None, scale=scale, axis=alt.Axis(tickCount=12, labels=False))
    below = alt.X("hour:Q", title="hour", scale=scale, axis=alt.Axis(tickCount=12))
    load = _line(values, x, "batch", ["sequences", "decoding"], "area-one")
    depth = _line(values, x, "depth", ["draft tokens", "verified"], "line-three", form="~g")
    speed = _line(values, x, "tokens_per_second", ["tokens/s", "while busy"], "line-two")
    busy = _line(values, below, "busy_share", ["busy"], "area-quiet", form=".0%")
    heading = alt.TitleParams(title, subtitle=[subtitle] if subtitle else [], anchor="start")
    return alt.VConcatChart(vconcat=[load, depth, speed, busy], title=heading, spacing=8)


_DAY_KEYS = ("hour", "batch", "depth", "tokens_per_second", "busy_share")


def _line(
    values: list[dict[str, float]],
    x: alt.X,
    name: str,
    title: list[str],
    style: str,
    *,
    form: str = "~s",
) -> alt.Chart:
    chart = alt.Chart(alt.InlineData(values=values), width=_WIDTH, height=90)
    marked = chart.mark_area(style=style) if style.startswith("area") else chart.mark_line(style=style)
    encoded: alt.Chart = marked.encode(
        x=x,
        y=alt.Y(
            f"{name}:Q",
            title=title,
            axis=alt.Axis(tickCount=4, labelExpr=f"format(datum.value, '{form}')"),
            scale=alt.Scale(zero=True),
        ),
        tooltip=[alt.Tooltip("hour:Q", format=".2f"), alt.Tooltip(f"{name}:Q", format=".3~g")],
    )
    return encoded


def pareto_figure(title: str, rows: Sequence[Record], *, subtitle: str = "") -> alt.LayerChart:
    """Goodput against the time between tokens, one line per policy over its loads. A record: `policy, load,
    goodput_tokens_per_second, tpot_seconds` (the median)."""
    names = list(dict.fromkeys(str(row["policy"]) for row in rows))
    values = [
        {
            "policy": row["policy"],
            "load": row["load"],
            "goodput": float(row["goodput_tokens_per_second"]),
            "tpot": 1e3 * float(row["tpot_seconds"]),
        }
        for row in rows
    ]
    base = alt.Chart(alt.InlineData(values=values), width=_WIDTH, height=380).encode(
        x=alt.X("tpot:Q", title="median time between tokens, ms", scale=alt.Scale(zero=False, nice=True)),
        y=alt.Y(
            "goodput:Q",
            title="goodput, tokens/s",
            axis=alt.Axis(labelExpr="format(datum.value, '~s')"),
            scale=alt.Scale(zero=True),
        ),
        color=alt.Color("policy:N", title=None, sort=None, scale=alt.Scale(domain=names)),
    )
    lines = base.mark_line(strokeWidth=1.6).encode(order="load:Q", detail="policy:N")
    points = base.mark_point(filled=True, size=46, opacity=1.0).encode(
        tooltip=["policy:N", "load:Q", alt.Tooltip("goodput:Q", format=",.0f"), alt.Tooltip("tpot:Q", format=".2f")]
    )
    heading = alt.TitleParams(title, subtitle=[subtitle] if subtitle else [], anchor="start")
    return alt.LayerChart(layer=[lines, points], title=heading)


_PANELS = (
    ("busy_tokens_per_second", "tokens/s while busy", ",.0f", 1.0),
    ("tpot_p50_seconds", "median time between tokens, ms", ",.3r", 1e3),
    ("ttft_p50_seconds", "median time to the first token, ms", ",.3r", 1e3),
)


def policies_figure(title: str, rows: Sequence[Record], *, subtitle: str = "") -> alt.HConcatChart:
    """Policies side by side, one panel per metric, best at the top. A record: `policy` and the keys of the panels."""
    names = list(dict.fromkeys(str(row["policy"]) for row in rows))
    panels = [_bars(rows, names, *panel) for panel in _PANELS if all(panel[0] in row for row in rows)]
    heading = alt.TitleParams(title, subtitle=[subtitle] if subtitle else [], anchor="start")
    return alt.HConcatChart(hconcat=panels, title=heading, spacing=18)


def _bars(rows: Sequence[Record], names: list[str], key: str, title: str, form: str, scale: float) -> alt.LayerChart:
    values = [{"policy": row["policy"], "value": scale * float(row[key])} for row in rows if row[key] is not None]
    best_first = sorted(
        values, key=lambda value: value["value"], reverse=scale == 1.0
    )  # higher throughput and lower times first
    most = max((value["value"] for value in values), default=1.0)
    base = alt.Chart(alt.InlineData(values=values), width=220, height=alt.Step(24)).encode(
        y=alt.Y("policy:N", sort=[value["policy"] for value in best_first], title=None, axis=alt.Axis(labelLimit=140)),
        x=alt.X("value:Q", title=title, axis=alt.Axis(tickCount=4), scale=alt.Scale(domain=[0, 1.22 * most])),
    )
    bars = base.mark_bar(size=15).encode(
        color=alt.Color("policy:N", legend=None, scale=alt.Scale(domain=names)),
        tooltip=["policy:N", alt.Tooltip("value:Q", format=",.4~g")],
    )
    text = base.mark_text(align="left", dx=4, fontSize=11).encode(text=alt.Text("value:Q", format=form))
    return alt.LayerChart(layer=[bars, text])


def compared_figure(
    title: str, rows: Sequence[Record], hourly: Sequence[Record], *, subtitle: str = ""
) -> alt.VConcatChart:
    """Policies side by side, and their median time between tokens by hour below."""
    bars, lines = policies_figure("", rows), hours_figure("", hourly)
    heading = alt.TitleParams(title, subtitle=[subtitle] if subtitle else [], anchor="start")
    apart = alt.Resolve(scale=alt.ScaleResolveMap(color="independent"))  # or the bars' missing legend hides the lines'
    return alt.VConcatChart(vconcat=[bars, lines], title=heading, spacing=24, resolve=apart)


def hours_figure(title: str, rows: Sequence[Record], *, subtitle: str = "") -> alt.LayerChart:
    """Median time between tokens by hour, one line per policy. A record: `policy, hour, tpot_p50`."""
    names = list(dict.fromkeys(str(row["policy"]) for row in rows))
    values = [{"policy": r["policy"], "hour": int(r["hour"]), "tpot": 1e3 * float(r["tpot_p50"])} for r in rows]
    base = alt.Chart(alt.InlineData(values=values), width=_WIDTH, height=300).encode(
        x=alt.X("hour:Q", title="hour of arrival", axis=alt.Axis(tickCount=12)),
        y=alt.Y("tpot:Q", title="median time between tokens, ms", scale=alt.Scale(zero=True)),
        color=alt.Color("policy:N", title=None, sort=None, scale=alt.Scale(domain=names)),
    )
    heading = alt.TitleParams(title, subtitle=[subtitle] if subtitle else [], anchor="start")
    lines = base.mark_line(strokeWidth=1.6)
    return alt.LayerChart(layer=[lines, base.mark_point(filled=True, size=22, opacity=1.0)], title=heading)
