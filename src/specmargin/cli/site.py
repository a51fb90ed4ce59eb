"""`specmargin site`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, needs_extra

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_WHAT = "What it covers"


@app.command()
def site(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the site; created if it does not exist.")],
    models: Annotated[
        str,
        typer.Option(
            "--models", metavar="LIST", help="Bundled models, or all.", show_default="five", rich_help_panel=_WHAT
        ),
    ] = "qwen3.6-35b-a3b,deepseek-v3,gpt-oss-120b,glm-4.5-air,llama-3.1-70b",
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="LIST", help="Bundled GPUs, or all.", rich_help_panel=_WHAT)
    ] = "h100,h200,b200",
    engines: Annotated[
        str,
        typer.Option(
            "--engines", metavar="LIST", help="vllm, sglang, trtllm, llamacpp, or all.", rich_help_panel=_WHAT
        ),
    ] = "vllm,sglang,trtllm",
    drafters: Annotated[
        str,
        typer.Option(
            "--drafters",
            metavar="LIST",
            help="own (mtp where the model has a head, else eagle), mtp, eagle, dflash, ngram; the first is the "
            "default on the page.",
            rich_help_panel=_WHAT,
        ),
    ] = "own,ngram",
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Where the site will be, such as https://example.org/moe: preview cards need whole addresses.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Processes. Default: all cores.", min=1, max=1024, rich_help_panel=o.OUTPUT),
    ] = None,
    json: o.JsonOption = False,
) -> None:
    """Write a static site: the page of `explore` for chosen models, for any web host.

    Python writes prices on grids of batch, draft depth and context; the page
    interpolates, so acceptance, batch, context and price per GPU-hour stay live
    without a server. Each model runs on the fewest GPUs with room for a small
    service. Every state is a link, and every model has a preview card. Nothing is
    loaded from elsewhere.

    A stopped build resumes: run the same command again. Finished cells are kept
    until the release or their inputs change.

    Examples:

      specmargin site public

      specmargin site public --models gpt-oss-120b,kimi-k2 --gpus h100,b200

      specmargin site public && python -m http.server -d public
    """
    with needs_extra("explore"):
        from specmargin.site.building import build_cells, select
        from specmargin.site.pages import write_pages
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give the name of a folder")
    if url is not None and not url.startswith(("http://", "https://")):
        raise InputError(f"--url {url}: give a whole address, such as https://example.org/moe")
    selection = select(models, gpus, engines, drafters)
    cells = len(selection.models) * len(selection.gpus) * len(selection.engines)
    with render.progress("cells", cells) as advance:
        outcomes, built = build_cells(selection, out, jobs or os.cpu_count() or 1, advance)
    with render.waiting("writing pages"):
        write_pages(out, selection, outcomes, url)
    refused = sorted({outcome.refused for outcome in outcomes if outcome.refused is not None})
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    if json:
        priced = sum(outcome.path is not None for outcome in outcomes)
        render.json_out(
            {
                "schema": "specmargin.site/1",
                "output": str(out),
                "cells": priced,
                "built_now": built,
                "refused": refused,
                "bytes": size,
            }
        )
        return
    shown = render.console()
    shown.print(
        f"{out}: {len(outcomes)} cells ({built} built now), {size / 1e6:.1f} MB; open it through any web server, "
        f"such as: python -m http.server -d {out}",
        markup=False,
    )
    render.warnings(shown, [f"not on the site: {text}" for text in refused[:5]])
    if len(refused) > 5:
        render.warnings(shown, [f"and {len(refused) - 5} more"])
