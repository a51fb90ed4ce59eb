"""Several scenarios in one chart: one line per scenario over the same axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from specmargin.decisions.plan import Plan
from specmargin.phrases import say
from specmargin.show.figures.curve import BATCHES, Curve, curve
from specmargin.show.figures.figure import Figure, batch_axis, end_labels, rounded, table
from specmargin.show.figures.theme import DRAFTERS, drafter_colour
from specmargin.show.figures.words import short
from specmargin.sources import weakest
from specmargin.step import FloatArray

Side = tuple[str, Plan]
Compared = tuple[str, Plan, Curve]
_DASHES = ([1, 0], [7, 3], [3, 2], [9, 3, 2, 3], [1, 2], [12, 4])
LABEL = 26  # characters of a label beside a line
PHRASES = {
    "overlay-speedup": ("At batch {batch:,} (vertical line), speed-up: {sides}.",),
    "overlay-speedup:side": ("{label} {value:.2f}×",),
    "overlay-speed": ("At batch {batch:,} (vertical line), speed per user: {sides}. Dotted: without speculation.",),
    "overlay-speed:side": ("{label} {value:,.0f} tokens/s",),
    "overlay:missing": ("{labels}: does not fit",),
}


def overlay_figures(sides: Sequence[Side], *, batch: int) -> tuple[Figure, Figure]:
    """Speed-up and tokens per second of one user by batch, each under its plan's flags.

    `sides`: distinct labels and their plans. `batch`: the marked one. A line ends where its sequences no longer fit.
    """
    return speedup_overlay(sides, batch=batch), speed_overlay(sides, batch=batch)


def speedup_overlay(sides: Sequence[Side], *, batch: int) -> Figure:
    """Speed-up over no speculation on the same machine."""
    curves = _curves(sides, batch)
    rows = [
        {"batch": size, "value": rounded(one.speedup[i]), "depth": int(one.depths[i])} | _names(label, plan, slot)
        for slot, (label, plan, one) in enumerate(curves)
        for i, size in enumerate(one.batches)
        if one.fits[i]
    ]
    return Figure(
        name="overlay-speedup",
        title="Speed-up by batch, compared",
        takeaway=_words("overlay-speedup", _at(curves, batch, lambda one: one.speedup), batch),
        source=_source(sides),
        tables={
            "lines": rows,
            "labels": _labels(rows, log=False),
            "even": [{"value": 1.0}],
            "here": [{"batch": batch}],
        },
        draw=_draw_speedup,
        shape=_shape(sides),
    )


def speed_overlay(sides: Sequence[Side], *, batch: int) -> Figure:
    """Tokens per second of one user (1 / TPOT), with the flags and without speculation."""
    curves = _curves(sides, batch)
    rows = [
        {"batch": size, "value": rounded(1.0 / one.tpot_seconds[i]), "depth": int(one.depths[i])}
        | _names(label, plan, slot)
        for slot, (label, plan, one) in enumerate(curves)
        for i, size in enumerate(one.batches)
        if one.fits[i]
    ]
    at = _at(curves, batch, lambda one: 1.0 / one.tpot_seconds)
    return Figure(
        name="overlay-speed",
        title="Tokens/s per user by batch, compared",
        takeaway=_words("overlay-speed", at, batch),
        source=_source(sides),
        tables={
            "lines": rows,
            "plain": _plain(curves),
            "labels": _labels(rows, log=True),
            "here": [{"batch": batch}],
        },
        draw=_draw_speed,
        shape=_shape(sides),
    )


def _plain(curves: Sequence[Compared]) -> list[dict[str, Any]]:
    """Without speculation, in the colour of the side; sides on the same machine share the line of the first."""
    rows: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for slot, (label, plan, one) in enumerate(curves):
        speeds = tuple(rounded(1.0 / seconds) for seconds in one.grid.no_spec_seconds)
        points = zip(one.batches, speeds, strict=True)
        rows.setdefault(speeds[:2], [{"batch": b, "value": v} | _names(label, plan, slot) for b, v in points])
    return [row for line in rows.values() for row in line]


def _curves(sides: Sequence[Side], batch: int) -> list[Compared]:
    """The marked batch is a point of every curve."""
    return [(label, plan, curve(plan.pricer, plan.setting, sorted({*BATCHES, batch}))) for label, plan in sides]


def _names(label: str, plan: Plan, slot: int) -> dict[str, str]:
    """Colours follow the drafter where no two sides share one (`_shape`), else the place in the comparison."""
    return {"series": label, "drafter": drafter_colour(plan.scenario.drafter.name), "slot": str(slot)}


def _shape(sides: Sequence[Side]) -> tuple[bool, int]:
    """Whether colours are those of drafters, because no two sides share one; and the number of sides."""
    kinds = [drafter_colour(plan.scenario.drafter.name) for _, plan in sides]
    return len(set(kinds)) == len(kinds), len(sides)


def _labels(rows: Sequence[dict[str, Any]], *, log: bool) -> list[dict[str, Any]]:
    """At the last batch of each line."""
    last = {row["series"]: row for row in rows}
    ends = {name: (float(row["batch"]), float(row["value"])) for name, row in last.items()}
    low, high = min((row["value"] for row in rows), default=1.0), max((row["value"] for row in rows), default=2.0)
    gap = 0.35 if log else max(high - min(low, 1.0), 0.1) * 0.06
    placed = end_labels(ends, x="batch", y="value", gap=gap, log=log)
    kept = ("drafter", "slot")
    return [row | {key: last[row["series"]][key] for key in kept} | {"text": _short(row["series"])} for row in placed]


def _short(label: str) -> str:
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"


def _at(curves: Sequence[Compared], batch: int, values: Callable[[Curve], FloatArray]) -> dict[str, float | None]:
    """Every side at the marked batch, not rounded; None where it does not fit."""
    found: dict[str, float | None] = {}
    for label, _, one in curves:
        i = one.batches.index(batch) if batch in one.batches else None
        found[label] = None if i is None or not one.fits[i] else float(values(one)[i])
    return found


def _words(figure: str, at: dict[str, float | None], batch: int) -> str:
    """The best first."""
    known = {label: value for label, value in at.items() if value is not None}
    best_first = sorted(known.items(), key=lambda pair: -pair[1])
    parts = [say(f"{figure}:side", PHRASES, {"label": label, "value": value}) for label, value in best_first]
    missing = ", ".join(label for label in at if label not in known)
    parts.append(say("overlay:missing", PHRASES, {"labels": missing or None}))
    return say(figure, PHRASES, {"batch": batch, "sides": "; ".join(part for part in parts if part)}) or ""


def _source(sides: Sequence[Side]) -> str:
    """The prices of all sides, and the weakest input of any."""
    kinds = " and ".join(dict.fromkeys(plan.scenario.prices.name for _, plan in sides))
    weak = weakest(source for _, plan in sides for source in plan.pricer.sources.values())
    return f"Specmargin, prices: {kinds}; weakest input: {short(weak)}"


def _encoded(by_drafter: bool, count: int) -> tuple[alt.Color, alt.StrokeDash]:
    field, domain = ("drafter", list(DRAFTERS)) if by_drafter else ("slot", [str(i) for i in range(count)])
    dashes = [_DASHES[i % len(_DASHES)] for i in range(count)]
    colour = alt.Color(f"{field}:N", scale=alt.Scale(domain=domain), legend=None)
    dash = alt.StrokeDash("slot:N", scale=alt.Scale(domain=[str(i) for i in range(count)], range=dashes), legend=None)
    return colour, dash


def _tooltip(title: str, form: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N", title=" "),
        alt.Tooltip("batch:Q", title="batch"),
        alt.Tooltip("depth:Q", title="draft"),
        alt.Tooltip("value:Q", title=title, format=form),
    ]


def _draw_speedup(by_drafter: bool, count: int) -> alt.LayerChart:
    y = alt.Y("value:Q", title="speed-up over no speculation (×)", scale=alt.Scale(zero=False))
    even = table("even").mark_rule(style="reference").encode(y=y)
    return alt.LayerChart(layer=[even, *_lines(y, by_drafter, count, _tooltip("speed-up", ".2f"))])


def _draw_speed(by_drafter: bool, count: int) -> alt.LayerChart:
    y = alt.Y("value:Q", title="tokens/s per user (1 / TPOT)", scale=alt.Scale(type="log", nice=False, padding=12))
    colour, _ = _encoded(by_drafter, count)
    plain = (
        table("plain")
        .mark_line(style="no-spec-line")
        .encode(x=batch_axis(), y=y, color=colour, detail=alt.Detail("slot:N"))
    )
    return alt.LayerChart(layer=[plain, *_lines(y, by_drafter, count, _tooltip("tokens/s", ",.0f"))])


def _lines(y: alt.Y, by_drafter: bool, count: int, tooltip: list[alt.Tooltip]) -> list[alt.Chart]:
    x = batch_axis()
    colour, dash = _encoded(by_drafter, count)
    here = table("here").mark_rule(style="marker").encode(x=x)
    lines = table("lines").mark_line().encode(x=x, y=y, color=colour, strokeDash=dash, detail=alt.Detail("slot:N"))
    points = table("lines").mark_point(size=22).encode(x=x, y=y, color=colour, tooltip=tooltip)
    halo = table("labels").mark_text(style="label-halo").encode(x=x, y=y, text=alt.Text("text:N"))
    labels = table("labels").mark_text(style="label").encode(x=x, y=y, text=alt.Text("text:N"), color=colour)
    return [here, lines, points, halo, labels]


def overlay_structures(by_drafter: bool, count: int) -> dict[str, dict[str, Any]]:
    """The charts without rows, by key: for a page that makes the rows itself."""
    drawn = {"overlay-speedup": _draw_speedup, "overlay-speed": _draw_speed}
    empty = [
        Figure(name=name, title="", takeaway="", source="", tables={}, draw=draw, shape=(by_drafter, count))
        for name, draw in drawn.items()
    ]
    return {figure.key: figure.structure for figure in empty}
