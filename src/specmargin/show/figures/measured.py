"""Residuals of prices on measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from specmargin.validation.sources import measured_rows, priced_seconds

if TYPE_CHECKING:
    from specmargin.architecture.types import Architecture
    from specmargin.decisions.scenario import Scenario
    from specmargin.prices.measured_schema import PriceFile

_KINDS = {"none": "#555555", "strangers": "#b35806", "alike": "#2166ac", "drafted": "#1b7837"}
_WIDTH, _HEIGHT = 300, 240


def residual_figure(file: PriceFile, model: Architecture, scenarios: Mapping[str, Scenario]) -> alt.HConcatChart:
    """Predicted over measured step time by measured time, one panel per source."""
    rows, steps = measured_rows(file, model)
    ratios = {name: priced_seconds(scenario, steps) / steps.seconds for name, scenario in scenarios.items()}
    low = min(0.8, *(float(r.min()) for r in ratios.values())) * 0.97
    high = max(1.25, *(float(r.max()) for r in ratios.values())) * 1.03
    panels = []
    for name, ratio in ratios.items():
        values = [
            {
                "measured": float(steps.seconds[i]) * 1e3,
                "ratio": float(ratio[i]),
                "kind": row["kind"],
                "batch": row["batch"],
                "depth": row["depth"],
            }
            for i, row in enumerate(rows)
        ]
        panels.append(_residual_panel(name, values, (low, high)))
    title = alt.TitleParams(
        f"{file.model.name}: predicted over measured step time",
        subtitle=f"{file.conditions['engine']}, {file.conditions['machine']}; dashed: ±12%",
    )
    styled: alt.HConcatChart = alt.HConcatChart(hconcat=panels, title=title).configure_title(anchor="start")
    return styled


def _residual_panel(name: str, values: list[dict[str, Any]], domain: tuple[float, float]) -> alt.LayerChart:
    errors = sorted(abs(value["ratio"] - 1.0) for value in values)
    kinds = [kind for kind in _KINDS if any(value["kind"] == kind for value in values)]
    points = (
        alt.Chart(alt.InlineData(values=values))
        .mark_circle(size=30, opacity=0.7)
        .encode(
            x=alt.X("measured:Q", scale=alt.Scale(type="log", nice=False, padding=8), title="measured step, ms"),
            y=alt.Y(
                "ratio:Q", scale=alt.Scale(type="log", domain=list(domain), nice=False), title="predicted / measured"
            ),
            color=alt.Color(
                "kind:N", scale=alt.Scale(domain=kinds, range=[_KINDS[kind] for kind in kinds]), title="drafts"
            ),
            tooltip=[
                alt.Tooltip("batch:Q"),
                alt.Tooltip("depth:Q"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("measured:Q"),
                alt.Tooltip("ratio:Q"),
            ],
        )
    )
    lines = [_level(level, dash) for level, dash in ((1.0, ()), (1.12, (4, 3)), (0.88, (4, 3)))]
    title = alt.TitleParams(f"{name}: median {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.0%}", fontSize=11)
    return alt.LayerChart(layer=[*lines, points], width=_WIDTH, height=_HEIGHT, title=title)


def _level(level: float, dash: Sequence[float]) -> alt.Chart:
    line: alt.Chart = (
        alt.Chart(alt.InlineData(values=[{"ratio": level}]))
        .mark_rule(color="#555555", strokeDash=list(dash))
        .encode(y=alt.Y("ratio:Q"))
    )
    return line
