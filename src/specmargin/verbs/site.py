"""Write a static site: the page of `explore` for chosen models, for any web host.

Python writes prices on grids of batch, draft depth and context; the page interpolates, so acceptance, batch, context
and price per GPU-hour stay live without a server. Each model runs on the fewest GPUs with room for a small service.
Every state is a link, and every model has a preview card. Nothing is loaded from elsewhere.

A stopped build resumes: run the same command again. Finished cells are kept until the release or their inputs change.

Examples:

  specmargin site public

  specmargin site public --models gpt-oss-120b,kimi-k2 --gpus h100,b200

  specmargin site public && python -m http.server -d public
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Line, warned
from specmargin.answers.outputs_schema import Outputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import InputError

_COVERS = Shown(panel="What it covers", metavar="LIST")
_MODELS = "qwen3.6-35b-a3b,deepseek-v3,gpt-oss-120b,glm-4.5-air,llama-3.1-70b"
_SHOWN = 5  # refusals


class SiteRequest(Request):
    out: Annotated[Path, Field(description="Folder of the site; created if it does not exist."), Shown(argument=True)]
    models: Annotated[str, Field(description="Bundled models, or all."), _COVERS.as_("LIST", "five")] = _MODELS
    gpus: Annotated[str, Field(description="Bundled GPUs, or all."), _COVERS] = "h100,h200,b200"
    engines: Annotated[str, Field(description="vllm, sglang, trtllm, llamacpp, mlx, or all."), _COVERS] = (
        "vllm,sglang,trtllm"
    )
    drafters: Annotated[
        str,
        Field(
            description="own (mtp where the model has a head, else eagle), mtp, eagle, dflash, ngram; the first is the "
            "default on the page."
        ),
        _COVERS,
    ] = "own,ngram"
    url: Annotated[
        str | None,
        Field(
            description="Where the site will be, such as https://example.org/moe: preview cards need whole addresses."
        ),
        Shown(metavar="URL"),
    ] = None
    jobs: Annotated[
        int | None, Field(ge=1, le=1024, description="Processes."), Shown(metavar="N", default="all cores")
    ] = None

    @field_validator("url")
    @classmethod
    def _whole_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"give a whole address, such as https://example.org/moe, not {url!r}")
        return url


@verb(SiteRequest, outputs=Outputs, waiting="writing pages")
def site(request: SiteRequest, progress: Progress = silent) -> SiteAnswer:
    from specmargin.show.site.build import build_cells, select
    from specmargin.show.site.pages import write_pages

    out = request.out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; give the name of a folder")
    selection = select(request.models, request.gpus, request.engines, request.drafters)
    cells = len(selection.models) * len(selection.gpus) * len(selection.engines)
    with progress("cells", cells) as advance:
        outcomes, built = build_cells(selection, out, request.jobs or os.cpu_count() or 1, advance)
    write_pages(out, selection, outcomes, request.url)
    return SiteAnswer(
        request=request,
        wanted=len(outcomes),
        cells=sum(outcome.path is not None for outcome in outcomes),
        built_now=built,
        refused=sorted({outcome.refused for outcome in outcomes if outcome.refused is not None}),
        bytes=sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SiteAnswer(Answer[SiteRequest]):
    wanted: int  # cells
    cells: int  # on the site
    built_now: int
    refused: list[str]
    bytes: int

    schema: ClassVar[str] = "specmargin.site/1"

    @property
    def verdict(self) -> str:
        out = self.request.out
        return (
            f"{out}: {self.cells} of {self.wanted} cells ({self.built_now} built now), {self.bytes / 1e6:.1f} MB; open "
            f"it through any web server, such as: python -m http.server -d {out}"
        )

    def values(self) -> dict[str, Any]:
        return {
            "output": str(self.request.out),
            "cells": self.cells,
            "built_now": self.built_now,
            "refused": self.refused,
            "bytes": self.bytes,
        }

    def blocks(self) -> Iterator[Block]:
        yield Line(self.verdict)
        yield from warned([f"not on the site: {text}" for text in self.refused[:_SHOWN]])
        if len(self.refused) > _SHOWN:
            yield from warned([f"and {len(self.refused) - _SHOWN} more"])
