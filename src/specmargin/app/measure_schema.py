"""The request of `measure vllm`: which steps are timed, and how."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from specmargin.answers.request_schema import Numbers, Request, Shown, parse_numbers
from specmargin.measure.points import Surface


class Clock(StrEnum):
    WALL = "wall"
    CPU = "cpu"


def _numbers_or_none(given: object) -> object:
    return () if given == "" else parse_numbers(given)


NumbersOrNone = Annotated[tuple[int, ...], BeforeValidator(_numbers_or_none)]
_LIST = Shown(metavar="LIST")


class MeasureRequest(Request):
    """Which steps of which model are timed, and how."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="A bundled name, a config.json, a model folder, or an id in the local hub cache.",
        ),
        Shown(argument=True),
    ]
    batches: Annotated[Numbers, Field(description="Batch sizes."), _LIST] = (1, 2, 4, 8, 16, 32, 64, 128)
    depths: Annotated[
        NumbersOrNone,
        Field(description="Draft depths in addition to 0; with full graphs, one engine per depth."),
        _LIST,
    ] = (1, 3, 7)
    contexts: Annotated[
        Numbers,
        Field(description="Tokens per sequence; all batches at the first, long_batches at the others."),
        _LIST.as_("LIST", "512,4k"),
    ] = (512, 4096)
    long_batches: Annotated[
        NumbersOrNone,
        Field(description="Batch sizes at the other contexts."),
        _LIST.as_("LIST", "three of the batches"),
    ] = ()
    drafter: Annotated[
        str | None,
        Field(description="Your speculative_config as JSON, to time its passes: {'method': 'eagle', …}; or none."),
        Shown(metavar="JSON", default="the model's MTP head, if it has one"),
    ] = None
    prompts: Annotated[
        str | None,
        Field(description="A JSON list of prompts (texts, or lists of token ids)."),
        Shown(metavar="FILE", default="random tokens"),
    ] = None
    temperature: Annotated[float, Field(ge=0, description="Sampling temperature."), Shown(metavar="T")] = 1.0
    clock: Annotated[
        Clock,
        Field(description="wall, or cpu (processor time) for a single-threaded CPU engine on a busy machine."),
        Shown(metavar="CLOCK"),
    ] = Clock.WALL
    steps: Annotated[int, Field(ge=1, description="Timed steps per point and repeat."), Shown(metavar="N")] = 5
    repeats: Annotated[
        int,
        Field(ge=1, description="Repeats: the points of a batch are timed in turn, this often."),
        Shown(metavar="N"),
    ] = 3
    minutes: Annotated[
        float,
        Field(ge=0.1, description="Start no measurement after this time; the rows measured so far are fitted."),
        Shown(metavar="MINUTES"),
    ] = 10.0

    @property
    def surface(self) -> Surface:
        return Surface(batches=self.batches, depths=self.depths, contexts=self.contexts, long_batches=self.long_batches)
