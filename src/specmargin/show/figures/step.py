"""One step by component: what `specmargin price` prints, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from specmargin.decisions.pricer import Pricer
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.show.figures.figure import Figure, rounded
from specmargin.show.figures.marks import Plane, by_name, layers, tips
from specmargin.show.figures.words import described, step_source
from specmargin.words import duration

_VERIFY, _DRAFT = "verify step", "drafting"


def step_figure(
    pricer: Pricer,
    *,
    batch: int,
    depth: int,
    components: Sequence[tuple[ComponentPrice, float]],
    drafting: StepPrice | None,
    verdict: str,
) -> Figure:
    """Seconds by component of a step and of its drafting, and what one more position adds to each."""
    rows = [_row(line, _VERIFY) | _added(added) for line, added in components if line.seconds > 0.0 or added]
    drafted = [] if drafting is None else drafting.components
    rows += [_row(line, _DRAFT) for line in drafted if line.seconds > 0.0]
    rows.sort(key=lambda row: (row["part"] == _DRAFT, -row["milliseconds"]))
    drafting_text = "" if drafting is None else f" Drafting takes {duration(float(drafting.total_seconds))}."
    return Figure(
        name="step",
        title=f"A step of {batch} sequences × {depth + 1} positions",
        takeaway=f"{described(pricer.scenario)}. {verdict}{drafting_text}",
        source=step_source(pricer),
        tables={"rows": rows},
        draw=_draw,
        shape=(tuple(row["name"] for row in rows), tuple(dict.fromkeys(row["part"] for row in rows))),
    )


def _row(line: ComponentPrice, part: str) -> dict[str, Any]:
    """The two parts name their components apart, because both have attention, a head and so on."""
    name = str(line.component) if part == _VERIFY else f"draft: {line.component}"
    return {
        "name": name,
        "part": part,
        "milliseconds": rounded(float(line.seconds) * 1e3),
        "text": duration(float(line.seconds)),
        "bound": str(line.resource()),
    }


def _added(seconds: float) -> dict[str, Any]:
    return {"microseconds": rounded(seconds * 1e6), "added": duration(seconds)}


def _draw(names: tuple[str, ...], parts: tuple[str, ...]) -> alt.HConcatChart:
    y = alt.Y("name:N", title=None, scale=alt.Scale(domain=list(names)), axis=alt.Axis(labelLimit=170))
    bare = alt.Y("name:N", title=None, scale=alt.Scale(domain=list(names)), axis=None)
    whole = _panel(y, parts, "milliseconds", "text", "time in the step, ms")
    more = _panel(bare, parts, "microseconds", "added", "one more position adds, µs")
    return alt.HConcatChart(hconcat=[whole, more], spacing=64)


def _panel(y: alt.Y, parts: tuple[str, ...], field: str, text: str, title: str) -> alt.LayerChart:
    on = Plane(alt.X(f"{field}:Q", title=title, axis=alt.Axis(tickCount=4), scale=alt.Scale(zero=True)), y)
    legend = alt.Legend(title=None, orient="bottom", symbolType="square") if len(parts) > 1 else None
    colour = by_name("part", (_VERIFY, _DRAFT), legend)
    bars = on.bars("rows", size=15, color=colour, tooltip=tips("name:N", f"{text}:N|time", "bound:N|bound by"))
    values = on.text("rows", f"{text}:N", style="note", align="left", dx=4)
    known = [mark.transform_filter(f"isValid(datum.{field})") for mark in (bars, values)]
    return layers(known, width=300, height=alt.Step(24))
