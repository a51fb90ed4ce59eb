"""Time between tokens of served rows: predicted against measured, one panel per price source."""

from __future__ import annotations

from typing import Any

import altair as alt

from lab.validation.served.errors import ServedReport
from specmargin.show.figures.figure import Figure, rounded, table
from specmargin.show.figures.validation import axes, diagonals, error_lines, median_error

_ENGINES = ("vllm", "sglang", "trtllm")
_SIDE = 250
_TICKS = (0.3, 1, 3, 10, 30, 100, 300)  # milliseconds


def predicted_against_measured(report: ServedReport) -> Figure:
    """Time per token in milliseconds, one panel per source; exact predictions lie on the diagonal."""
    sources = list(report.predicted_seconds)
    values = [value for source in sources for value in (report.measured_seconds, report.predicted_seconds[source])]
    low, high = min(v.min() for v in values) * 1e3 * 0.9, max(v.max() for v in values) * 1e3 * 1.1
    rows = [row for source in sources for row in _rows(report, source)]
    errors = {source: median_error([row for row in rows if row["prices"] == source]) for source in sources}
    error_text = ", ".join(f"{source} {error:.0%}" for source, error in errors.items())
    return Figure(
        name="served",
        title="Served MoE rows: time between tokens, predicted against measured",
        takeaway=(
            f"Median error: {error_text}. Tables and laws use an engine time fitted without the row's model on its "
            f"GPU. Solid line: exact; dashed: 25% off."
        ),
        source=f"third-party served measurements ({len(rows) // len(sources):,} rows); python -m lab.validation.served",
        tables={"rows": rows} | error_lines(low, high),
        draw=_draw_served,
        shape=(
            tuple((source, f"{source}: median error {errors[source]:.0%}") for source in sources),
            rounded(low),
            rounded(high),
        ),
    )


def _draw_served(panels: tuple[tuple[str, str], ...], low: float, high: float) -> alt.HConcatChart:
    return alt.HConcatChart(hconcat=[_panel(source, title, low, high) for source, title in panels])


def _panel(source: str, title: str, low: float, high: float) -> alt.LayerChart:
    x, y = axes("ms/token", low, high, _TICKS)
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
    return alt.LayerChart(layer=[*diagonals(x, y), points], width=_SIDE, height=_SIDE, title=heading)


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
