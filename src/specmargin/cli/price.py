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
            help="Draw the step by component, and what one more position adds: FILE.png, .svg, .html, .json.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    output: o.TableOption = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """The cost of one step: seconds, bytes and FLOPs by component, and the cost of one more position.

    With --depth, the drafter's passes are listed below the verify step.

    Example: specmargin price deepseek-v4-flash --gpu b200 --batch 8 --depth 2
    """
    from specmargin.app.ledger import ledger_json, ledger_of
    from specmargin.cli import price_view, render

    o.check_table(output, force=force)
    o.check_plot(plot, force=force)
    ledger = ledger_of(request)
    o.write_rows(output, ledger_json(ledger)["components"], force=force)
    if plot is not None:
        from specmargin.api.charts import ledger_chart

        o.save_plot(plot, ledger_chart(ledger))
    if json:
        render.json_out(ledger_json(ledger))
    else:
        price_view.show(ledger)
