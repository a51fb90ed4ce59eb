"""Experts touched by positions: distinct experts, popularity, and overlap of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.routing.local import LocalRouting
from specmargin.show.figures.figure import Figure, columns, end_labels
from specmargin.show.figures.marks import (
    LOG2,
    Plane,
    by_name,
    by_powers,
    dashed,
    layers,
    ordinal,
    percent,
    powers,
    tips,
    x_at,
)
from specmargin.show.figures.words import short
from specmargin.sources import Source

_CURVES = {"uniform": "uniform", "width": "width: independent", "skew": "popularity only", "depth": "depth: one run"}
_DASHES = {"uniform": [2, 2], "width: independent": [1, 0], "popularity only": [6, 3], "depth: one run": [1, 0]}


def coverage_figure(model: str, routing: str, rows: Sequence[dict[str, Any]], source: Source) -> Figure:
    """Distinct experts over positions, both on logarithmic axes."""
    positions = [row["positions"] for row in rows]
    values = [
        row
        for key, name in _CURVES.items()
        for row in columns(positions=positions, experts=[row[key] for row in rows], series=name)
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
    y = alt.Y("experts:Q", scale=LOG2, axis=powers(13), title="distinct experts per layer")
    on = Plane(by_powers("positions", "positions", 13), y)
    colour = by_name("series", _DASHES)
    tooltip = tips("series:N| ", "positions:Q", "experts:Q||.1f")
    return layers(
        on.traced("curves", color=colour, strokeDash=dashed("series", _DASHES), size=22, tooltip=tooltip),
        on.text("labels", "series:N", style="label", color=colour),
    )


# --- popularity ---


def popularity_figure(model: str, pool: ExpertPool, local: LocalRouting | None, source: Source) -> Figure:
    """How often an expert is chosen, by rank, over the layers; uniform routing would be a flat line."""
    even = pool.experts_per_token / pool.experts
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
            "ranks": columns(rank=shown + 1, low=low[shown], share=middle[shown], high=high[shown]),
            "even": columns(share=[even], rank=1, text=f"uniform: {even:.1%}"),
        },
        draw=_draw_popularity,
    )


def _draw_popularity() -> alt.LayerChart:
    title = "positions that choose it"
    on = Plane(by_powers("rank", "expert, by rank in its layer"), percent("share", title))
    layers_between = ("low:Q|10% of layers|.2%", "high:Q|90% of layers|.2%")
    return layers(
        Plane(on.x, alt.Y("low:Q", title=title)).area("ranks", y2=alt.Y2("high:Q"), style="spread"),
        on.level("even"),
        on.line("ranks", tooltip=tips("rank:Q", "share:Q||.2%", *layers_between)),
        on.text("even", style="note", align="left", dx=6, dy=9),
    )


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
            "lags": columns(lag=range(1, len(by_lag) + 1), share=by_lag),
            "loaded": columns(lag=range(1, len(loaded) + 1), share=loaded),
            "name": columns(share=loaded[-1:], lag=len(loaded), text="loaded by the run"),
            "levels": columns(share=levels.values()),
            "level_names": end_labels(
                {name: (0.0, value) for name, value in levels.items()}, x="lag", y="share", gap=0.035
            ),
        },
        draw=_draw_overlap,
    )


def _draw_overlap() -> alt.LayerChart:
    scale = alt.Scale(domain=list(range(1, _LOADED_UP_TO)), paddingInner=0.5)
    on = Plane(ordinal("lag", "positions apart", scale=scale), percent("share", "share of a position's experts"))
    tooltip = tips("lag:O", "share:Q||.1%")
    return layers(
        on.bars("lags", style="bar-one", tooltip=tooltip),
        on.text("lags", "share:Q", ".0%", dy=-11),
        on.level("levels"),
        Plane(x_at("width"), on.y).text("level_names", "series:N", style="note", align="left", dx=6),
        on.line("loaded", style="second-line"),
        on.points("loaded", style="second-point", tooltip=tooltip),
        on.text("name", style="label"),
    )
