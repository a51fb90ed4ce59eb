"""Compares price sources: on measured steps where there are any, and on a common grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmargin.architecture.types import Architecture
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.measure.fit import Steps
from specmargin.measure.price_file import Row, fitted_rows, usable
from specmargin.prices.measured_schema import PriceFile
from specmargin.prices.model import ledger
from specmargin.step import FloatArray, IntArray, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepErrors:
    """Errors of a source on measured steps of one kind; `bias` is the signed median."""

    kind: str
    source: str
    points: int
    median_error: float
    worst_error: float
    bias: float


def step_errors(file: PriceFile, model: Architecture, scenarios: Mapping[str, Scenario]) -> list[StepErrors]:
    """Errors of every source on the steps that the file was fitted to, with the counted distinct experts."""
    rows, steps = measured_rows(file, model)
    kinds = np.array([row["kind"] for row in rows])
    lines = []
    for kind in [*dict.fromkeys(kinds.tolist()), "all"]:
        chosen = np.ones(kinds.size, dtype=bool) if kind == "all" else kinds == kind
        for name, scenario in scenarios.items():
            errors = (priced_seconds(scenario, steps) / steps.seconds - 1.0)[chosen]
            lines.append(
                StepErrors(
                    kind=kind,
                    source=name,
                    points=int(chosen.sum()),
                    median_error=float(np.median(np.abs(errors))),
                    worst_error=float(np.abs(errors).max()),
                    bias=float(np.median(errors)),
                )
            )
    return lines


def measured_rows(file: PriceFile, model: Architecture) -> tuple[list[Row], Steps]:
    """The steps that a file was fitted to."""
    mode = next(iter(file.modes))
    rows = usable([row.model_dump() for row in file.rows], model, mode, noisy=file.evidence.noisy)
    return fitted_rows(rows, model, mode)


def step_points(file: PriceFile, model: Architecture, scenarios: Mapping[str, Scenario]) -> list[dict[str, Any]]:
    """Every measured step beside its price of every source, in milliseconds."""
    rows, steps = measured_rows(file, model)
    predicted = {name: priced_seconds(scenario, steps) for name, scenario in scenarios.items()}
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


def priced_seconds(scenario: Scenario, steps: Steps) -> FloatArray:
    """Prices of measured steps in a scenario, with the distinct experts of the measurement."""
    step = Step.uniform(batch=steps.batch, depth=steps.depth, context=steps.context)
    counts = scenario.layer_counts
    priced = ledger(scenario.prices, steps.works, step=step, engine=scenario.engine_time, counts=counts)
    return priced.total_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonGrid:
    batches: IntArray
    depths: IntArray
    seconds: dict[str, FloatArray]  # by source: verify step by batch and depth
    best_depth: dict[str, IntArray]  # by source: best depth by batch


def common_grid(scenarios: Mapping[str, Scenario], batches: Sequence[int], max_depth: int) -> CommonGrid:
    grids = {name: Pricer(scenario).grid(batches, max_depth) for name, scenario in scenarios.items()}
    return CommonGrid(
        batches=np.asarray(batches, dtype=np.int64),
        depths=np.arange(max_depth + 1),
        seconds={name: grid.verify_seconds for name, grid in grids.items()},
        best_depth={name: np.argmax(grid.goodput, axis=1) for name, grid in grids.items()},
    )
