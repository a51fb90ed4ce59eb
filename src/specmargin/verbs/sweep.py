"""Simulate every combination of models, GPUs, policies, loads and seeds.

Each finished cell is written immediately; run the same command again to resume.

A grid, as --example prints it:

  base.model = "qwen3.6-35b-a3b"
  base.gpu = "h200"
  base.requests = 50
  grid.policy = ["none", "fixed:2"]
  grid.qps = [1, 4]
  grid.seed = [0, 1]

Examples:

  specmargin sweep --example > grid.toml
  specmargin sweep grid.toml --table results.csv
  specmargin sweep grid.toml -o results.jsonl --ray auto
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Table, Verbatim, bold, left, right, warned
from specmargin.answers.outputs_schema import FILE, OUTPUT, Outputs
from specmargin.answers.request_schema import Request, Shown, read_request
from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import InputError, ScenarioError
from specmargin.files import STANDARD_INPUT, check_new, check_table, origin, read_toml, write_table
from specmargin.schema import StrictModel, first_complaint
from specmargin.verbs.simulate.answer import flat
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.words import duration

if TYPE_CHECKING:
    from specmargin.show.figures.figure import Chart
    from specmargin.simulator.sweep import Runner, SweepCounts

_SHOWN = 20  # rows on a terminal
_MOST_CELLS = 1_000_000
EXAMPLE = """\
base.model = "qwen3.6-35b-a3b"
base.gpu = "h200"
base.requests = 50
grid.policy = ["none", "fixed:2"]
grid.qps = [1, 4]
grid.seed = [0, 1]"""


# --- request ---


class SweepFile(StrictModel):
    """A base run and, under `grid`, lists of values for its keys: every combination is a cell."""

    schema_: Literal["specmargin.sweep/2"] = Field(default="specmargin.sweep/2", alias="schema")
    base: dict[str, Any]
    grid: dict[str, list[Any]]

    @model_validator(mode="after")
    def _not_too_many(self) -> SweepFile:
        for name, values in self.grid.items():
            if not values:
                raise ValueError(f"grid.{name} has no values")
        count = math.prod(map(len, self.grid.values()))
        if count > _MOST_CELLS:
            raise ValueError(f"{count:,} cells exceed the limit of {_MOST_CELLS:,}")
        return self

    def combinations(self) -> Iterator[dict[str, Any]]:
        for cell in itertools.product(*self.grid.values()):
            yield {"policy": "controller"} | self.base | dict(zip(self.grid, cell, strict=True))


class SweepRequest(Request):
    grid: Annotated[
        str | dict[str, Any],
        Field(description="A base run and lists of values for its fields."),
        Shown(argument=True, metavar="GRID.toml"),
    ] = ""
    workers: Annotated[int | None, Field(ge=1, description="Processes."), Shown(metavar="N", default="all cores")] = (
        None
    )
    ray: Annotated[
        str | None, Field(description="Run on a Ray cluster: its address, auto or local."), Shown(metavar="ADDRESS")
    ] = None
    example: Annotated[bool, Field(description="Print a grid to start from.")] = False

    @property
    def folder(self) -> Path:
        """To which paths in the grid are relative."""
        return Path(self.grid).parent if isinstance(self.grid, str) else Path()


class SweepOutputs(Outputs):
    force: Annotated[bool, Field(description="Overwrite the table and the figure."), OUTPUT] = False
    output: Annotated[
        Path | None,
        Field(description="Results as JSON lines; cells in it are not run again."),
        OUTPUT.as_("FILE", "GRID.jsonl").named("--output", "-o"),
    ] = None
    table: Annotated[
        Path | None, Field(description="Also write a flat table of all cells: FILE.csv or FILE.parquet."), FILE
    ] = None
    plot: Annotated[
        Path | None,
        Field(description="Draw goodput against the time between tokens: FILE.png, .svg, .html or .json."),
        FILE,
    ] = None

    def check(self) -> None:
        if self.table is not None:
            check_table(self.table, force=self.force)
        if self.plot is not None:
            from specmargin.show.figures.files import check_target

            check_target(self.plot, force=self.force)


# --- verb ---


@verb(SweepRequest, outputs=SweepOutputs)
def sweep(
    request: SweepRequest, *, outputs: SweepOutputs | None = None, progress: Progress = silent
) -> SweepAnswer | ExampleAnswer:
    return ExampleAnswer(request=request) if request.example else swept(request, outputs=outputs, progress=progress)


def swept(request: SweepRequest, *, outputs: SweepOutputs | None = None, progress: Progress = silent) -> SweepAnswer:
    if not request.grid:
        raise ScenarioError("give a grid, GRID.toml; `specmargin sweep --example` prints one to start from")
    from specmargin.simulator import sweep as cells_on_disk

    output = _output(request, outputs)
    folder = request.folder
    cells = cells_on_disk.make_cells(cells_of(request.grid), folder)
    with progress("cells", len(cells)) as advance:
        counts = cells_on_disk.sweep(cells, output, _runner(request), folder.resolve(), advance)
    finished = cells_on_disk.read_results(output)
    return SweepAnswer(request=request, output=output, counts=counts, cells=[finished[cell.key] for cell in cells])


def cells_of(grid: str | dict[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the grid's values: all options of the run, defaults included. They identify a cell."""
    from specmargin.answers.stamp import used_options

    source = origin(Path(grid)) if isinstance(grid, str) else "grid"
    described = read_toml(Path(grid), ScenarioError) if isinstance(grid, str) else grid
    try:
        file = SweepFile.model_validate(described)
    except ValueError as error:
        raise ScenarioError(f"{source}: {first_complaint(error)}") from None
    runs = (read_request(SimulateRequest, keys, source=source) for keys in file.combinations())
    return [used_options(run.check_complete(source), None) for run in runs]


