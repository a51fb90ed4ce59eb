"""`specmargin sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, needs_extra
from specmargin.files import STANDARD_INPUT, check_new

if TYPE_CHECKING:
    from specmargin.app.sweeping import Swept

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_SHOWN = 20  # rows on a terminal


EXAMPLE = """\
base.scenario.model = "qwen3.6-35b-a3b"
base.scenario.gpu = "h200"
base.workload.requests = 50
base.workload.requests_per_second = 4
grid.policy = ["none", "fixed:2"]
grid."workload.requests_per_second" = [1, 4]
grid.seed = [0, 1]
"""

_HELP = f"""Simulate every combination of models, GPUs, policies, loads and seeds.

Each finished cell is written immediately; run the same command again to resume.

A grid, as --example prints it:

\b
{EXAMPLE}
Examples:

  specmargin sweep --example > grid.toml

  specmargin sweep grid.toml --table results.csv

  specmargin sweep grid.toml -o results.jsonl --ray auto
"""


def _print_example(asked: bool) -> None:
    if asked:
        typer.echo(EXAMPLE, nl=False)
        raise typer.Exit


@app.command(help=_HELP)
def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="A base run and lists of values for its fields.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results as JSON lines; cells in it are not run again. [GRID.jsonl]"),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes. Default: all cores.", min=1)] = None,
    ray: Annotated[str | None, typer.Option("--ray", help="Run on a Ray cluster: its address, auto or local.")] = None,
    table: Annotated[
        Path | None, typer.Option("--table", help="Also write a flat table of all cells: FILE.csv or FILE.parquet.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw goodput against the time between tokens: FILE.png, .svg, .html or .json."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the table and the figure.")] = False,
    _example: Annotated[
        bool,
        typer.Option("--example", help="Print a grid to start from.", callback=_print_example, is_eager=True),
    ] = False,
    json: o.JsonOption = False,
) -> None:
    o.check_table(table, force=force)
    o.check_plot(figure, force=force)
    with needs_extra("simulate"):
        from specmargin.app.sweeping import cells_of, runner_of, swept, swept_json
    if output is None and str(grid) in STANDARD_INPUT:
        raise InputError("-o is needed with a grid from standard input: give a file for the finished cells")
    results = output or grid.with_suffix(".jsonl")
    if results.suffix == ".csv":
        raise InputError(f"{results}: -o takes finished cells as JSON lines; write the table with --table FILE.csv")
    check_new(results, force=True)  # cells in it are kept
    cells = cells_of(grid)
    with render.progress("cells", len(cells)) as advance:
        answer = swept(cells, results, grid.parent, runner_of(workers, ray), advance)
    o.write_rows(table, answer.rows, force=force)
    if figure is not None:
        from specmargin.api.charts import sweep_chart

        o.save_plot(figure, sweep_chart(answer))
    if json:
        render.json_out(swept_json(answer))
    else:
        _show(render.console(), answer)
    if answer.counts.failed == len(answer.results):
        raise typer.Exit(1)


def _show(out: Console, answer: Swept) -> None:
    rows = answer.rows
    out.print(f"{answer.verdict}; all in {answer.output}", style="bold", markup=False)
    out.print()
    columns = [("model", "left"), ("GPU", "left"), ("policy", "left"), ("load", "right"), ("seed", "right")]
    columns += [("goodput", "right"), ("busy tok/s", "right"), ("TPOT p50", "right"), ("TTFT p50", "right")]
    shown = render.table("the first cells" if len(rows) > _SHOWN else "", columns)
    for row in rows[:_SHOWN]:
        load = f"{row['requests_per_second']:g}/s" if row["requests_per_second"] else f"{row['users'] or '-'}"
        head = [row["model"], row["gpu"], row["policy"], load, str(row["seed"])]
        shown.add_row(*head, *_cells(row))
    out.print(shown)
    errors = list(dict.fromkeys(row["error"] for row in rows if row["error"] is not None))
    render.warnings(out, [str(error) for error in errors[:3]])


def _cells(row: dict[str, Any]) -> list[str]:
    if row["error"] is not None:
        return ["-"] * 4
    speeds = [f"{row[name]:,.0f}" for name in ("goodput_tokens_per_second", "busy_tokens_per_second")]
    times = [row["tpot_seconds_p50"], row["ttft_seconds_p50"]]
    return speeds + ["-" if value is None else render.seconds(value) for value in times]
