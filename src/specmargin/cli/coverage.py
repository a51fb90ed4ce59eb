"""`specmargin coverage`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmargin.app.verbs_schema import CoverageRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command
from specmargin.errors import ScenarioError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, CoverageRequest)
def coverage(
    request: CoverageRequest,
    grouping: Annotated[
        str | None,
        typer.Option(
            metavar="CAPTURE",
            help="From a capture: distinct experts saved by choosing which sequences share a step.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the curves: FILE.png, .svg, .html or .json.", rich_help_panel=o.OUTPUT),
    ] = None,
    output: o.TableOption = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """Distinct experts by number of positions: independent tokens (width), or one run (depth).

    Skew: popularity without locality. Uniform: neither. Under uniform routing all four agree.

    Examples:

      specmargin coverage qwen3.6-35b-a3b --positions 1-16 --plot coverage.png

      specmargin coverage MODEL --routing mine.routing.json:coding=0.7,prose=0.3 --layer 3
    """
    from specmargin.app.covering import coverage_json, coverage_of
    from specmargin.cli import coverage_view, render

    if grouping is not None:
        if plot is not None or output is not None:
            raise ScenarioError("--plot and --output take the curves of experts, not --grouping; leave one of them out")
        coverage_view.show_grouping(request, grouping, json=json)
        return
    o.check_table(output, force=force)
    o.check_plot(plot, force=force)
    answer = coverage_of(request)
    o.write_rows(output, answer.rows, force=force)
    if plot is not None:
        from specmargin.api.charts import coverage_chart

        o.save_plot(plot, coverage_chart(answer))
    if json:
        render.json_out(coverage_json(answer))
    else:
        coverage_view.show(answer)
