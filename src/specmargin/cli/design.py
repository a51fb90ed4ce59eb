"""`specmargin design`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specmargin.app.verbs_schema import DesignRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, DesignRequest)
def design(
    request: DesignRequest,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the heat map: FILE.png, .svg, .html or .json.", rich_help_panel=o.OUTPUT),
    ] = None,
    output: o.TableOption = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """Which experts suit speculation at a target batch: number, experts per token, width and shared fraction.

    Reshapes the experts of a model at equal active (or active and total) parameters and ranks the variants by
    speculative goodput. Widths are multiples of 64; variants that are not equal within 2% are left out. Prices are
    laws where available, because tables are more accurate for the model's own shape than for its variants.

    Examples:

      specmargin design qwen3.6-35b-a3b --gpu h200 --batch 32 --plot design.png

      specmargin design qwen3.6-35b-a3b --gpu h200 --batch 128 --hold total
    """
    from specmargin.answers.stamp import stamped
    from specmargin.app.designing import explore_design
    from specmargin.cli import design_view, render

    o.check_table(output, force=force)
    o.check_plot(plot, force=force)
    result = explore_design(request, progress=partial(render.tracked, "variants"))
    if plot is not None:
        design_view.draw(result, plot)
    payload = design_view.payload(result)
    o.write_rows(output, payload["rows"], force=force)
    if json:
        render.json_out(stamped(payload, request, result.scenario))
    else:
        design_view.show(result)
