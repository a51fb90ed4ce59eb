"""Simulated serving: load over time, policies side by side, goodput against latency. From plain records to figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import altair as alt

from specmargin.show.figures.figure import Figure, end_labels, rounded
from specmargin.show.figures.marks import Layers, Plane, by_name, dashed, layers, tips
from specmargin.show.figures.theme import POLICIES, policy_colour

Record = Mapping[str, Any]
SIMULATOR = "Specmargin's simulator (modelled)"  # the source of what it made
_WIDTH = 640
_DASHES = {"none": [2, 2], "controller": [6, 2], "off": [1, 2], "oracle": [1, 3], "fixed": [8, 3, 2, 3]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The texts of a figure; records do not tell where they come from."""

    title: str
    takeaway: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy: `timeline` of `hour, batch, depth, tokens_per_second`, `hourly` of `hour, tpot_p50, ttft_p50`."""

    policy: str
    timeline: Sequence[Record]
    hourly: Sequence[Record]


def day_figure(words: Words, runs: Sequence[Run], *, hours: float | None = None) -> Figure:
    """Load, depth, speed, TPOT and TTFT over time; the load is that of the last run."""
    last = hours or max((float(row["hour"]) for run in runs for row in run.timeline), default=1.0)
    drafting = [run for run in runs if any(row["depth"] for row in run.timeline)]
    return Figure(
        name="day",
        **asdict(words),
        tables={
            "load": [{"hour": rounded(row["hour"], 5), "batch": rounded(row["batch"], 3)} for row in runs[-1].timeline],
            "depth": _lines(drafting, "timeline", "depth", 1.0),
            "speed": _lines(runs, "timeline", "tokens_per_second", 1.0),
            "tpot": _lines(runs, "hourly", "tpot_p50", 1e3),
            "ttft": _lines(runs, "hourly", "ttft_p50", 1e3),
        },
        draw=_draw_day,
        shape=(tuple(run.policy for run in runs), rounded(last)),
    )


def _lines(runs: Sequence[Run], part: str, key: str, scale: float) -> list[dict[str, Any]]:
    return [
        {"hour": rounded(row["hour"], 5), "value": rounded(scale * float(row[key]), 3)} | _named(run.policy)
        for run in runs
        for row in getattr(run, part)
    ]


def _named(policy: str) -> dict[str, str]:
    return {"policy": policy, "colour": policy_colour(policy)}


_DAY = {
    "depth": ["draft tokens", "verified"],
    "speed": ["tokens/s", "while busy"],
    "tpot": ["TPOT, ms", "(median)"],
    "ttft": ["TTFT, ms", "(median)"],
}


def _draw_day(policies: tuple[str, ...], hours: float) -> alt.VConcatChart:
    scale = alt.Scale(domain=[0, hours], nice=False)
    bare = alt.X("hour:Q", title=None, scale=scale, axis=alt.Axis(tickCount=12, labels=False))
    named = alt.X("hour:Q", title="hour", scale=scale, axis=alt.Axis(tickCount=12))
    load = Plane(bare, _small_y("batch:Q", ["sequences", "decoding"])).area("load", style="area-quiet")
    panels = [
        _panel(name, title, named if name == "ttft" else bare, policies, legend=name == "ttft")
        for name, title in _DAY.items()
    ]
    apart = alt.Resolve(scale=alt.ScaleResolveMap(color="independent", strokeDash="independent"))
    return alt.VConcatChart(
        vconcat=[load.properties(width=_WIDTH, height=70), *panels], spacing=8, resolve=apart
    )  # one legend, below the last panel


def _small_y(field: str, title: list[str]) -> alt.Y:
    axis = alt.Axis(tickCount=4, labelExpr="datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')")
    return alt.Y(field, title=title, axis=axis, scale=alt.Scale(zero=True))


def _panel(name: str, title: list[str], x: alt.X, policies: tuple[str, ...], *, legend: bool) -> alt.Chart:
    colour, dash = policy_encoding(_legend(policies) if legend else None)
    y = _small_y("value:Q", title)
    if name == "ttft":  # from a prompt's own time to minutes in a queue
        axis = alt.Axis(tickCount=3, labelExpr="format(datum.value, '~s')")
        y = alt.Y("value:Q", title=title, axis=axis, scale=alt.Scale(type="log", padding=6))
    line = Plane(x, y).line(
        name,
        strokeWidth=1.6,
        strokeJoin="round",
        interpolate="monotone",
        color=colour,
        strokeDash=dash,
        detail=alt.Detail("policy:N"),
        tooltip=tips("policy:N", "hour:Q||.1f", f"value:Q|{name}|.3~g"),
    )
    chart: alt.Chart = line.properties(width=_WIDTH, height=80)
    return chart


def policy_encoding(legend: alt.Legend | None = None) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of each policy, the same in every figure."""
    dashes = {name: _DASHES.get(name, [1, 0]) for name in POLICIES}
    return by_name("colour", POLICIES, legend), dashed("colour", dashes, legend)


