"""Predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from specmargin.show.figures.figure import Figure, rounded, table

if TYPE_CHECKING:
    from specmargin.validation.speedups import SpeedupReport

_BEYOND = ((1.0, ()), (1.25, (4, 3)), (0.8, (4, 3)))


def median_error(rows: Sequence[dict[str, Any]]) -> float:
    return float(np.median([abs(row["predicted"] / row["measured"] - 1.0) for row in rows]))


def error_lines(low: float, high: float) -> dict[str, list[dict[str, Any]]]:
    return {
        f"line{i}": [{"measured": rounded(x), "predicted": rounded(x * factor)} for x in (low, high)]
        for i, (factor, _) in enumerate(_BEYOND)
    }


def axes(unit: str, low: float, high: float, ticks: Sequence[float]) -> tuple[alt.X, alt.Y]:
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=list(ticks))
    x = alt.X("measured:Q", scale=scale, axis=axis, title=f"measured, {unit}")
    return x, alt.Y("predicted:Q", scale=scale, axis=axis, title=f"predicted, {unit}")


def diagonals(x: alt.X, y: alt.Y) -> list[alt.Chart]:
    return [
        table(f"line{i}").mark_line(style="reference", strokeDash=list(dash), clip=True).encode(x=x, y=y)
        for i, (_, dash) in enumerate(_BEYOND)
    ]


# --- whole rounds ---


def rounds_figure(engine: str, rounds: Sequence[dict[str, Any]]) -> Figure:
    """Rounds of a real engine against predictions that were not fitted to their model, by price source."""
    rows: list[dict[str, Any]] = [
        {
            "measured": rounded(row["measured_seconds"] * 1e3),
            "predicted": rounded(row["predicted_seconds"] * 1e3),
            **{name: row[name] for name in ("prices", "model", "batch", "depth")},
        }
        for row in rounds
    ]
    sources = tuple(dict.fromkeys(row["prices"] for row in rows))
    values = [row[side] for row in rows for side in ("measured", "predicted")]
    low, high = min(values) * 0.85, max(values) * 1.15
    models = dict.fromkeys(row["model"] for row in rows)
    errors = {name: median_error([row for row in rows if row["prices"] == name]) for name in sources}
    worst = max(abs(row["predicted"] / row["measured"] - 1.0) for row in rows if row["prices"] == sources[0])
    count = sum(row["prices"] == sources[0] for row in rows)
    return Figure(
        name="validation",
        title="Predicted against measured, whole rounds",
        takeaway=(
            f"{count} rounds of {', '.join(models)} on an H200 under vLLM 0.32, drafting included, batch "
            f"{min(row['batch'] for row in rows)} to {max(row['batch'] for row in rows)}: median error "
            f"{', '.join(f'{name} {error:.1%}' for name, error in errors.items())} (worst {worst:.0%}). The engine "
            f"time of each model is fitted to the others. Solid line: exact; dashed: 25% off."
        ),
        source=f"Specmargin measurement, {engine}; python -m lab.validation.rounds",
        tables={"rows": rows} | error_lines(low, high),
        draw=_draw_rounds,
        shape=(sources, rounded(low), rounded(high)),
    )


def _draw_rounds(names: tuple[str, ...], low: float, high: float) -> alt.LayerChart:
    x, y = axes("ms/round", low, high, (1, 2, 3, 5, 10, 20, 30, 50, 100))
    legend = alt.Legend(title=None, orient="top-left")
    colour = alt.Color("prices:N", scale=alt.Scale(domain=list(names)), legend=legend)
    shape = alt.Shape(
        "prices:N", scale=alt.Scale(domain=list(names), range=["circle", "diamond", "square"]), legend=legend
    )
    tooltip = [
        alt.Tooltip("model:N"),
        alt.Tooltip("prices:N"),
        alt.Tooltip("batch:Q"),
        alt.Tooltip("depth:Q"),
        alt.Tooltip("measured:Q"),
        alt.Tooltip("predicted:Q"),
    ]
    points = table("rows").mark_point(size=32, opacity=0.8).encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
    return alt.LayerChart(layer=[*diagonals(x, y), points])


# --- published speed-ups ---


def speedups_figure(report: SpeedupReport) -> Figure:
    """Speed-ups of speculation, predicted with the measured accept length, one colour per source."""
    rows: list[dict[str, Any]] = [
        {
            "source": row.point.source,
            "model": row.point.model,
            "gpu": row.point.gpu,
            "engine": row.point.engine,
            "depth": row.point.depth,
            "batch": row.point.batch,
            "measured": round(row.point.speedup, 4),
            "predicted": round(row.speedup, 4),
        }
        for row in report.predicted
    ]
    values = [row[side] for row in rows for side in ("measured", "predicted")]
    low, high = min(values) * 0.9, max(values) * 1.1
    error = median_error(rows)
    return Figure(
        name="speedups",
        title="Speed-up of speculation: predicted against measured",
        takeaway=f"Median error {error:.1%} on {len(rows)} measurements. Solid line: exact; dashed: 25% off.",
        source="specmargin validate speedups",
        tables={"rows": rows} | error_lines(low, high),
        draw=_draw_speedups,
        shape=(tuple(sorted({row["source"] for row in rows})), rounded(low), rounded(high)),
    )


def _draw_speedups(sources: tuple[str, ...], low: float, high: float) -> alt.LayerChart:
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=[0.5, 1, 1.5, 2, 3, 4], format="~r")
    x = alt.X("measured:Q", scale=scale, axis=axis, title="measured speed-up")
    y = alt.Y("predicted:Q", scale=scale, axis=axis, title="predicted speed-up")
    points = (
        table("rows")
        .mark_point(size=30, opacity=0.7)
        .encode(
            x=x,
            y=y,
            color=alt.Color("source:N", scale=alt.Scale(domain=list(sources)), title="source"),
            tooltip=[
                alt.Tooltip("source:N"),
                alt.Tooltip("model:N"),
                alt.Tooltip("gpu:N"),
                alt.Tooltip("engine:N"),
                alt.Tooltip("depth:Q"),
                alt.Tooltip("batch:Q"),
                alt.Tooltip("measured:Q"),
                alt.Tooltip("predicted:Q"),
            ],
        )
    )
    return alt.LayerChart(layer=[*diagonals(x, y), points], width=420, height=420)
