"""Predicted against measured: rounds, steps and speed-ups, as points around a diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from specmargin.show.figures.figure import Figure, rounded
from specmargin.show.figures.marks import Plane, by_name, layers, tips

if TYPE_CHECKING:
    from specmargin.validation.speedups import SpeedupReport

Rows = Sequence[dict[str, Any]]
LEGEND = "Solid line: exact; dashed: 25% off."
MILLISECONDS = (0.3, 1, 2, 3, 5, 10, 20, 30, 50, 100, 300)
_SHAPES = ["circle", "diamond", "square", "triangle-up"]


def rounds_figure(engine: str, rounds: Rows) -> Figure:
    """Rounds of a real engine against predictions that were not fitted to their model, by price source."""
    rows: list[dict[str, Any]] = [
        {
            "measured": rounded(row["measured_seconds"] * 1e3),
            "predicted": rounded(row["predicted_seconds"] * 1e3),
            **{name: row[name] for name in ("prices", "model", "batch", "depth")},
        }
        for row in rounds
    ]
    first = [row for row in rows if row["prices"] == rows[0]["prices"]]
    batches = [row["batch"] for row in rows]
    return scatter_figure(
        rows,
        name="validation",
        title="Predicted against measured, whole rounds",
        takeaway=(
            f"{len(first)} rounds of {', '.join(dict.fromkeys(row['model'] for row in rows))} on an H200 under vLLM "
            f"0.32, drafting included, batch {min(batches)} to {max(batches)}: median error {errors(rows, 'prices')} "
            f"(worst {max(_errors(first)):.0%}). The engine time of each model is fitted to the others. {LEGEND}"
        ),
        source=f"Specmargin measurement, {engine}; python -m lab.validation.rounds",
        by="prices",
        unit="ms/round",
    )


def steps_figure(rows: Rows, *, model: str, source: str) -> Figure:
    """Steps of a price file against price sources."""
    count = sum(row["prices"] == rows[0]["prices"] for row in rows)
    return scatter_figure(
        rows,
        name="steps",
        title="Predicted against measured, steps",
        takeaway=f"{count} steps of {model}. Median error: {errors(rows, 'prices')}. {LEGEND}",
        source=source,
        by="prices",
        unit="ms/step",
    )


def speedups_figure(report: SpeedupReport) -> Figure:
    """Speed-ups of speculation, predicted with the measured accept length, one colour per source."""
    shown = ("source", "model", "gpu", "engine", "depth", "batch")
    rows: list[dict[str, Any]] = [
        {name: getattr(row.point, name) for name in shown}
        | {"measured": round(row.point.speedup, 4), "predicted": round(row.speedup, 4)}
        for row in report.predicted
    ]
    return scatter_figure(
        sorted(rows, key=lambda row: str(row["source"])),
        name="speedups",
        title="Speed-up of speculation: predicted against measured",
        takeaway=f"Median error {np.median(_errors(rows)):.1%} on {len(rows)} measurements. {LEGEND}",
        source="specmargin validate speedups",
        by="source",
        unit="× over no speculation",
        ticks=(0.5, 0.7, 1, 1.5, 2, 3, 4),
    )


# --- any of them ---


def errors(rows: Rows, by: str, digits: int = 1) -> str:
    """`laws 5.6%, tables 2.6%`: medians by a column."""
    names = dict.fromkeys(row[by] for row in rows)
    medians = {name: np.median(_errors([row for row in rows if row[by] == name])) for name in names}
    return ", ".join(f"{name} {median:.{digits}%}" for name, median in medians.items())


def _errors(rows: Rows) -> list[float]:
    return [abs(row["predicted"] / row["measured"] - 1.0) for row in rows]


def scatter_figure(
    rows: Rows,
    *,
    name: str,
    title: str,
    takeaway: str,
    source: str,
    by: str,
    unit: str,
    ticks: tuple[float, ...] = MILLISECONDS,
) -> Figure:
    """`by`: the column that colours the points. A pointer shows every column."""
    values = [row[side] for row in rows for side in ("measured", "predicted")]
    low, high = rounded(min(values) * 0.88), rounded(max(values) * 1.12)
    shown = tuple(f"{column}:{'N' if isinstance(value, str) else 'Q'}" for column, value in rows[0].items())
    return Figure(
        name=name,
        title=title,
        takeaway=takeaway,
        source=source,
        tables={"rows": rows, **diagonals(low, high)},
        draw=scatter,
        shape=("true", by, tuple(dict.fromkeys(row[by] for row in rows)), unit, ticks, shown, low, high),
    )


def diagonals(low: float, high: float) -> dict[str, list[dict[str, Any]]]:
    def line(factor: float) -> list[dict[str, Any]]:
        return [{"measured": x, "predicted": rounded(x * factor), "factor": factor} for x in (low, high)]

    return {"exact": line(1.0), "off": [*line(1.25), *line(0.8)]}


def scatter(
    only: str,
    by: str,
    names: tuple[str, ...],
    unit: str,
    ticks: tuple[float, ...],
    shown: tuple[str, ...],
    low: float,
    high: float,
) -> alt.LayerChart:
    """`only`: the expression that chooses the points; `shown`: the columns that a pointer shows."""
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=list(ticks), format="~r")
    on = Plane(
        alt.X("measured:Q", scale=scale, axis=axis, title=f"measured, {unit}"),
        alt.Y("predicted:Q", scale=scale, axis=axis, title=f"predicted, {unit}"),
    )
    legend = alt.Legend(title=None, orient="top-left")
    shapes = alt.Scale(domain=list(names), range=[_SHAPES[i % len(_SHAPES)] for i in range(len(names))])
    points = on.points(
        "rows",
        size=32,
        opacity=0.7,
        color=by_name(by, names, legend),
        shape=alt.Shape(f"{by}:N", scale=shapes, legend=legend),
        tooltip=tips(*shown),
    )
    return layers(
        on.line("exact", style="reference", strokeDash=[1, 0], clip=True),
        on.line("off", style="reference", clip=True, detail=alt.Detail("factor:N")),
        points.transform_filter(only),
    )
