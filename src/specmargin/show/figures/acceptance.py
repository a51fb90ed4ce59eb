"""Accepted tokens, survival, and calibration of a drafter's confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.show.figures.figure import Figure, cell_texts, end_labels, rounded, table
from specmargin.show.figures.theme import DRAFTERS
from specmargin.step import BoolArray, FloatArray

_BINS = 15
_MOST_CATEGORIES = 6


def histogram_figure(share_by_accepted: Sequence[float], *, drafter: str, source: str) -> Figure:
    """Share of rounds by accepted draft tokens."""
    mean = float(np.dot(np.arange(len(share_by_accepted)), share_by_accepted))
    nothing, everything = share_by_accepted[0], share_by_accepted[-1]
    deepest = len(share_by_accepted) - 1
    return Figure(
        name="histogram",
        title="Accepted draft tokens per round",
        takeaway=(
            f"{drafter}: {mean:.2f} of {deepest} draft tokens are accepted on average, with a wide spread: "
            f"{nothing:.0%} of rounds keep none and {everything:.0%} keep all. Adaptive policies exploit this spread."
        ),
        source=source,
        tables={
            "rows": [{"accepted": str(i), "share": rounded(share)} for i, share in enumerate(share_by_accepted)],
        },
        draw=_draw_histogram,
    )


def accepted_shares(survival: Survival, depth: int) -> list[float]:
    """Share of rounds by accepted tokens that a survival curve implies: S_d − S_{d+1}."""
    curve = np.concatenate([[1.0], survival.up_to(depth), [0.0]])
    return [float(value) for value in curve[:-1] - curve[1:]]


def _draw_histogram() -> alt.LayerChart:
    x = alt.X(
        "accepted:O",
        title="accepted draft tokens",
        sort=None,
        axis=alt.Axis(labelAngle=0),
        scale=alt.Scale(paddingInner=0.25),
    )
    y = alt.Y("share:Q", title="share of rounds", axis=alt.Axis(format="%"))
    bars = (
        table("rows")
        .mark_bar(style="bar-one")
        .encode(x=x, y=y, tooltip=[alt.Tooltip("accepted:O"), alt.Tooltip("share:Q", format=".1%")])
    )
    values = table("rows").mark_text(dy=-9).encode(x=x, y=y, text=alt.Text("share:Q", format=".0%"))
    return alt.LayerChart(layer=[bars, values])


# --- survival ---


def survival_figure(
    curves: Mapping[str, Sequence[float]], *, drafter: str, source: str, needed: float | None = None
) -> Figure:
    """Survival by depth, one line per category. `needed`: what one more token needs at the marked batch."""
    names = _shown_categories(curves)
    rows = [
        {"depth": depth, "survival": rounded(value), "series": name}
        for name in names
        for depth, value in enumerate([1.0, *curves[name]])
    ]
    ends = {name: (float(len(curves[name])), float(curves[name][-1])) for name in names}
    best, worst = (pick(names, key=lambda name: curves[name][-1]) for pick in (max, min))
    between = (
        f"; survival to depth {len(curves[best])}: {curves[best][-1]:.0%} ({best}), {curves[worst][-1]:.0%} ({worst})"
        if best != worst
        else f", all of {len(curves[best])} with {curves[best][-1]:.0%}"
    )
    cleared = "" if needed is None else f" At the marked batch one more token needs {needed:.2f}."
    return Figure(
        name="survival",
        title="Survival by draft depth",
        takeaway=f"{drafter}: the first token is accepted with {curves[names[0]][0]:.0%}{between}.{cleared}",
        source=source,
        tables={
            "curves": rows,
            "labels": end_labels(ends, x="depth", y="survival", gap=0.055),
            "needed": []
            if needed is None
            else [{"survival": rounded(needed), "depth": 0, "text": f"needed: {needed:.2f}"}],
        },
        draw=_draw_survival,
        shape=(tuple(names),),
    )


def _shown_categories(curves: Mapping[str, Sequence[float]]) -> list[str]:
    """`all` first, then the categories with the highest and lowest survival."""
    others = sorted((name for name in curves if name != "all"), key=lambda name: -curves[name][-1])
    if len(others) >= _MOST_CATEGORIES:
        half = (_MOST_CATEGORIES - 1) // 2
        others = [*others[: _MOST_CATEGORIES - 1 - half], *others[-half:]]
    return [*(["all"] if "all" in curves else []), *others]


def _draw_survival(names: tuple[str, ...]) -> alt.LayerChart:
    x = alt.X("depth:Q", title="draft tokens", axis=alt.Axis(tickMinStep=1, format="d"))
    y = alt.Y(
        "survival:Q",
        title="probability that all of them are accepted",
        axis=alt.Axis(format="%"),
        scale=alt.Scale(domain=[0, 1]),
    )
    domain = DRAFTERS if len(names) == 1 and names[0] in DRAFTERS else names  # a drafter has its own colour
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(domain)), legend=None)
    tooltip = [alt.Tooltip("series:N", title=" "), alt.Tooltip("depth:Q"), alt.Tooltip("survival:Q", format=".1%")]
    lines = table("curves").mark_line().encode(x=x, y=y, color=colour)
    points = table("curves").mark_point(size=24).encode(x=x, y=y, color=colour, tooltip=tooltip)
    labels = table("labels").mark_text(style="label").encode(x=x, y=y, text=alt.Text("series:N"), color=colour)
    needed = table("needed").mark_rule(style="marker").encode(y=y)
    name = (
        table("needed")
        .mark_text(style="marker-label", align="left", dx=4, dy=-8)
        .encode(x=x, y=y, text=alt.Text("text:N"))
    )
    return alt.LayerChart(layer=[needed, lines, points, labels, name])


# --- confidence ---


def reliability_figure(sides: Mapping[str, FloatArray], accepted: BoolArray, *, drafter: str, source: str) -> Figure:
    """Share accepted against predicted probability, in bins of equal size, one line per predictor."""
    rows: list[dict[str, Any]] = []
    errors: dict[str, float] = {}
    for name, predicted in sides.items():
        parts = [part for part in np.array_split(np.argsort(predicted, kind="stable"), _BINS) if part.size]
        points = [(float(predicted[part].mean()), float(accepted[part].mean()), part.size) for part in parts]
        errors[name] = sum(abs(x - y) * size for x, y, size in points) / accepted.size
        rows += [{"said": rounded(x), "kept": rounded(y), "series": name, "tokens": size} for x, y, size in points]
    words = ", ".join(f"{name} {error:.1%}" for name, error in errors.items())
    return Figure(
        name="reliability",
        title="Reliability of the drafter's confidence",
        takeaway=f"{drafter}: expected calibration error {words}, on held-out requests. Dashed: exact.",
        source=source,
        tables={"points": rows, "even": [{"said": 0.0, "kept": 0.0}, {"said": 1.0, "kept": 1.0}]},
        draw=_draw_reliability,
        shape=(tuple(sides),),
    )


def _draw_reliability(names: tuple[str, ...]) -> alt.LayerChart:
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("said:Q", title="predicted probability", axis=alt.Axis(format="%", tickCount=5), scale=scale)
    y = alt.Y("kept:Q", title="share accepted", axis=alt.Axis(format="%", tickCount=5), scale=scale)
    legend = alt.Legend(title=None, orient="top-left")
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(names)), legend=legend)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=list(names), range=["circle", "diamond"]), legend=legend)
    tooltip = [
        alt.Tooltip("series:N", title=" "),
        alt.Tooltip("said:Q", format=".1%"),
        alt.Tooltip("kept:Q", format=".1%"),
        alt.Tooltip("tokens:Q"),
    ]
    even = table("even").mark_line(style="reference").encode(x=x, y=y)
    lines = table("points").mark_line().encode(x=x, y=y, color=colour)
    points = table("points").mark_point(size=46).encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
    return alt.LayerChart(layer=[even, lines, points])


def joint_figure(share_by_accepted_predicted: FloatArray, *, drafter: str, source: str) -> Figure:
    """Share of rounds by predicted and accepted tokens."""
    joint = np.asarray(share_by_accepted_predicted)
    right = float(np.trace(joint))
    near = right + float(np.trace(joint, 1) + np.trace(joint, -1))
    high = 0.38 * float(joint.max())  # above it, cells are dark enough for light text
    rows = [
        {
            "accepted": str(accepted),
            "predicted": str(predicted),
            "share": rounded(share),
            "text": f"{share:.0%}" if share >= 0.005 else "",
            "high": bool(share > high),
        }
        for accepted, by_predicted in enumerate(joint)
        for predicted, share in enumerate(by_predicted)
    ]
    return Figure(
        name="joint",
        title="Predicted against accepted, round by round",
        takeaway=(
            f"{drafter}: confidence predicts the number of accepted tokens exactly in {right:.0%} of rounds and "
            f"within one in {near:.0%}."
        ),
        source=source,
        tables={"cells": rows},
        draw=_draw_joint,
        shape=(joint.shape[0],),
    )


def _draw_joint(size: int) -> alt.LayerChart:
    order = [str(i) for i in range(size)]
    x = alt.X(
        "predicted:O", title="accepted tokens that the confidences predict", sort=order, axis=alt.Axis(labelAngle=0)
    )
    y = alt.Y("accepted:O", title="accepted tokens", sort=order[::-1])
    colour = alt.Color("share:Q", scale=alt.Scale(range="heatmap", type="sqrt", interpolate="lab"), legend=None)
    tooltip = [alt.Tooltip("predicted:O"), alt.Tooltip("accepted:O"), alt.Tooltip("share:Q", format=".2%")]
    cells = table("cells").mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltip)
    return alt.LayerChart(layer=[cells, *cell_texts(x, y)])