def _legend(policies: Sequence[str]) -> alt.Legend:
    """Policies that share another's colour are called by their own name."""
    shown = list(dict.fromkeys(map(policy_colour, policies)))
    names = {policy_colour(name): name for name in policies if policy_colour(name) != name.partition(":")[0]}
    label = alt.Undefined if not names else f"{json.dumps(names)}[datum.label] || datum.label"
    return alt.Legend(
        title=None,
        orient="bottom",
        values=shown,
        symbolType="stroke",
        symbolSize=260,
        columns=4,
        labelExpr=label,
    )


# --- goodput against latency ---


def pareto_figure(words: Words, rows: Sequence[Record]) -> Figure:
    """Goodput against the time between tokens, one line per policy over its loads.

    A record: `policy, load, goodput_tokens_per_second, tpot_seconds` (the median).
    """
    points = [
        {
            "load": row["load"],
            "goodput": rounded(row["goodput_tokens_per_second"]),
            "tpot": rounded(1e3 * float(row["tpot_seconds"])),
        }
        | _named(str(row["policy"]))
        for row in rows
    ]
    return Figure(
        name="loads",
        **asdict(words),
        tables={"points": points, "names": _names(points, by="load", x="tpot", y="goodput")},
        draw=_draw_pareto,
    )


def _names(rows: Sequence[Record], *, by: str, x: str, y: str) -> list[dict[str, Any]]:
    """The name of each line beside its last point, moved apart where names would touch: fixed depths share a colour."""
    last: dict[str, Record] = {}
    for row in sorted(rows, key=lambda row: float(row[by])):
        last[str(row["policy"])] = row
    ends = {policy: (float(row[x]), float(row[y])) for policy, row in last.items()}
    furthest, highest = (max((float(row[axis]) for row in rows), default=1.0) for axis in (x, y))
    placed = end_labels(ends, x=x, y=y, gap=0.065 * highest, reach=0.15 * furthest)
    return [row | _named(str(row["series"])) for row in placed]


def _named_lines(on: Plane, name: str, names: str, *, tooltip: Sequence[alt.Tooltip], **options: Any) -> Layers:
    """One line per policy, with its points and its name."""
    colour, dash = policy_encoding()
    return [
        on.line(name, strokeWidth=1.6, color=colour, strokeDash=dash, detail=alt.Detail("policy:N"), **options),
        on.points(name, size=36, color=colour, tooltip=tooltip),
        *on.haloed(names, "policy:N", style="label", color=colour),
    ]


def _draw_pareto() -> alt.LayerChart:
    x = alt.X("tpot:Q", title="median time between tokens, ms", scale=alt.Scale(zero=False, nice=True))
    axis = alt.Axis(labelExpr="format(datum.value, '~s')")
    on = Plane(x, alt.Y("goodput:Q", title="goodput, tokens/s", axis=axis, scale=alt.Scale(zero=True)))
    tooltip = tips("policy:N", "load:Q", "goodput:Q||,.0f", "tpot:Q||.2f")
    lines = _named_lines(on, "points", "names", tooltip=tooltip, order=alt.Order("load:Q"))
    return layers(lines, width=_WIDTH, height=380)


# --- the largest load within targets ---


def capacity_figure(words: Words, rows: Sequence[Record], *, unit: str) -> Figure:
    """Latency as a share of its target by load, one line per policy through every load that was tried.

    A record: `policy, load, seed, share` (1: the target).
    """
    most = 2.0  # beyond twice the target the exact latency says nothing
    points = [
        {"load": rounded(row["load"], 4), "share": rounded(min(float(row["share"]), most)), "seed": row["seed"]}
        | _named(str(row["policy"]))
        for row in rows
    ]
    tables = {"points": points, "target": [{"share": 1.0}], "names": _names(points, by="load", x="load", y="share")}
    return Figure(name="capacity", **asdict(words), tables=tables, draw=_draw_capacity, shape=(unit,))


