"""Price sources on the steps of a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specmargin.architecture.types import Architecture
from specmargin.decisions.scenario import Scenario
from specmargin.measure.fit import Steps
from specmargin.measure.price_file import Row, fitted_rows, usable
from specmargin.prices.measured_schema import PriceFile
from specmargin.prices.model import ledger
from specmargin.step import FloatArray, Step


def step_points(file: PriceFile, model: Architecture, scenarios: Mapping[str, Scenario]) -> list[dict[str, Any]]:
    """The steps that a file was fitted to, each beside its price of every source, in milliseconds."""
    rows, steps = measured_rows(file, model)
    predicted = {name: _priced_seconds(scenario, steps) for name, scenario in scenarios.items()}
    return [
        {
            "prices": name,
            **{column: row[column] for column in ("kind", "batch", "depth")},
            "measured": float(steps.seconds[i]) * 1e3,
            "predicted": float(seconds[i]) * 1e3,
        }
        for name, seconds in predicted.items()
        for i, row in enumerate(rows)
    ]


def measured_rows(file: PriceFile, model: Architecture) -> tuple[list[Row], Steps]:
    """The steps that a file was fitted to."""
    mode = next(iter(file.modes))
    rows = usable([row.model_dump() for row in file.rows], model, mode, noisy=file.evidence.noisy)
    return fitted_rows(rows, model, mode)


def _priced_seconds(scenario: Scenario, steps: Steps) -> FloatArray:
    """Prices of measured steps in a scenario, with the distinct experts of the measurement."""
    step = Step.uniform(batch=steps.batch, depth=steps.depth, context=steps.context)
    counts = scenario.layer_counts
    priced = ledger(scenario.prices, steps.works, step=step, engine=scenario.engine_time, counts=counts)
    return priced.total_seconds


def step_errors(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Errors of every source by kind of step; `bias` is the signed median."""
    rows = []
    for kind in [*dict.fromkeys(point["kind"] for point in points), "all"]:
        for source in dict.fromkeys(point["prices"] for point in points):
            own = [point for point in points if point["prices"] == source and kind in (point["kind"], "all")]
            errors = np.array([point["predicted"] / point["measured"] - 1.0 for point in own])
            rows.append(
                {
                    "kind": kind,
                    "source": source,
                    "points": len(own),
                    "median_error": float(np.median(np.abs(errors))),
                    "worst_error": float(np.abs(errors).max()),
                    "bias": float(np.median(errors)),
                }
            )
    return rows
