"""Experts touched by positions: distinct experts, popularity, and overlap of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.routing.local import LocalRouting
from specmargin.show.figures.figure import Figure, end_labels, powers, rounded, table, x_at
from specmargin.show.figures.words import short
from specmargin.sources import Source

_CURVES = {"uniform": "uniform", "width": "width: independent", "skew": "popularity only", "depth": "depth: one run"}
_DASHES = {"uniform": [2, 2], "width: independent": [1, 0], "popularity only": [6, 3], "depth: one run": [1, 0]}


def coverage_figure(model: str, routing: str, rows: Sequence[dict[str, Any]], source: Source) -> Figure:
    """Distinct experts over positions, both on logarithmic axes."""
    values = [
        {"positions": row["positions"], "experts": rounded(row[key]), "series": name}
        for key, name in _CURVES.items()
        for row in rows
    ]
    last = rows[-1]
    ends = {name: (float(last["positions"]), float(last[key])) for key, name in _CURVES.items()}
    sixteen = min(rows, key=lambda row: abs(row["positions"] - 16))
    return Figure(
        name="coverage",
        title="Distinct experts by positions",
        takeaway=(
            f"{model}, routing {routing}: {sixteen['positions']} positions touch {sixteen['uniform']:.0f} experts per "
            f"layer under uniform routing, {sixteen['width']:.0f} as independent tokens and {sixteen['depth']:.0f} as "
            f"one run: neighbours choose similar experts."
        ),
        source=f"Specmargin; routing {short(source)}",
        tables={"curves": values, "labels": end_labels(ends, x="positions", y="experts", gap=0.24, log=True)},
        draw=_draw_coverage,
    )


def _draw_coverage() -> alt.LayerChart:
    names = list(_CURVES.values())
    scale = alt.Scale(type="log", base=2, nice=False)
    x = alt.X("positions:Q", scale=scale, axis=powers(13), title="positions")
    y = alt.Y("experts:Q", scale=scale, axis=powers(13), title="distinct experts per layer")
    colour = alt.Color("series:N", scale=alt.Scale(domain=names), legend=None)
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=names, range=[_DASHES[n] for n in names]), legend=None)
    tooltip = [alt.Tooltip("series:N", title=" "), alt.Tooltip("positions:Q"), alt.Tooltip("experts:Q", format=".1f")]
    lines = table("curves").mark_line().encode(x=x, y=y, color=colour, strokeDash=dash)
    points = table("curves").mark_point(size=22).encode(x=x, y=y, color=colour, tooltip=tooltip)
    labels = table("labels").mark_text(style="label").encode(x=x, y=y, text=alt.Text("series:N"), color=colour)
    return alt.LayerChart(layer=[lines, points, labels])


# --- popularity ---


def popularity_figure(model: str, pool: ExpertPool, local: LocalRouting | None, source: Source) -> Figure:
    """How often an expert is chosen, by rank, over the layers; uniform routing would be a flat line."""
    even = pool.experts_per_token / pool.experts
    ranks = np.arange(1, pool.experts + 1)
    flat = np.full((1, pool.experts), even)
    ranked = flat if local is None else -np.sort(-local.popularity_by_layer_expert, axis=1)
    low, middle, high = np.quantile(ranked, (0.1, 0.5, 0.9), axis=0)
    shown = np.unique(np.geomspace(1, pool.experts, 64).round().astype(int)) - 1
    top = float(np.median(ranked[:, : max(pool.experts // 10, 1)].sum(axis=1)) / pool.experts_per_token)
    return Figure(
        name="popularity",
        title="Popularity of experts",
        takeaway=(
            f"{model}: the most popular tenth of {pool.experts} experts gets {top:.0%} of choices in the median layer "
            f"(10% under uniform routing); the most popular expert is chosen by {middle[0]:.0%} of positions, "
            f"{even:.1%} under uniform routing."
        ),
        source=f"Specmargin; routing {short(source)}",
        tables={
            "ranks": [
                {
                    "rank": int(ranks[i]),
                    "low": rounded(low[i]),
                    "share": rounded(middle[i]),
                    "high": rounded(high[i]),
                }
                for i in shown
            ],
            "even": [{"share": rounded(even), "rank": 1, "text": f"uniform: {even:.1%}"}],
        },
        draw=_draw_popularity,
    )


def _draw_popularity() -> alt.LayerChart:
    x = alt.X(
        "rank:Q", title="expert, by rank in its layer", scale=alt.Scale(type="log", base=2, nice=False), axis=powers()
    )
    y = alt.Y("share:Q", title="positions that choose it", axis=alt.Axis(format="%"))
    spread = (
        table("ranks")
        .mark_area(style="spread")
        .encode(x=x, y=alt.Y("low:Q", title="positions that choose it"), y2=alt.Y2("high:Q"))
    )
    tooltip = [
        alt.Tooltip("rank:Q"),
        alt.Tooltip("share:Q", format=".2%"),
        alt.Tooltip("low:Q", format=".2%", title="10% of layers"),
        alt.Tooltip("high:Q", format=".2%", title="90% of layers"),
    ]
    line = table("ranks").mark_line().encode(x=x, y=y, tooltip=tooltip)
    even = table("even").mark_rule(style="reference").encode(y=y)
    name = table("even").mark_text(style="note", align="left", dx=6, dy=9).encode(x=x, y=y, text=alt.Text("text:N"))
    return alt.LayerChart(layer=[spread, even, line, name])


# --- overlap ---

_LOADED_UP_TO = 8


def overlap_figure(
    model: str, pool: ExpertPool, local: LocalRouting | None, by_lag: Sequence[float], source: Source
) -> Figure:
    """Share of experts that two positions of a run have in common by distance, and that the run has loaded already."""
    k = pool.experts_per_token
    even = k / pool.experts
    independent, loaded = even, []
    if local is not None:
        independent = float((local.popularity_by_layer_expert**2).sum(axis=1).mean() / k)
        curve = local.depth_curve_by_layer(np.arange(1, _LOADED_UP_TO + 1)).mean(axis=1)
        loaded = [1.0 - float(curve[i] - curve[i - 1]) / k for i in range(1, _LOADED_UP_TO)]
    first = by_lag[0] if by_lag else even
    levels = {f"uniform {even:.1%}": even} | ({} if local is None else {f"independent {independent:.1%}": independent})
    already = f"; for its eighth position, the run has loaded {loaded[-1]:.0%} of the experts" if loaded else ""
    return Figure(
        name="overlap",
        title="Expert overlap of neighbours",
        takeaway=(
            f"{model}: a position shares {first:.0%} of its {k} experts with the one before it{already}. Two "
            f"independent tokens share {independent:.1%}, {even:.1%} under uniform routing."
        ),
        source=f"Specmargin; routing {short(source)}",
        tables={
            "lags": [{"lag": lag + 1, "share": rounded(share)} for lag, share in enumerate(by_lag)],
            "loaded": [{"lag": lag + 1, "share": rounded(share)} for lag, share in enumerate(loaded)],
            "name": [{"lag": len(loaded), "share": rounded(loaded[-1]), "text": "loaded by the run"}] if loaded else [],
            "levels": [{"share": rounded(value)} for value in levels.values()],
            "level_names": end_labels(
                {name: (0.0, value) for name, value in levels.items()}, x="lag", y="share", gap=0.035
            ),
        },
        draw=_draw_overlap,
    )


def _draw_overlap() -> alt.LayerChart:
    lags = list(range(1, _LOADED_UP_TO))
    x = alt.X(
        "lag:O",
        title="positions apart",
        axis=alt.Axis(labelAngle=0),
        scale=alt.Scale(domain=lags, paddingInner=0.5),
    )
    y = alt.Y("share:Q", title="share of a position's experts", axis=alt.Axis(format="%"))
    tooltip = [alt.Tooltip("lag:O"), alt.Tooltip("share:Q", format=".1%")]
    bars = table("lags").mark_bar(style="bar-one").encode(x=x, y=y, tooltip=tooltip)
    values = table("lags").mark_text(dy=-11).encode(x=x, y=y, text=alt.Text("share:Q", format=".0%"))
    loaded = table("loaded").mark_line(style="second-line").encode(x=x, y=y)
    points = table("loaded").mark_point(style="second-point").encode(x=x, y=y, tooltip=tooltip)
    name = table("name").mark_text(style="label").encode(x=x, y=y, text=alt.Text("text:N"))
    levels = table("levels").mark_rule(style="reference").encode(y=y)
    names = table("level_names").mark_text(style="note", align="left", dx=6)
    names = names.encode(x=x_at("width"), y=y, text=alt.Text("series:N"))
    return alt.LayerChart(layer=[bars, values, levels, names, loaded, points, name])