def _draw_capacity(unit: str) -> alt.LayerChart:
    x = alt.X("load:Q", title=unit, scale=alt.Scale(zero=True, nice=True))
    y = alt.Y("share:Q", title="latency, share of its target", axis=alt.Axis(format="%"), scale=alt.Scale(zero=True))
    on = Plane(x, y)
    tooltip = tips("policy:N", "load:Q||.3r", "share:Q||.0%", "seed:Q")
    lines = _named_lines(on, "points", "names", tooltip=tooltip, order=alt.Order("load:Q"))
    return layers(on.level("target"), lines, width=_WIDTH, height=320)


# --- policies side by side ---


_PANELS = (
    ("busy_tokens_per_second", "tokens/s while busy", ",.0f", 1.0),
    ("tpot_p50_seconds", "median time between tokens (TPOT), ms", ",.3r", 1e3),
    ("ttft_p50_seconds", "median time to the first token (TTFT), ms", ",.3r", 1e3),
)


def policies_figure(words: Words, rows: Sequence[Record], hourly: Sequence[Record] = ()) -> Figure:
    """Policies side by side, one panel per metric, in one order: the shortest time between tokens first.

    A record: `policy` and the keys of the panels. `hourly`: records `policy, hour, tpot_p50, ttft_p50`, drawn below.
    """
    tables: dict[str, list[dict[str, Any]]] = {
        key: [
            {"value": rounded(scale * float(row[key]))} | _named(str(row["policy"]))
            for row in rows
            if row[key] is not None
        ]
        for key, _, _, scale in _PANELS
    }
    for name in ("tpot", "ttft") if hourly else ():
        tables[name] = [
            {"hour": int(row["hour"]), "value": rounded(1e3 * float(row[f"{name}_p50"]))} | _named(str(row["policy"]))
            for row in hourly
        ]
        tables[f"{name}_names"] = _names(tables[name], by="hour", x="hour", y="value")
    by_time = sorted(rows, key=lambda row: (row["tpot_p50_seconds"] is None, row["tpot_p50_seconds"] or 0.0))
    return Figure(
        name="policies",
        **asdict(words),
        tables=tables,
        draw=_draw_policies,
        shape=(tuple(dict.fromkeys(str(row["policy"]) for row in by_time)), bool(hourly)),
    )


def _draw_policies(policies: tuple[str, ...], hourly: bool) -> alt.HConcatChart | alt.VConcatChart:
    bars = alt.HConcatChart(hconcat=[_bars(policies, *panel[:3]) for panel in _PANELS], spacing=18)
    if not hourly:
        return bars
    lines = [_hours(name, title) for name, title in (("tpot", "median TPOT, ms"), ("ttft", "median TTFT, ms"))]
    apart = alt.Resolve(scale=alt.ScaleResolveMap(color="independent", strokeDash="independent"))
    return alt.VConcatChart(vconcat=[bars, alt.HConcatChart(hconcat=lines, spacing=40)], spacing=24, resolve=apart)


def _bars(policies: tuple[str, ...], key: str, title: str, form: str) -> alt.LayerChart:
    y = alt.Y("policy:N", sort=list(policies), title=None, axis=alt.Axis(labelLimit=140))
    axis = alt.Axis(tickCount=4, labelExpr="format(datum.value, '~s')")
    x = alt.X("value:Q", title=title, axis=axis, scale=alt.Scale(zero=True))
    on, (colour, _) = Plane(x, y), policy_encoding()
    return layers(
        on.bars(key, size=15, color=colour, tooltip=tips("policy:N", "value:Q||,.4~g")),
        on.text(key, "value:Q", form, style="note", align="left", dx=4),
        width=210,
        height=alt.Step(24),
    )


def _hours(name: str, title: str) -> alt.LayerChart:
    """By hour of arrival, one line per policy."""
    x = alt.X("hour:Q", title="hour of arrival", axis=alt.Axis(tickCount=12))
    on = Plane(x, alt.Y("value:Q", title=title, scale=alt.Scale(zero=True)))
    tooltip = tips("policy:N", "hour:Q", "value:Q||,.4~g")
    return layers(_named_lines(on, name, f"{name}_names", tooltip=tooltip), width=330, height=240)
