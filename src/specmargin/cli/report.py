"""`specmargin report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, needs_extra
from specmargin.files import check_new, write_text
from specmargin.hardware.layout import Parallel

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def report(
    model: o.Model,
    gpu: o.Gpu,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page: FILE.html.")],
    gpus: o.Gpus = 1,
    parallel: o.ParallelOption = Parallel.TP,
    engine: o.EngineOption = "vllm",
    prices: o.PricesOption = None,
    drafter: o.DrafterOption = None,
    acceptance: o.AcceptanceOption = None,
    routing: o.RoutingOption = None,
    context: o.ContextOption = 1024,
    batch: Annotated[int, typer.Option("--batch", help="The batch that the story speaks of.", min=1, max=65536)] = 16,
    depth: Annotated[int, typer.Option("--depth", help="Deepest draft to consider.", min=1, max=64)] = 8,
    weights: o.WeightsOption = None,
    kv_cache: o.KvOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Verdict, flags, the story and all figures as one file to send: no script in it, and nothing fetched by it.

    Example: specmargin report qwen3.6-35b-a3b --gpu h200 -o report.html
    """
    with needs_extra("explore"):
        from specmargin.explorer.gallery import GALLERY  # noqa: PLC0415
        from specmargin.explorer.report import page  # noqa: PLC0415
        from specmargin.explorer.view import View  # noqa: PLC0415
    if output.suffix != ".html":
        raise InputError(f"{output}: a report ends in .html")
    check_new(output, force=force)
    options = o.ScenarioOptions(
        model=model,
        gpu=gpu,
        gpus=gpus,
        parallel=parallel,
        engine=engine,
        prices=prices,
        drafter=drafter,
        acceptance=acceptance,
        routing=routing,
        context=context,
        weights=weights,
        kv_cache=kv_cache,
    )
    view = View(options=options, batch=batch, max_depth=depth)
    with render.progress("drawing", len(GALLERY)) as advance:
        text = page(view, advance=lambda: advance(1))
    write_text(output, text, force=force)
    render.console().print(f"{output}: {view.plan['verdict']}", markup=False)