def _output(request: SweepRequest, outputs: SweepOutputs | None) -> Path:
    """The file of finished cells, which are kept."""
    given = None if outputs is None else outputs.output
    if given is None and (not isinstance(request.grid, str) or request.grid in STANDARD_INPUT):
        raise InputError("-o is needed with a grid from standard input: give a file for the finished cells")
    output = given or Path(str(request.grid)).with_suffix(".jsonl")
    if output.suffix == ".csv":
        raise InputError(f"{output}: -o takes finished cells as JSON lines; write the table with --table FILE.csv")
    check_new(output, force=True)
    return output


def _runner(request: SweepRequest) -> Runner:
    from specmargin.simulator.sweep import LocalRunner, RayRunner
    from specmargin.verbs.simulate.serving import run_cell

    if request.ray is not None:
        return RayRunner(run=run_cell, address=request.ray, workers=request.workers)
    return LocalRunner(run=run_cell, workers=request.workers or os.cpu_count() or 1)


# --- answer ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepAnswer(Answer[SweepRequest]):
    output: Path  # finished cells, as JSON lines
    counts: SweepCounts
    cells: list[dict[str, Any]]  # with their results, in the grid's order

    schema: ClassVar[str] = "specmargin.sweep-report/2"

    @property
    def verdict(self) -> str:
        failures = f", {self.counts.failed} failed" if self.counts.failed else ""
        return f"{len(self.cells)} cells, {self.counts.ran} run now{failures}"

    @property
    def exit_code(self) -> int:
        return int(self.counts.failed == len(self.cells))

    def table(self) -> list[dict[str, Any]]:
        return [_flat_cell(cell) for cell in self.cells]

    def values(self) -> dict[str, Any]:
        """`cell`: every option of a cell, defaults included."""
        return {
            "output": str(self.output),
            "cells": self.counts.cells,
            "ran": self.counts.ran,
            "failed": self.counts.failed,
            "rows": [_flat_cell(cell) | {"cell": cell["cell"]} for cell in self.cells],
        }

    def written(self, outputs: Outputs) -> Self:
        if isinstance(outputs, SweepOutputs) and outputs.table is not None:
            write_table(outputs.table, self.table(), force=outputs.force)
        if isinstance(outputs, SweepOutputs) and outputs.plot is not None:
            from specmargin.show.figures.files import save

            save(self.plot(), outputs.plot)
        return self

    def blocks(self) -> Iterator[Block]:
        rows = self.table()
        yield bold(f"{self.verdict}; all in {self.output}")
        yield GAP
        numbers = right("load", "seed", "goodput", "busy tok/s", "TPOT p50", "TTFT p50")
        yield Table(
            title="the first cells" if len(rows) > _SHOWN else "",
            columns=[*left("model", "GPU", "policy"), *numbers],
            rows=[_shown(row) for row in rows[:_SHOWN]],
        )
        errors = list(dict.fromkeys(str(row["error"]) for row in rows if row["error"] is not None))
        yield from warned([*_shortened(rows), *errors[:3]])

    def chart(self) -> Chart:
        """Goodput against the time between tokens, one line per policy."""
        from specmargin.show.figures.simulation import SIMULATOR, Words, pareto_figure

        rows = [row for row in self.table() if row["error"] is None and row.get("tpot_seconds_p50") is not None]
        if not rows:
            raise InputError("nothing to draw: no cell finished a request of more than one token")
        words = Words(
            title="Goodput against the time between tokens",
            takeaway="One line per policy, over its loads.",
            source=SIMULATOR,
        )
        return pareto_figure(words, [_point(row) for row in rows]).chart()


def _flat_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a cell and its results."""
    described = cell["cell"]
    return {
        "key": cell["key"],
        **{name: described[name] for name in ("model", "gpu", "policy", "qps", "concurrency", "seed")},
        "error": cell.get("error"),
        **flat(cell.get("result", {})),
    }


def _shortened(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Where nothing is compiled: one sentence for all cells."""
    shortened = [str(row["shortened"]) for row in rows if row.get("shortened") is not None]
    if shortened:
        yield f"{len(shortened)} of {len(rows)} cells are shortened, the first to {shortened[0]}"


def _shown(row: dict[str, Any]) -> list[str]:
    load = f"{row['qps']:g}/s" if row["qps"] else f"{row['concurrency'] or '-'}"
    head = [row["model"], row["gpu"], row["policy"], load, str(row["seed"])]
    if row["error"] is not None:
        return [*head, *["-"] * 4]
    speeds = [f"{row[name]:,.0f}" for name in ("goodput_tokens_per_second", "busy_tokens_per_second")]
    times = [row["tpot_seconds_p50"], row["ttft_seconds_p50"]]
    return [*head, *speeds, *("-" if value is None else duration(value) for value in times)]


def _point(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "policy": row["policy"],
        "load": row["qps"] or row["concurrency"] or 0,
        "goodput_tokens_per_second": row["goodput_tokens_per_second"],
        "tpot_seconds": row["tpot_seconds_p50"],
    }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExampleAnswer(Answer[SweepRequest]):
    schema: ClassVar[str] = "specmargin.sweep-example/1"

    @property
    def verdict(self) -> str:
        return EXAMPLE

    def values(self) -> dict[str, Any]:
        return {"grid": EXAMPLE}

    def blocks(self) -> Iterator[Block]:
        yield Verbatim(EXAMPLE)
