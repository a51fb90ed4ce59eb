"""Throughput of a GPU over the speed of each user, with and without speculation, and what others measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.phrases import say
from specmargin.prices.measured_point import MeasuredPoint
from specmargin.show.figures.curve import BATCHES, curve
from specmargin.show.figures.figure import Figure, rounded
from specmargin.show.figures.marks import Plane, by_name, layers, tips
from specmargin.show.figures.theme import DRAFTERS, NO_SPECULATION, drafter_colour
from specmargin.show.figures.words import short
from specmargin.sources import weakest

TITLE = "Throughput per GPU over speed per user"
_NUMBERED = (1, 4, 16, 64, 256)  # batches whose number is beside their point
SIDES = ("with speculation", NO_SPECULATION)
PHRASES = {
    "pareto": (
        "{fits!}At batch {batch:,}: {user:,.0f} tokens/s per user and {gpu:,.0f} per GPU, {plain_user:,.0f} and "
        "{plain_gpu:,.0f} without. Points along a line are batches[; rings were measured ({measured})].",
        "Without speculation at batch {batch:,}: {plain_user:,.0f} tokens/s per user and {plain_gpu:,.0f} per GPU; "
        "with drafts no sequence fits at this batch.",
    )
}


def pareto_figure(pricer: Pricer, setting: Setting, *, batch: int, measured: Sequence[MeasuredPoint] = ()) -> Figure:
    """`batch`: named in the takeaway, and a point of both lines where it fits. `measured`: on this machine."""
    scenario = pricer.scenario
    gpus, colour, drawn = (
        scenario.layout.gpus,
        drafter_colour(scenario.drafter.name),
        curve(pricer, setting, sorted({*BATCHES, batch})),
    )
    plain = drawn.grid.no_spec_seconds
    rows = [
        _row(SIDES[0], size, float(drawn.tpot_seconds[i]), gpus, int(drawn.depths[i])) | {"colour": colour}
        for i, size in enumerate(drawn.batches)
        if drawn.fits[i]
    ]
    rows += [
        _row(SIDES[1], size, float(plain[i]), gpus, 0) | {"colour": NO_SPECULATION}
        for i, size in enumerate(drawn.batches)
    ]
    first = {row["side"]: row for row in reversed(rows)}
    return Figure(
        name="pareto",
        title=TITLE,
        takeaway=_takeaway(rows, batch, measured),
        source=f"Specmargin, prices: {scenario.prices.name}; weakest input: {short(weakest(pricer.sources.values()))}",
        tables={
            "lines": rows,
            "labels": list(first.values()),
            "measured": [row for point in measured for row in measured_rows(point)],
        },
        draw=_draw,
    )


def _row(side: str, batch: int, seconds: float, gpus: int, depth: int) -> dict[str, Any]:
    speeds = {"user": rounded(1.0 / seconds), "gpu": rounded(batch / seconds / gpus)}
    return {"side": side, "batch": batch, "depth": depth, **speeds}


def measured_rows(point: MeasuredPoint) -> list[dict[str, Any]]:
    """Both sides of a measurement, as far as they were measured; tokens per second are of all sequences and GPUs."""
    sides = zip(SIDES, (point.speculative, point.plain), (point.depth, 0), strict=True)
    what = {"engine": point.engine, "date": point.date, "source": point.source, "context": point.context}
    colours = {SIDES[0]: drafter_colour(point.drafter or NO_SPECULATION), SIDES[1]: NO_SPECULATION}
    return [
        _row(side, point.batch, point.batch / speed, point.gpus, depth) | what | {"colour": colours[side]}
        for side, speed, depth in sides
        if speed is not None
    ]


def _takeaway(rows: Sequence[dict[str, Any]], batch: int, measured: Sequence[MeasuredPoint]) -> str:
    at = {row["side"]: row for row in rows if row["batch"] == batch}
    drafting, plain = at.get(SIDES[0]), at.get(SIDES[1], rows[-1])
    values = {
        "fits": drafting is not None,
        "batch": plain["batch"],
        "user": None if drafting is None else drafting["user"],
        "gpu": None if drafting is None else drafting["gpu"],
        "plain_user": plain["user"],
        "plain_gpu": plain["gpu"],
        "measured": ", ".join(dict.fromkeys(point.engine for point in measured)) or None,
    }
    return say("pareto", PHRASES, values) or ""


def _draw() -> alt.LayerChart:
    x = alt.X("user:Q", title="tokens/s per user", scale=alt.Scale(type="log", nice=False, padding=12))
    y = alt.Y("gpu:Q", title="tokens/s per GPU", scale=alt.Scale(type="log", nice=False, padding=12))
    on = Plane(x, y)
    colour = by_name("colour", DRAFTERS)
    speeds = ("user:Q|tokens/s per user|,.0f", "gpu:Q|tokens/s per GPU|,.0f")
    tooltip = tips("side:N| ", "batch:Q", "depth:Q|draft", *speeds)
    seen = tips("side:N|measured", "batch:Q", "depth:Q|draft", *speeds, "engine:N", "date:N", "context:Q", "source:N")
    rings = on.points("measured", color=colour, size=90, filled=False, strokeWidth=2, tooltip=seen)
    sizes = on.text("lines", "batch:Q", style="note", dx=-9, dy=7, align="right")
    return layers(
        on.traced("lines", color=colour, order=alt.Order("batch:Q"), size=26, tooltip=tooltip),
        sizes.transform_filter(f"indexof({list(_NUMBERED)}, datum.batch) >= 0"),
        rings,
        on.haloed("labels", "side:N", style="label", color=colour, dx=6, dy=12),
    )


def pareto_structure() -> dict[str, dict[str, Any]]:
    """The chart without rows, for a page that makes the rows itself."""
    empty = Figure(name="pareto", title="", takeaway="", source="", tables={}, draw=_draw)
    return {empty.key: empty.structure}
