"""Predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from specmargin.figures.figure import Figure, rounded, table
from specmargin.step import FloatArray

if TYPE_CHECKING:
    from specmargin.validation.report import ServedReport
    from specmargin.validation.rounds import Rounds
    from specmargin.validation.speedups import SpeedupReport

_ENGINES = ("vllm", "sglang", "trtllm")
_SIDE = 250
_TICKS = [0.3, 1, 3, 10, 30, 100, 300]  # milliseconds
_BEYOND = ((1.0, ()), (1.25, (4, 3)), (0.8, (4, 3)))


def predicted_against_measured(report: ServedReport) -> Figure:
    """Time per token in milliseconds, one panel per source; exact predictions lie on the diagonal."""
    sources = list(report.predicted_seconds)
    values = [value for source in sources for value in (report.measured_seconds, report.predicted_seconds[source])]
    low, high = min(v.min() for v in values) * 1e3 * 0.9, max(v.max() for v in values) * 1e3 * 1.1
    rows = [row for source in sources for row in _rows(report, source)]
    errors = {source: _median([row for row in rows if row["prices"] == source]) for source in sources}
    error_text = ", ".join(f"{source} {error:.0%}" for source, error in errors.items())
    return Figure(
        name="served",
        title="Served MoE rows: time between tokens, predicted against measured",
        takeaway=(
            f"Median error: {error_text}. Tables and laws use an engine time fitted without the row's model on its "
            f"GPU. Solid line: exact; dashed: 25% off."
        ),
        source=f"third-party served measurements ({len(rows) // len(sources):,} rows); specmargin validate served",
        tables={"rows": rows} | _lines(low, high),
        draw=_draw_served,
        shape=(
            tuple((source, f"{source}: median error {errors[source]:.0%}") for source in sources),
            rounded(low),
            rounded(high),
        ),
    )


def _median(rows: Sequence[dict[str, Any]]) -> float:
    return float(np.median([abs(row["predicted"] / row["measured"] - 1.0) for row in rows]))


def _lines(low: float, high: float) -> dict[str, list[dict[str, Any]]]:
    return {
        f"line{i}": [{"measured": rounded(x), "predicted": rounded(x * factor)} for x in (low, high)]
        for i, (factor, _) in enumerate(_BEYOND)
    }


def _draw_served(panels: tuple[tuple[str, str], ...], low: float, high: float) -> alt.HConcatChart:
    return alt.HConcatChart(hconcat=[_panel(source, title, low, high) for source, title in panels])


def _panel(source: str, title: str, low: float, high: float) -> alt.LayerChart:
    x, y = _axes("ms/token", low, high)
    points = (
        table("rows")
        .transform_filter(f"datum.prices === '{source}'")
        .mark_point(size=14, opacity=0.45)
        .encode(
            x=x,
            y=y,
            color=alt.Color("engine:N", scale=alt.Scale(domain=list(_ENGINES)), title="engine"),
            tooltip=[
                alt.Tooltip("model:N"),
                alt.Tooltip("gpu:N"),
                alt.Tooltip("engine:N"),
                alt.Tooltip("measured:Q"),
                alt.Tooltip("predicted:Q"),
            ],
        )
    )
    heading = alt.TitleParams(title, fontSize=12, fontWeight="normal", offset=8)
    return alt.LayerChart(layer=[*_diagonals(x, y), points], width=_SIDE, height=_SIDE, title=heading)


def _axes(unit: str, low: float, high: float, ticks: Sequence[float] = _TICKS) -> tuple[alt.X, alt.Y]:
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=list(ticks))
    x = alt.X("measured:Q", scale=scale, axis=axis, title=f"measured, {unit}")
    return x, alt.Y("predicted:Q", scale=scale, axis=axis, title=f"predicted, {unit}")


def _diagonals(x: alt.X, y: alt.Y) -> list[alt.Chart]:
    return [
        table(f"line{i}").mark_line(style="reference", strokeDash=list(dash), clip=True).encode(x=x, y=y)
        for i, (_, dash) in enumerate(_BEYOND)
    ]


def _rows(report: ServedReport, source: str) -> list[dict[str, Any]]:
    predicted = report.predicted_seconds[source]
    return [
        {
            "model": row.model,
            "gpu": row.device,
            "engine": row.engine,
            "prices": source,
            "measured": round(float(row.tpot_seconds) * 1e3, 3),
            "predicted": round(float(predicted[index]) * 1e3, 3),
        }
        for index, row in enumerate(report.rows)
        if row.is_moe
    ]


# --- whole rounds ---


def rounds_figure(predicted: Mapping[str, Sequence[tuple[Rounds, FloatArray]]], conditions: str) -> Figure:
    """Rounds of a real engine against predictions that were not fitted to their model, by price source."""
    rows: list[dict[str, Any]] = [
        {
            "measured": rounded(rounds.seconds[i] * 1e3),
            "predicted": rounded(seconds[i] * 1e3),
            "prices": name,
            "model": rounds.model,
            "batch": int(rounds.batch[i]),
            "depth": int(max(rounds.depth[i], 0)),
        }
        for name, engines in predicted.items()
        for rounds, seconds in engines
        for i in np.flatnonzero(rounds.captured)
    ]
    values = [row[side] for row in rows for side in ("measured", "predicted")]
    low, high = min(values) * 0.85, max(values) * 1.15
    models = dict.fromkeys(row["model"] for row in rows)
    errors = {name: _median([row for row in rows if row["prices"] == name]) for name in predicted}
    worst = max(abs(row["predicted"] / row["measured"] - 1.0) for row in rows if row["prices"] == next(iter(predicted)))
    count = sum(row["prices"] == next(iter(predicted)) for row in rows)
    return Figure(
        name="validation",
        title="Predicted against measured, whole rounds",
        takeaway=(
            f"{count} rounds of {', '.join(models)} on an H200 under vLLM 0.32, drafting included, batch "
            f"{min(row['batch'] for row in rows)} to {max(row['batch'] for row in rows)}: median error "
            f"{', '.join(f'{name} {error:.1%}' for name, error in errors.items())} (worst {worst:.0%}). The engine "
            f"time of each model is fitted to the others. Solid line: exact; dashed: 25% off."
        ),
        source=f"Specmargin measurement, {conditions}; specmargin validate rounds",
        tables={"rows": rows} | _lines(low, high),
        draw=_draw_rounds,
        shape=(tuple(predicted), rounded(low), rounded(high)),
    )


def _draw_rounds(names: tuple[str, ...], low: float, high: float) -> alt.LayerChart:
    x, y = _axes("ms/round", low, high, (1, 2, 3, 5, 10, 20, 30, 50, 100))
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
    return alt.LayerChart(layer=[*_diagonals(x, y), points])


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
    error = _median(rows)
    return Figure(
        name="speedups",
        title="Speed-up of speculation: predicted against measured",
        takeaway=f"Median error {error:.1%} on {len(rows)} measurements. Solid line: exact; dashed: 25% off.",
        source="specmargin validate speedups",
        tables={"rows": rows} | _lines(low, high),
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
    return alt.LayerChart(layer=[*_diagonals(x, y), points], width=420, height=420)
