"""Accepted tokens, survival, and calibration of a drafter's confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.show.figures.figure import Figure, columns, end_labels
from specmargin.show.figures.marks import Plane, by_name, layers, ordinal, percent, tips
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
        tables={"rows": columns(accepted=map(str, range(deepest + 1)), share=share_by_accepted)},
        draw=_draw_histogram,
    )


def accepted_shares(survival: Survival, depth: int) -> list[float]:
    """Share of rounds by accepted tokens that a survival curve implies: S_d − S_{d+1}."""
    curve = np.concatenate([[1.0], survival.up_to(depth), [0.0]])
    return [float(value) for value in curve[:-1] - curve[1:]]


def _draw_histogram() -> alt.LayerChart:
    x = ordinal("accepted", "accepted draft tokens", sort=None, scale=alt.Scale(paddingInner=0.25))
    on = Plane(x, percent("share", "share of rounds"))
    return layers(
        on.bars("rows", style="bar-one", tooltip=tips("accepted:O", "share:Q||.1%")),
        on.text("rows", "share:Q", ".0%", dy=-9),
    )


# --- survival ---


def survival_figure(
    curves: Mapping[str, Sequence[float]], *, drafter: str, source: str, needed: float | None = None
) -> Figure:
    """Survival by depth, one line per category. `needed`: what one more token needs at the marked batch."""
    names = _shown_categories(curves)
    rows = [
        row
        for name in names
        for row in columns(depth=range(len(curves[name]) + 1), survival=[1.0, *curves[name]], series=name)
    ]
    ends = {name: (float(len(curves[name])), float(curves[name][-1])) for name in names}
    best, worst = (pick(names, key=lambda name: curves[name][-1]) for pick in (max, min))
    between = (
        f"; survival to depth {len(curves[best])}: {curves[best][-1]:.0%} ({best}), {curves[worst][-1]:.0%} ({worst})"
        if best != worst
        else f"; all {len(curves[best])} are accepted in {curves[best][-1]:.0%} of rounds"
    )
    cleared = "" if needed is None else f" At the marked batch one more token needs {needed:.2f}."
    return Figure(
        name="survival",
        title="Survival by draft depth",
        takeaway=f"{drafter}: {curves[names[0]][0]:.0%} of first tokens are accepted{between}.{cleared}",
        source=source,
        tables={
            "curves": rows,
            "labels": end_labels(ends, x="depth", y="survival", gap=0.055),
            "needed": [] if needed is None else columns(survival=[needed], depth=0, text=f"needed: {needed:.2f}"),
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
    on = Plane(
        alt.X("depth:Q", title="draft tokens", axis=alt.Axis(tickMinStep=1, format="d")),
        percent("survival", "probability that all of them are accepted", scale=alt.Scale(domain=[0, 1])),
    )
    domain = DRAFTERS if len(names) == 1 and names[0] in DRAFTERS else names  # a drafter has its own colour
    colour = by_name("series", domain)
    return layers(
        on.level("needed", "marker"),
        on.traced("curves", color=colour, size=24, tooltip=tips("series:N| ", "depth:Q", "survival:Q||.1%")),
        on.text("labels", "series:N", style="label", color=colour),
        on.text("needed", style="marker-label", align="left", dx=4, dy=-8),
    )


# --- confidence ---


def reliability_figure(sides: Mapping[str, FloatArray], accepted: BoolArray, *, drafter: str, source: str) -> Figure:
    """Share accepted against predicted probability, in bins of equal size, one line per predictor."""
    rows: list[dict[str, Any]] = []
    errors: dict[str, float] = {}
    for name, predicted in sides.items():
        parts = [part for part in np.array_split(np.argsort(predicted, kind="stable"), _BINS) if part.size]
        said, kept, tokens = np.array([(predicted[part].mean(), accepted[part].mean(), part.size) for part in parts]).T
        errors[name] = float((np.abs(said - kept) * tokens).sum() / accepted.size)
        rows += columns(said=said, kept=kept, tokens=tokens, series=name)
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
    on = Plane(x, percent("kept", "share accepted", ticks=5, scale=scale))
    legend = alt.Legend(title=None, orient="top-left")
    colour = by_name("series", names, legend)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=list(names), range=["circle", "diamond"]), legend=legend)
    tooltip = tips("series:N| ", "said:Q||.1%", "kept:Q||.1%", "tokens:Q")
    return layers(
        on.line("even", style="reference"),
        on.line("points", color=colour),
        on.points("points", size=46, color=colour, shape=shape, tooltip=tooltip),
    )


def joint_figure(share_by_accepted_predicted: FloatArray, *, drafter: str, source: str) -> Figure:
    """Share of rounds by predicted and accepted tokens."""
    joint = np.asarray(share_by_accepted_predicted)
    right = float(np.trace(joint))
    near = right + float(np.trace(joint, 1) + np.trace(joint, -1))
    high = 0.38 * float(joint.max())  # above it, cells are dark enough for light text
    shares, (accepted, predicted) = joint.ravel(), np.indices(joint.shape).reshape(2, -1)
    rows = columns(
        accepted=map(str, accepted),
        predicted=map(str, predicted),
        share=shares,
        text=[f"{share:.0%}" if share >= 0.005 else "" for share in shares],
        high=shares > high,
    )
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
    x = ordinal("predicted", "accepted tokens that the confidences predict", sort=order)
    on = Plane(x, alt.Y("accepted:O", title="accepted tokens", sort=order[::-1]))
    colour = alt.Color("share:Q", scale=alt.Scale(range="heatmap", type="sqrt", interpolate="lab"), legend=None)
    return layers(on.cells(colour, tooltip=tips("predicted:O", "accepted:O", "share:Q||.2%")))
