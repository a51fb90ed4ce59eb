"""Several scenarios in one chart: one line per scenario over the same axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from specmargin.decisions.plan import Plan
from specmargin.phrases import say
from specmargin.show.figures.curve import BATCHES, Curve, curve
from specmargin.show.figures.figure import Draw, Figure, end_labels, rounded
from specmargin.show.figures.marks import Layers, Plane, batch_axis, by_name, dashed, layers, tips
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


def overlay_figure(name: str, sides: Sequence[Side], *, batch: int) -> Figure:
    """One of `OVERLAYS` by batch, each side under its plan's flags, on its own machine.

    `sides`: distinct labels and their plans. `batch`: the marked one. A line ends where its sequences no longer fit.
    """
    overlay = OVERLAYS[name]
    batches = sorted({*BATCHES, batch})  # the marked batch is a point of every curve
    curves = [(label, plan, curve(plan.pricer, plan.setting, batches)) for label, plan in sides]
    rows = [
        {"batch": size, "value": rounded(overlay.values(one)[i]), "depth": int(one.depths[i])}
        | _names(label, plan, slot)
        for slot, (label, plan, one) in enumerate(curves)
        for i, size in enumerate(one.batches)
        if one.fits[i]
    ]
    base = {"plain": _plain(curves)} if overlay.log else {"even": [{"value": 1.0}]}
    return Figure(
        name=name,
        title=overlay.title,
        takeaway=_words(name, _at(curves, batch, overlay.values), batch),
        source=_source(sides),
        tables={"lines": rows, **base, "labels": _labels(rows, log=overlay.log), "here": [{"batch": batch}]},
        draw=overlay.draw,
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


def _colour(by_drafter: bool, count: int) -> alt.Color:
    return by_name("drafter", DRAFTERS) if by_drafter else by_name("slot", map(str, range(count)))


def _draw_speedup(by_drafter: bool, count: int) -> alt.LayerChart:
    y = alt.Y("value:Q", title="speed-up over no speculation (×)", scale=alt.Scale(zero=False))
    on = Plane(batch_axis(), y)
    return layers(on.level("even"), _lines(on, by_drafter, count, "value:Q|speed-up|.2f"))


def _draw_speed(by_drafter: bool, count: int) -> alt.LayerChart:
    y = alt.Y("value:Q", title="tokens/s per user (1 / TPOT)", scale=alt.Scale(type="log", nice=False, padding=12))
    on = Plane(batch_axis(), y)
    plain = on.line("plain", style="no-spec-line", color=_colour(by_drafter, count), detail=alt.Detail("slot:N"))
    return layers(plain, _lines(on, by_drafter, count, "value:Q|tokens/s|,.0f"))


def _lines(on: Plane, by_drafter: bool, count: int, value: str) -> Layers:
    colour = _colour(by_drafter, count)
    dash = dashed("slot", {str(i): _DASHES[i % len(_DASHES)] for i in range(count)})
    tooltip = tips("series:N| ", "batch:Q", "depth:Q|draft", value)
    return [
        on.at("here"),
        *on.traced("lines", color=colour, strokeDash=dash, detail=alt.Detail("slot:N"), size=22, tooltip=tooltip),
        *on.haloed("labels", style="label", color=colour),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    title: str
    values: Callable[[Curve], FloatArray]
    log: bool  # with the speed without speculation, and not a line at 1
    draw: Draw


OVERLAYS = {
    "overlay-speedup": Overlay(
        title="Speed-up by batch, compared", values=lambda one: one.speedup, log=False, draw=_draw_speedup
    ),
    "overlay-speed": Overlay(
        title="Tokens/s per user by batch, compared",
        values=lambda one: 1.0 / one.tpot_seconds,
        log=True,
        draw=_draw_speed,
    ),
}


def overlay_structures(by_drafter: bool, count: int) -> dict[str, dict[str, Any]]:
    """The charts without rows, by key: for a page that makes the rows itself."""
    empty = [
        Figure(name=name, title="", takeaway="", source="", tables={}, draw=overlay.draw, shape=(by_drafter, count))
        for name, overlay in OVERLAYS.items()
    ]
    return {figure.key: figure.structure for figure in empty}
