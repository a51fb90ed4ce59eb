"""Time between tokens of served rows: predicted against measured, one panel per price source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import altair as alt

from lab.validation.served.errors import ServedReport
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.validation import LEGEND, errors, scatter, scatter_figure

_SIDE = 250


def predicted_against_measured(report: ServedReport) -> Figure:
    """Time per token in milliseconds, one panel per source; exact predictions lie on the diagonal."""
    sources = list(report.predicted_seconds)
    rows = [row for source in sources for row in _rows(report, source)]
    whole = scatter_figure(
        rows,
        name="served",
        title="Served MoE rows: time between tokens, predicted against measured",
        takeaway=(
            f"Median error: {errors(rows, 'prices', digits=0)}. Tables and laws use an engine time fitted without the "
            f"row's model on its GPU. {LEGEND}"
        ),
        source=f"third-party served measurements ({len(rows) // len(sources):,} rows); python -m lab.validation.served",
        by="engine",
        unit="ms/token",
        ticks=(0.3, 1, 3, 10, 30, 100, 300),
    )
    titles = tuple((source, _title(rows, source)) for source in sources)
    return replace(whole, draw=_draw_served, shape=(titles, *whole.shape[1:]))


def _title(rows: list[dict[str, Any]], source: str) -> str:
    return f"median error of {errors([row for row in rows if row['prices'] == source], 'prices', digits=0)}"


def _draw_served(panels: tuple[tuple[str, str], ...], *shape: Any) -> alt.HConcatChart:
    return alt.HConcatChart(hconcat=[_panel(source, title, shape) for source, title in panels])


def _panel(source: str, title: str, shape: tuple[Any, ...]) -> alt.LayerChart:
    heading = alt.TitleParams(title, fontSize=12, fontWeight="normal", offset=8)
    panel = scatter(f"datum.prices === '{source}'", *shape)
    sized: alt.LayerChart = panel.properties(width=_SIDE, height=_SIDE, title=heading)
    return sized


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
