"""What `doctor` is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from specmargin.answers.outputs_schema import TableOutputs
from specmargin.answers.request_schema import LOAD, MODEL, QUESTION, ScenarioRequest, Shown
from specmargin.limits import MAX_BATCH

_SERVED = "the server drafts as it does: its drafts are read, not planned"


class DoctorRequest(ScenarioRequest):
    """A server or its log; the scenario fills in what it does not show of itself."""

    unused: ClassVar[Mapping[str, str]] = {"draft_p_min": _SERVED}

    url: Annotated[
        str,
        Field(description="Address of the server, such as http://localhost:8000; else --log, or lines on stdin."),
        Shown(argument=True, metavar="URL"),
    ] = ""
    log: Annotated[
        Path | None,
        Field(description="The engine's log (- for standard input). With URL, only its settings are read."),
        QUESTION,
    ] = None
    seconds: Annotated[
        float, Field(ge=0.5, le=3600, description="Time between the two readings of a server."), QUESTION.as_("SECONDS")
    ] = 10.0
    watch: Annotated[bool, Field(description="Repeat until Ctrl-C."), QUESTION] = False
    model: Annotated[
        str,
        Field(description="A bundled name, a config.json, a model folder, or an id in the local hub cache."),
        Shown(panel=MODEL.panel, options=("--model",), metavar="MODEL", default="as the server says", often=True),
    ] = ""
    gpu: Annotated[
        str,
        Field(description="A bundled device (`specmargin gpus`) or your own as FILE.toml."),
        MODEL.as_("GPU", "as the server says").needed,
    ] = ""
    batch: Annotated[
        int | None,
        Field(ge=1, le=MAX_BATCH, description="Sequences running, where neither server nor log shows them."),
        LOAD.as_("N", "as seen"),
    ] = None

    @model_validator(mode="after")
    def _one_source(self) -> DoctorRequest:
        if self.watch and not self.url:
            raise ValueError("--watch reads a server: give its address")
        return self


class DoctorOutputs(TableOutputs):
    """The table has what was seen and what was expected."""
