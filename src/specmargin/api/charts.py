"""The Altair chart of each answer: the same for `--plot` and for `plot()` in Python."""

from __future__ import annotations

from typing import Any

from specmargin.app.simulating import Simulated
from specmargin.app.sweeping import Swept
from specmargin.errors import InputError
from specmargin.figures.figure import Chart
from specmargin.figures.simulation import Run, Words, day_figure, pareto_figure, policies_figure

_SIMULATOR = "Specmargin's simulator (modelled)"
_HOURS = 3  # shortest run whose figure compares policies by hour


def simulation_chart(answer: Simulated) -> Chart:
    """One policy over time, or several side by side."""
    title, results = f"{answer.described.scenario.model} on {answer.described.scenario.gpu}", answer.results
    if len(results) == 1:
        result = results[0]
        run = Run(policy=result.serving.policy, timeline=result.timeline(), hourly=_by_hour(result.hourly()))
        said = f"Policy {result.serving.policy}, {result.requests.count:,} requests."
        return day_figure(Words(title=title, takeaway=said, source=_SIMULATOR), [run]).chart()
    rows = [result.policy_row() for result in results]
    hourly = [row | {"policy": result.serving.policy} for result in results for row in result.hourly()]
    if len({row["hour"] for row in hourly}) < _HOURS:
        hourly = []
    words = Words(title=title, takeaway="Every policy serves the same requests.", source=_SIMULATOR)
    return policies_figure(words, rows, hourly).chart()


def _by_hour(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """In the middle of their hour."""
    return [row | {"hour": row["hour"] + 0.5} for row in rows]


def sweep_chart(swept: Swept) -> Chart:
    """Goodput against the time between tokens, one line per policy."""
    rows = [row for row in swept.rows if row["error"] is None and row.get("tpot_seconds_p50") is not None]
    if not rows:
        raise InputError("nothing to draw: no cell finished a request of more than one token")
    words = Words(
        title="Goodput against the time between tokens",
        takeaway="One line per policy, over its loads.",
        source=_SIMULATOR,
    )
    return pareto_figure(words, [_point(row) for row in rows]).chart()


def _point(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "policy": row["policy"],
        "load": row["requests_per_second"] or row["users"] or 0,
        "goodput_tokens_per_second": row["goodput_tokens_per_second"],
        "tpot_seconds": row["tpot_seconds_p50"],
    }
