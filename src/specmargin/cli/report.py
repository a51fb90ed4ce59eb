"""`specmargin report`."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from specmargin.cli import options as o
from specmargin.cli.requests import command
from specmargin.errors import InputError, needs_extra
from specmargin.explorer.request_schema import PageRequest

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, PageRequest)
def report(
    request: PageRequest,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the page: FILE.html.", rich_help_panel=o.OUTPUT)
    ],
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """Write verdict, flags, explanation and all figures to one HTML file without scripts or network requests.

    Example: specmargin report qwen3.6-35b-a3b --gpu h200 -o report.html
    """
    from specmargin.answers.stamp import stamped
    from specmargin.cli import render
    from specmargin.files import check_new, write_text

    with needs_extra("explore"):
        from specmargin.explorer.gallery import GALLERY
        from specmargin.explorer.report import Origin, page
        from specmargin.explorer.view import View
    if output.suffix != ".html":
        raise InputError(f"{output}: the name of a report must end in .html")
    check_new(output, force=force)
    gc.set_threshold(200_000)  # by default a tenth of the time: figures are many small objects, and none is garbage
    view = View(request=request)
    with render.progress("drawing", len(GALLERY)) as advance:
        text = page(view, Origin(made=datetime.now(UTC)), advance=lambda: advance(1))
    write_text(output, text, force=force)
    if json:
        figures = [name for name in GALLERY if f'"{name}-' in text]
        payload = {"schema": "specmargin.report/1", "output": str(output), "figures": figures, "plan": view.plan}
        render.json_out(stamped(payload, request, view.scenario))
    else:
        render.console().print(f"{output}: {view.plan['verdict']}", markup=False)
