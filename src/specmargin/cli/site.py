"""`specmargin site`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, needs_extra

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_WHAT = "What it covers"
_MODELS = "qwen3.6-35b-a3b,deepseek-v3,gpt-oss-120b,glm-4.5-air,llama-3.1-70b"

OutArgument = Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the site; created if it does not exist.")]
ModelsOption = Annotated[
    str,
    typer.Option(
        "--models", metavar="LIST", help="Bundled models, or all.", show_default="five", rich_help_panel=_WHAT
    ),
]
GpusOption = Annotated[str, typer.Option("--gpus", metavar="LIST", help="Bundled GPUs, or all.", rich_help_panel=_WHAT)]
EnginesOption = Annotated[
    str,
    typer.Option("--engines", metavar="LIST", help="vllm, sglang, trtllm, llamacpp, or all.", rich_help_panel=_WHAT),
]
DraftersOption = Annotated[
    str,
    typer.Option(
        "--drafters",
        metavar="LIST",
        help="own (mtp where the model has a head, else eagle), mtp, eagle, dflash, ngram; the first is the "
        "default on the page.",
        rich_help_panel=_WHAT,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Where the site will be, such as https://example.org/moe: preview cards need whole addresses.",
        rich_help_panel=o.OUTPUT,
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", help="Processes. Default: all cores.", min=1, max=1024, rich_help_panel=o.OUTPUT),
]


@app.command()
def site(
    out: OutArgument,
    models: ModelsOption = _MODELS,
    gpus: GpusOption = "h100,h200,b200",
    engines: EnginesOption = "vllm,sglang,trtllm",
    drafters: DraftersOption = "own,ngram",
    url: UrlOption = None,
    jobs: JobsOption = None,
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
    _check(out, url)
    selection = select(models, gpus, engines, drafters)
    cells = len(selection.models) * len(selection.gpus) * len(selection.engines)
    with render.progress("cells", cells) as advance:
        outcomes, built = build_cells(selection, out, jobs or os.cpu_count() or 1, advance)
    with render.waiting("writing pages"):
        write_pages(out, selection, outcomes, url)
    values = {
        "schema": "specmargin.site/1",
        "output": str(out),
        "cells": sum(outcome.path is not None for outcome in outcomes),
        "built_now": built,
        "refused": sorted({outcome.refused for outcome in outcomes if outcome.refused is not None}),
        "bytes": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
    }
    if json:
        render.json_out(values)
    else:
        _show(values, len(outcomes))


def _check(out: Path, url: str | None) -> None:
    """Before anything is priced."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give the name of a folder")
    if url is not None and not url.startswith(("http://", "https://")):
        raise InputError(f"--url {url}: give a whole address, such as https://example.org/moe")


def _show(values: dict[str, Any], wanted: int) -> None:
    shown, refused = render.console(), values["refused"]
    shown.print(
        f"{values['output']}: {values['cells']} of {wanted} cells ({values['built_now']} built now), "
        f"{values['bytes'] / 1e6:.1f} MB; open it through any web server, such as: "
        f"python -m http.server -d {values['output']}",
        markup=False,
    )
    render.warnings(shown, [f"not on the site: {text}" for text in refused[:5]])
    if len(refused) > 5:
        render.warnings(shown, [f"and {len(refused) - 5} more"])
