"""The answer to a sweep: every cell of a grid, its flat rows, and the JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmargin.answers.stamp import stamped
from specmargin.app.simulation_schema import SimulationFile, parse_sweep, read_sweep
from specmargin.errors import needs_extra
from specmargin.simulator.sweep import LocalRunner, RayRunner, Runner, SweepCounts, make_cells, read_results, sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    output: Path  # finished cells, as JSON lines
    counts: SweepCounts
    results: list[dict[str, Any]]  # one per cell, in the grid's order

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [flat(result) for result in self.results]

    @property
    def verdict(self) -> str:
        failures = f", {self.counts.failed} failed" if self.counts.failed else ""
        return f"{len(self.results)} cells, {self.counts.ran} run now{failures}"


def cells_of(grid: Path | Mapping[str, Any]) -> list[SimulationFile]:
    return parse_sweep(dict(grid), "grid") if isinstance(grid, Mapping) else read_sweep(grid)


def swept(
    descriptions: list[SimulationFile],
    output: Path,
    folder: Path,
    runner: Runner,
    advance: Callable[[int], None] = lambda _: None,
) -> Swept:
    """Run the cells that `output` does not hold yet. Paths in the grid are relative to `folder`."""
    cells = make_cells([cell.description() for cell in descriptions], folder)
    counts = sweep(cells, output, runner, folder.resolve(), advance)
    rows = read_results(output)
    return Swept(output=output, counts=counts, results=[rows[cell.key] for cell in cells])


def runner_of(workers: int | None, ray: str | None = None) -> Runner:
    with needs_extra("simulate"):
        import numba  # noqa: F401, PLC0415 (reported once here, not by every worker)
    from specmargin.app.serving import run_cell  # noqa: PLC0415

    if ray is not None:
        return RayRunner(run=run_cell, address=ray, workers=workers)
    return LocalRunner(run=run_cell, workers=workers or os.cpu_count() or 1)


def flat(result: dict[str, Any]) -> dict[str, Any]:
    """A flat row: the parameters of a cell and its results, nested names joined with underscores."""
    cell = result["cell"]
    load = cell["workload"]
    columns = {
        "key": result["key"],
        "model": cell["scenario"]["model"],
        "gpu": cell["scenario"]["gpu"],
        "policy": cell["policy"],
        "requests_per_second": load["requests_per_second"],
        "users": load["users"],
        "seed": cell["seed"],
        "error": result.get("error"),
    }
    for name, value in result.get("result", {}).items():
        columns |= {f"{name}_{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return columns


def swept_json(swept: Swept) -> dict[str, Any]:
    """The JSON of `specmargin sweep --json`. `cell`: every option of a cell, defaults included."""
    counts = swept.counts
    rows = [flat(result) | {"cell": result["cell"]} for result in swept.results]
    values = {"schema": "specmargin.sweep-report/1", "output": str(swept.output), "cells": counts.cells}
    return stamped(values | {"ran": counts.ran, "failed": counts.failed, "rows": rows})
