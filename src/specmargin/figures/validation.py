"""Predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

if TYPE_CHECKING:
    from specmargin.validation.report import ServedReport

_ENGINES = ("vllm", "sglang", "trtllm")
_COLOURS = ("#1b7837", "#2166ac", "#b35806")
_SIDE = 250
_TICKS = [0.3, 1, 3, 10, 30, 100, 300]  # milliseconds


def predicted_against_measured(report: ServedReport) -> alt.HConcatChart:
    """One panel a source, both axes in milliseconds a token on one scale; on the diagonal a prediction is right."""
    sources = list(report.predicted_seconds)
    values = [value for source in sources for value in (report.measured_seconds, report.predicted_seconds[source])]
    low, high = min(v.min() for v in values) * 1e3 * 0.9, max(v.max() for v in values) * 1e3 * 1.1
    panels = [_panel(report, source, (low, high)) for source in sources]
    title = alt.TitleParams(
        "Served MoE rows: time between tokens, predicted against measured",
        subtitle="tables and laws with an engine time that saw nothing of the row's model on its GPU; dashed: 25% off",
    )
    chart = alt.HConcatChart(hconcat=panels, title=title)
    styled: alt.HConcatChart = chart.configure_axis(gridOpacity=0.4).configure_title(anchor="start")
    return styled


def _panel(report: ServedReport, source: str, domain: tuple[float, float]) -> alt.LayerChart:
    rows = _rows(report, source)
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    axis = alt.Axis(values=_TICKS)
    points = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_circle(size=14, opacity=0.45)
        .encode(
            x=alt.X("measured:Q", scale=scale, axis=axis, title="measured, ms a token"),
            y=alt.Y("predicted:Q", scale=scale, axis=axis, title="predicted, ms a token"),
            color=alt.Color("engine:N", scale=alt.Scale(domain=list(_ENGINES), range=list(_COLOURS)), title="engine"),
            tooltip=["model:N", "gpu:N", "engine:N", "measured:Q", "predicted:Q"],
        )
    )
    errors = sorted(abs(row["predicted"] / row["measured"] - 1.0) for row in rows)
    title = alt.TitleParams(f"{source}: median error {errors[len(errors) // 2]:.0%}", fontSize=12)
    lines = [_line(domain, factor, dash) for factor, dash in ((1.0, ()), (1.25, (4, 3)), (0.8, (4, 3)))]
    return alt.LayerChart(layer=[*lines, points], width=_SIDE, height=_SIDE, title=title)


def _line(domain: tuple[float, float], factor: float, dash: Sequence[float]) -> alt.Chart:
    ends = [{"measured": x, "predicted": x * factor} for x in domain]
    line: alt.Chart = (
        alt.Chart(alt.InlineData(values=ends))
        .mark_line(color="#555555", strokeWidth=1, strokeDash=list(dash), clip=True)
        .encode(x="measured:Q", y="predicted:Q")
    )
    return line


def _rows(report: ServedReport, source: str) -> list[dict[str, Any]]:
    predicted = report.predicted_seconds[source]
    return [
        {
            "model": row.model,
            "gpu": row.device,
            "engine": row.engine,
            "measured": round(float(row.tpot_seconds) * 1e3, 3),
            "predicted": round(float(predicted[index]) * 1e3, 3),
        }
        for index, row in enumerate(report.rows)
        if row.is_moe
    ]
