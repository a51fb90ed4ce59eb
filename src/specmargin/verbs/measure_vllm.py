"""Time steps of your own vLLM and fit a price file.

Starts the engine without speculation, with forced drafts (independent tokens, and repeats of one token, which separate
experts from positions) and with a drafter: the model's MTP head, or yours (--drafter). Times its steps inside the
engine, without async scheduling, and fits kernels, engine time and the drafter's passes. Every row is written to
FILE.rows.jsonl immediately: run the command again to resume.

Examples:

  specmargin measure vllm Qwen/Qwen3-30B-A3B -o mine.json --set load_format=dummy
  specmargin plan qwen3-30b-a3b --gpu h200 --prices mine.json
"""

from __future__ import annotations

import ast
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from specmargin.answers.measurement import MeasurementAnswer
from specmargin.answers.numbers_schema import Numbers, parse_numbers
from specmargin.answers.outputs_schema import MeasurementOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Bars, no_bars, verb
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import find_model
from specmargin.errors import InputError
from specmargin.measure.points import Surface
from specmargin.measure.prompts import read_prompts
from specmargin.measure.records import Records
from specmargin.measure.steps import Order, check_engine, measure_steps

_LIST = Shown(metavar="LIST")


# --- request ---


class Clock(StrEnum):
    WALL = "wall"
    CPU = "cpu"


def _numbers_or_none(given: object) -> object:
    return () if given == "" else parse_numbers(given)


NumbersOrNone = Annotated[tuple[int, ...], BeforeValidator(_numbers_or_none)]


class MeasureVllmRequest(Request):
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
    flags: Annotated[
        tuple[str, ...],
        Field(description="Any engine argument, such as load_format=dummy; may be repeated."),
        Shown(metavar="NAME=VALUE").named("--set"),
    ] = ()
    fit_only: Annotated[bool, Field(description="Start no engine: fit the rows measured so far.")] = False

    @property
    def surface(self) -> Surface:
        return Surface(batches=self.batches, depths=self.depths, contexts=self.contexts, long_batches=self.long_batches)

    def order(self, architecture: Architecture) -> Order:
        return Order(
            model=self.model,
            surface=self.surface,
            engine_args=_engine_args(self.flags),
            speculative=speculative(self.drafter, architecture),
            prompts=() if self.prompts is None else read_prompts(Path(self.prompts), self.model),
            routes=architecture.is_moe,
            temperature=self.temperature,
            clock=str(self.clock),
            steps=self.steps,
            repeats=self.repeats,
        )


def speculative(given: str | None, architecture: Architecture) -> dict[str, Any] | None:
    """The drafter to time: the one given, or the head that the model itself has."""
    if given is None:
        return {"method": "mtp"} if architecture.draft_head is not None else None
    return None if given.strip().lower() == "none" else _mapping(given)


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"--drafter: {text!r} is not a JSON object")
    return value


def _engine_args(flags: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value`; a value is a Python literal (0.8, True, {...}) or else text."""
    values: dict[str, Any] = {}
    for text in flags:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--set {text!r}: give NAME=VALUE, such as gpu_memory_utilization=0.8")
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[name] = {"true": True, "false": False, "null": None}.get(value, value)
    return values


# --- verb ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MeasureVllmAnswer(MeasurementAnswer[MeasureVllmRequest]):
    """Fitted to steps of vLLM."""


@verb(MeasureVllmRequest, outputs=MeasurementOutputs)
def measure_vllm(
    request: MeasureVllmRequest, *, outputs: MeasurementOutputs, bars: Bars = no_bars
) -> MeasureVllmAnswer:
    architecture = find_model(request.model)
    order, log = request.order(architecture), outputs.output.with_suffix(".log")
    records = Records(path=outputs.output.with_suffix(".rows.jsonl"))
    records.check(order.header(), fresh=outputs.force and not request.fit_only)
    if not request.fit_only:
        check_engine()
        records.begin(order.header(), fresh=outputs.force)
        deadline = time.time() + 60.0 * request.minutes
        with records.interruptible(), bars() as update:
            measure_steps(
                order,
                records,
                deadline=deadline,
                log=log,
                watch=lambda run, total, done: update(f"engine {run}", total, done),
            )
    from specmargin.measure.price_file import price_file

    method = str((order.speculative or {}).get("method", ""))
    fitted = price_file(records.rows(), records.engines(), architecture, drafter_method=method)
    return MeasureVllmAnswer(
        request=request, fitted=fitted, failures=records.failures(), output=outputs.output, log=log
    )
