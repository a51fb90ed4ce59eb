"""What `watch` is asked for, and one look at a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import Field

from specmargin.answers.blocks import Block, Line, Style
from specmargin.answers.outputs_schema import FILE, Outputs
from specmargin.answers.request_schema import Request, Shown

ReadingKind = TypeVar("ReadingKind")


class WatchRequest(Request):
    url: Annotated[
        str,
        Field(description="Address of the server, such as http://localhost:8000."),
        Shown(argument=True, metavar="URL"),
    ] = ""
    interval: Annotated[
        float, Field(ge=0.1, le=3600, description="Seconds between readings."), Shown(metavar="SECONDS")
    ] = 2.0
    count: Annotated[
        int | None,
        Field(ge=1, description="Stop after this many readings."),
        Shown(metavar="N", default="until Ctrl-C"),
    ] = None
    once: Annotated[bool, Field(description="Print one reading since the server's start.")] = False
    engine: Annotated[
        str | None,
        Field(description="Only this engine of a data-parallel server (0, 1, …)."),
        Shown(metavar="NAME"),
    ] = None


class WatchOutputs(Outputs):
    dashboard: Annotated[Path | None, Field(description="Write a Grafana dashboard to this file instead."), FILE] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Generic[ReadingKind]):
    """The last successful reading, the one before it, and the error of a newer attempt."""

    now: ReadingKind
    before: ReadingKind | None = None
    fault: str | None = None

    def blocks(self) -> Iterator[Block]:
        if self.fault is not None:
            yield Line(f"{self.fault}; retrying. Below: the last reading.", Style.ERROR)
