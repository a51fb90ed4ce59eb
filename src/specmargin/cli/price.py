"""`specmargin price`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmargin.app.verbs_schema import PriceRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, PriceRequest)
def price(
    request: PriceRequest,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw the price of one more token by batch: FILE.png, .svg, .html, .json.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """The ledger of one step: seconds, bytes and FLOPs by component, and the cost of one more position.

    With --depth, the drafter's passes are listed below the verify step.

    Example: specmargin price deepseek-v4-flash --gpu b200 --batch 8 --depth 2
    """
    from specmargin.app.scenarios import scenario_of
    from specmargin.cli import price_view
    from specmargin.decisions.pricer import Pricer

    o.check_plot(plot, force=force)
    _, scenario = scenario_of(request)
    pricer = Pricer(scenario)
    pricer.check_memory()
    if plot is not None:
        from specmargin.figures.files import save
        from specmargin.figures.ledger import ledger_figure

        save(ledger_figure(pricer, graph_limit=scenario.engine_time.graph_limit).chart(), plot)
    price_view.show(pricer, request.batch, request.depth, json=json)
