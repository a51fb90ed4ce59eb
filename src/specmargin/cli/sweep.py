"""`specmargin sweep`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, needs_extra
from specmargin.files import check_new

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SCHEMA = "specmargin.sweep-report/1"
_SHOWN = 20  # rows on a terminal


@app.command()
def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="A base run and lists of values for its fields.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results as JSON lines; cells in it are not run again. [GRID.jsonl]"),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes. Default: all cores.", min=1)] = None,
    ray: Annotated[str | None, typer.Option("--ray", help="Run on a Ray cluster: its address, auto or local.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Also write a flat table of all cells.")] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw goodput against the time between tokens: FILE.png, .svg, .html or .json."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the table and the figure.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Simulate every combination of models, GPUs, policies, loads and seeds.

    Each finished cell is written immediately; run the same command again to resume.

    A grid:

      [base.scenario]
      model = "qwen3.6-35b-a3b"
      gpu = "h200"
      [base.workload]
      requests_per_second = 4
      requests = 500
      [grid]
      policy = ["none", "fixed:2", "controller"]
      "workload.requests_per_second" = [1, 2, 4, 8]
      seed = [0, 1, 2]

    Examples:

      specmargin sweep grid.toml

      specmargin sweep grid.toml -o results.jsonl --ray auto --parquet results.parquet
    """
    for path in (parquet, figure):
        if path is not None:
            check_new(path, force=force)
    if figure is not None:
        from specmargin.figures.files import check_target

        check_target(figure, force=force)
    from specmargin.app.simulation_schema import read_sweep
    from specmargin.simulator.sweep import make_cells, read_results
    from specmargin.simulator.sweep import sweep as run_all

    results = output or grid.with_suffix(".jsonl")
    check_new(results, force=True)  # cells in it are kept
    cells = make_cells([cell.description() for cell in read_sweep(grid)], grid.parent)
    with render.progress("cells", len(cells)) as advance:
        swept = run_all(cells, results, _runner(workers, ray), grid.parent.resolve(), advance)
    rows = read_results(results)
    swept_rows = [rows[cell.key] for cell in cells]
    _save(swept_rows, parquet, figure)
    if json:
        payload = {"schema": SCHEMA, "output": str(results), "cells": swept.cells, "ran": swept.ran}
        render.json_out(payload | {"failed": swept.failed, "rows": [flat(row) for row in swept_rows]})
    else:
        _show(render.console(), swept_rows, results, swept.ran, swept.failed)


def _runner(workers: int | None, ray: str | None) -> Any:
    with needs_extra("simulate"):
        import numba  # noqa: F401 (reported once here, not by every worker)
    from specmargin.app.serving import run_cell
    from specmargin.simulator.sweep import LocalRunner, RayRunner

    if ray is not None:
        return RayRunner(run=run_cell, address=ray, workers=workers)
    return LocalRunner(run=run_cell, workers=workers or os.cpu_count() or 1)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A flat row: the parameters of a cell and its results, nested names joined with underscores."""
    cell = row["cell"]
    load = cell["workload"]
    columns = {
        "key": row["key"],
        "model": cell["scenario"]["model"],
        "gpu": cell["scenario"]["gpu"],
        "policy": cell["policy"],
        "requests_per_second": load["requests_per_second"],
        "users": load["users"],
        "seed": cell["seed"],
        "error": row.get("error"),
    }
    for name, value in row.get("result", {}).items():
        columns |= {f"{name}_{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return columns


def _save(rows: list[dict[str, Any]], parquet: Path | None, figure: Path | None) -> None:
    table = [flat(row) for row in rows]
    if parquet is not None:
        with needs_extra("simulate"):
            import polars as pl

        try:
            pl.DataFrame(table, infer_schema_length=None).write_parquet(parquet)
        except OSError as error:
            raise InputError(f"{parquet}: cannot be written ({error.strerror or error})") from None
    if figure is not None:
        with needs_extra("figures"):
            from specmargin.figures.files import save
            from specmargin.figures.simulation import pareto_figure

        records = [_point(row) for row in table if row["error"] is None and row.get("tpot_seconds_p50") is not None]
        if not records:
            raise InputError("nothing to draw: no cell finished a request of more than one token")
        save(pareto_figure("Goodput against the time between tokens", records, subtitle="modelled"), figure)


def _point(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "policy": row["policy"],
        "load": row["requests_per_second"] or row["users"] or 0,
        "goodput_tokens_per_second": row["goodput_tokens_per_second"],
        "tpot_seconds": row["tpot_seconds_p50"],
    }


def _show(out: Console, rows: list[dict[str, Any]], path: Path, ran: int, failed: int) -> None:
    failures = f", {failed} failed" if failed else ""
    out.print(f"{len(rows)} cells, {ran} run now{failures}; all in {path}", style="bold", markup=False)
    out.print()
    columns = [("model", "left"), ("GPU", "left"), ("policy", "left"), ("load", "right"), ("seed", "right")]
    columns += [("goodput", "right"), ("busy tok/s", "right"), ("TPOT p50", "right"), ("TTFT p50", "right")]
    shown = render.table("the first cells" if len(rows) > _SHOWN else "", columns)
    for row in [flat(row) for row in rows[:_SHOWN]]:
        load = f"{row['requests_per_second']:g}/s" if row["requests_per_second"] else f"{row['users'] or '-'}"
        head = [row["model"], row["gpu"], row["policy"], load, str(row["seed"])]
        shown.add_row(*head, *_cells(row))
    out.print(shown)
    errors = list(dict.fromkeys(row["error"] for row in rows if "error" in row))
    render.warnings(out, [str(error) for error in errors[:3]])


def _cells(row: dict[str, Any]) -> list[str]:
    if row["error"] is not None:
        return ["-"] * 4
    speeds = [f"{row[name]:,.0f}" for name in ("goodput_tokens_per_second", "busy_tokens_per_second")]
    times = [row["tpot_seconds_p50"], row["ttft_seconds_p50"]]
    return speeds + ["-" if value is None else render.seconds(value) for value in times]
