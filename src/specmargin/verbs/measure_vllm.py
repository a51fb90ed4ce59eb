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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Line, Table, bold, dim, left, right, warned
from specmargin.answers.outputs_schema import MeasurementOutputs
from specmargin.answers.request_schema import Numbers, Request, Shown, parse_numbers
from specmargin.answers.verb import Bars, no_bars, verb
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import find_model
from specmargin.errors import InputError
from specmargin.measure.points import Surface
from specmargin.measure.prompts import read_prompts
from specmargin.measure.records import Records
from specmargin.measure.steps import Order, check_engine, measure_steps

if TYPE_CHECKING:
    from specmargin.measure.price_file import Fitted
    from specmargin.prices.measured_schema import EngineFields

_LIST = Shown(metavar="LIST")
_RESOLVED = 2.0  # high / low beyond which the steps hardly depend on the parameter
_UNITS = {
    "weight_bytes_per_second": (1e-12, "TB/s", "weights are read at"),
    "operations_per_second": (1e-12, "TFLOP/s", "matrices multiply at"),
    "kv_bytes_per_second": (1e-12, "TB/s", "the KV cache is read at"),
    "attention_operations_per_second": (1e-12, "TFLOP/s", "attention computes at"),
    "step_seconds": (1e3, "ms", "engine, per step"),
    "verify_step_seconds": (1e3, "ms", "engine, per step that verifies drafts"),
    "sequence_seconds": (1e6, "µs", "engine, per sequence"),
    "position_seconds": (1e6, "µs", "engine, per position"),
}


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


# --- answer ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MeasureVllmAnswer(Answer[MeasureVllmRequest]):
    fitted: Fitted
    failures: dict[str, str]  # by engine run
    output: Path
    log: Path

    schema: ClassVar[str] = "specmargin.measure/1"

    @property
    def verdict(self) -> str:
        return f"{self.fitted.file.model.name} in {self.fitted.file.conditions['engine']}"

    def values(self) -> dict[str, Any]:
        file = self.fitted.file.model_dump(by_alias=True, exclude={"rows"})
        del file["schema"]
        return file | {"errors": _errors_by_kind(self.fitted), "unfinished": self.failures}

    def table(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.fitted.rows]

    def file_text(self) -> str:
        from specmargin.prices.measured_schema import as_text

        return as_text(self.fitted.file)

    def blocks(self) -> Iterator[Block]:
        file = self.fitted.file
        yield bold(self.verdict)
        yield dim(f"{file.conditions['machine']}; {file.conditions['software']}; {file.conditions['date']}")
        yield Table(
            title="Prices",
            columns=[*left("what"), *right("fitted", "5% to 95%")],
            rows=[_price(name, *values) for name, values in _ranges(self.fitted).items()],
        )
        for mode, engine_time in file.modes.items():
            yield Line(_mode(mode, engine_time, file.model.layers))
        if file.drafter is not None:
            drafter = file.drafter
            first = f"{drafter.first_seconds * 1e3:.3g} ms + {drafter.first_sequence_seconds * 1e6:.3g} µs per sequence"
            later = f"{drafter.later_seconds * 1e3:.3g} ms + {drafter.later_sequence_seconds * 1e6:.3g} µs"
            yield Line(f"drafter {drafter.method}: first pass {first}, later passes {later}")
        yield _errors_table(self.fitted)
        yield from warned(self._warnings())
        yield Line(f"Wrote {self.output}; use it with --prices {self.output}")

    def _warnings(self) -> list[str]:
        file = self.fitted.file
        warnings = []
        if file.evidence.noisy:
            warnings += ["other work ran on this machine; lower quartiles and the speed of each batch were fitted"]
        if not file.evidence.counted_experts and file.model.experts:
            warnings += ["experts could not be counted; uniform routing was assumed"]
        return warnings + [
            f"engine {run} did not finish ({error}); run the same command to resume, or see {self.log}"
            for run, error in self.failures.items()
        ]


def _ranges(fitted: Fitted) -> dict[str, tuple[float, float, float]]:
    """Each fitted value with its 5% and 95% quantiles."""
    file = fitted.file
    values = file.rates.model_dump() | next(iter(file.modes.values())).model_dump()
    return {name: (values[name], *file.ranges.get(name, (values[name], values[name]))) for name in _UNITS}


def _price(name: str, value: float, low: float, high: float) -> list[str]:
    scale, unit, text = _UNITS[name]
    resolved = high < _RESOLVED * low
    interval = f"{low * scale:,.3g} to {high * scale:,.3g}" if resolved else "not resolved by these points"
    return [text, f"{value * scale:,.3g} {unit}", interval]


def _mode(mode: str, time: EngineFields, layers: int) -> str:
    parts = [f"mode {mode}: {time.step_seconds * 1e3:.3g} ms per step"]
    if time.graph_limit:
        eager_ms = time.eager_layer_seconds * layers * 1e3
        parts.append(f"captured up to {time.graph_limit} positions, {eager_ms:.3g} ms more beyond")
    if time.floor_layer_seconds:
        parts.append(f"no step under {time.floor_layer_seconds * layers * 1e3:.3g} ms")
    if time.off_floor_layer_seconds:
        parts.append(f"speculation disabled: no step under {time.off_floor_layer_seconds * layers * 1e3:.3g} ms")
    elif time.off_step_seconds or time.off_sequence_seconds:
        off = f"{time.off_step_seconds * 1e3:.3g} ms and {time.off_sequence_seconds * 1e6:.3g} µs per sequence"
        parts.append(f"speculation disabled: {off} more")
    return "; ".join(parts)


def _errors_table(fitted: Fitted) -> Table:
    return Table(
        title="Median (worst) error, fitted to all and to half of the points",
        columns=[*left("steps"), *right("points", "fitted", "held out")],
        rows=[
            [
                name,
                str(line["points"]),
                f"{line['median_error']:.1%} ({line['worst_error']:.1%})",
                f"{line['held_out_median_error']:.1%} ({line['held_out_worst_error']:.1%})",
            ]
            for name, line in _errors_by_kind(fitted).items()
        ],
    )


def _errors_by_kind(fitted: Fitted) -> dict[str, dict[str, Any]]:
    import numpy as np

    kinds = np.array([row["kind"] for row in fitted.rows])
    errors = {}
    for kind in [*dict.fromkeys(kinds.tolist()), "all"]:
        chosen = np.ones(kinds.size, dtype=bool) if kind == "all" else kinds == kind
        own, held = fitted.judgement.errors[chosen], fitted.judgement.held_out_errors[chosen]
        errors[kind] = {
            "points": int(chosen.sum()),
            "median_error": float(np.median(own)),
            "worst_error": float(own.max()),
            "held_out_median_error": float(np.median(held)),
            "held_out_worst_error": float(held.max()),
        }
    return errors
