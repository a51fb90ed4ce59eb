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
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """Distinct experts by number of positions: independent tokens (width), or one run (depth).

    Skew: popularity without locality. Uniform: neither. Under uniform routing all four agree.

    Examples:

      specmargin coverage qwen3.6-35b-a3b --positions 1-16 --plot coverage.png

      specmargin coverage MODEL --routing mine.routing.json:coding=0.7,prose=0.3 --layer 3
    """
    from specmargin.cli import coverage_view

    if grouping is not None:
        if plot is not None:
            raise ScenarioError("--plot draws the curves of experts, not --grouping; leave one of them out")
        coverage_view.show_grouping(request, grouping, json=json)
        return
    o.check_plot(plot, force=force)
    coverage_view.show(request, plot, json=json)
