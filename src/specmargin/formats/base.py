"""The parts that all engine formats share: the setting, the command that starts a server with it, and the benchmark
that checks the prediction on that server.

Prompts of benchmarks are those of SPEED-Bench, because acceptance depends on the text: random tokens would show another
one. No option varies their lengths: `--random-range-ratio` is for generated prompts, in vLLM and in SGLang.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from specmargin.decisions.schedule import DepthTable, Schedule
from specmargin.errors import CatalogError
from specmargin.formats.rules import DepthRule, choose, extended, pays, slots
from specmargin.hardware.device import DEFAULT_UTILIZATION, Device
from specmargin.hardware.layout import Layout
from specmargin.hardware.offload import Offload
from specmargin.releases import Release, Releases

SUBSETS = {"throughput_1k": 1024, "throughput_2k": 2048, "throughput_8k": 8192, "throughput_16k": 16_384}
SUBSETS |= {"throughput_32k": 32_768}
ROUNDS = 10  # prompts per concurrent request
LEAST_PROMPTS = 32
EQUAL_LENGTHS = (
    "The prompts of this benchmark have about equal lengths, and so have outputs that reach the limit, so its requests "
    "may stay in step; plan with a range ratio of 0 to predict that."
)


_PLACEHOLDERS = {
    "eagle": "<your EAGLE-3 head>",
    "dflash": "<your DFlash head>",
    "dspark": "<your DSpark head>",
    "model": "<your draft model>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """The inputs of a format."""

    table: DepthTable  # speed-up of every batch and depth
    batches: tuple[int, ...]  # the batches of the plan that fit; a setting that pays at none of them is not written
    drafter_kind: str
    drafter_model: str  # what the engine loads as drafter, "" if the user named none
    layout: Layout
    min_gain: float
    hurdle_by_depth: tuple[float, ...]  # survival that token 1, 2, … must reach at the plan's first batch
    p_min: float | None = None  # the confidence at which drafts stop, as priced
    drafted_by_depth: tuple[float, ...] = ()  # from depth 0: mean tokens of drafts that stop there
    release: Release | None = None  # the engine's; None: the newest whose rules are known
    unsupported: str = ""  # why the engine cannot run this drafter with this model

    @property
    def loaded_model(self) -> str:
        """The drafter's model as the engine takes it; "" for drafters without a model of their own."""
        return self.drafter_model or _PLACEHOLDERS.get(self.drafter_kind, "")

    def method(self, methods: Mapping[str, str], engine: str) -> str:
        """The engine's name for the kind of drafter."""
        if self.drafter_kind not in methods:
            raise CatalogError(f"no {engine} setting is known for --drafter {self.drafter_kind}")
        return methods[self.drafter_kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The setting as text, the schedule that it expresses, a file that it refers to, and notes for the user.

    The engine drafts `schedule.depth_at(batch)` at every batch, beyond the schedule's end too. Without any drafts,
    speculation is not configured at all.
    """

    text: str
    schedule: Schedule
    needs: str = ""  # the engine release that understands the setting
    file_name: str | None = None
    file_text: str | None = None
    adapts: bool = False  # the engine may change the depth while it runs
    limits: tuple[str, ...] = ()  # what the engine cannot express, shown with the setting
    unpriced: str = ""  # what the engine could do and no price knows, shown with the setting
    notes: tuple[str, ...] = ()
    unsupported: str = ""  # why no engine can run this drafter: there is no setting, though it would pay

    @property
    def all_notes(self) -> tuple[str, ...]:
        return (*self.limits, *self.notes, *([self.unpriced] if self.unpriced else []))

    def with_file(self, path: str) -> EngineConfig:
        """With its file at this path, as the flags name it."""
        if self.file_name is None:
            return self
        text = self.text.replace(shlex.quote(self.file_name), shlex.quote(path))
        return replace(self, text=text, file_name=path)


def joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is served, and with which setting."""

    model: str  # a hub id or a path, as the engine takes it
    layout: Layout
    config: EngineConfig
    memory_utilization: float = DEFAULT_UTILIZATION
    kv_cache: str | None = None  # None: as the model's configuration says
    quantize: str | None = None  # weights that the engine quantizes while it loads them
    sequences: int = 1  # that decode together
    context: int = 1024  # tokens per sequence
    decode_only: bool = False  # KV of prompts arrives from another instance
    nodes: int = 1
    offload: Offload | None = None  # routed experts in main memory
    processor_only: bool = False  # a machine without a GPU

    def command(self, program: str, spread: str, memory_option: str, kv_names: Mapping[str, str]) -> str:
        """With the options that vLLM and SGLang call by the same names."""
        default_memory = self.memory_utilization == DEFAULT_UTILIZATION
        return joined(
            f"{program} {shlex.quote(self.model)}",
            spread,
            f"--quantization {self.quantize}" if self.quantize else "",
            f"--kv-cache-dtype {kv_names.get(self.kv_cache, self.kv_cache)}" if self.kv_cache else "",
            "" if default_memory else f"{memory_option} {self.memory_utilization:g}",
            self.config.text,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The load that the prediction is about."""

    folder: ClassVar[str] = "<your SPEED-Bench folder>"

    model: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int | None = None
    requests_per_second: float | None = None

    @property
    def prompts(self) -> int:
        return max(LEAST_PROMPTS, ROUNDS * (self.concurrency or 0))

    @property
    def subset(self) -> str:
        """The part of SPEED-Bench whose prompts are nearest in length."""
        return min(SUBSETS, key=lambda name: abs(math.log(SUBSETS[name] / max(self.prompt_tokens, 1))))

    @property
    def rate(self) -> str:
        """The options that vLLM, SGLang and TensorRT-LLM call by the same names."""
        if self.requests_per_second is not None:
            return f"--num-prompts {self.prompts} --request-rate {self.requests_per_second:g}"
        return f"--num-prompts {self.prompts} --max-concurrency {self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    text: str
    file_name: str | None = None  # a file that the command reads, and what is in it
    file_text: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFormat:
    name: str
    title: str
    rule: Callable[[ScheduleRequest], DepthRule]  # which schedules it can run
    # One of them in its words, with slots for the numbers of `rules.slots`: only the rule knows how ranges are written.
    express: Callable[[ScheduleRequest, Schedule], EngineConfig]
    serve: Callable[[Launch], Command]  # only options that the engine's own sources declare, here and in `check`
    check: Callable[[Benchmark], str]
    metric: str = "Median TPOT (ms)"  # the line of the benchmark's output to compare
    lengths_note: str | None = EQUAL_LENGTHS  # about a prediction for lengths that vary; None: the prompts are yours
    # Positions, batch × (depth + 1), of its largest CUDA graph; None: a graph for every step.
    graph_limit: Callable[[Device], int | None] = lambda _: None
    graph_option: str = "capture graphs of {positions} positions"  # what captures larger ones; slots as below
    batched_tokens: Callable[[Device], int] = lambda _: 8192  # tokens per step of a server with default options
    max_seqs: Callable[[Device], int] = lambda _: 256  # sequences per step of the same
    limits_per_rank: bool = True  # both are of each data-parallel rank; False: of all of them
    # The setting with that of the plug-in, through which Specmargin decides inside the engine; None: it has no plug-in.
    with_policy: Callable[[EngineConfig, Mapping[str, object]], EngineConfig] | None = None
    policy_inside: bool = False  # the setting's file holds the policy; else the plug-in's settings name its file
    releases: Releases | None = None  # None: it has no numbered releases
    stops_early: bool = False  # a draft may stop at a confidence, --draft-p-min
    decode_refusal: Callable[[Layout], str | None] = lambda _: None  # why it cannot be a decode instance
    # The largest batch that a plan covers unless a larger one is asked about; None: as many sequences as fit.
    usual_batch: int | None = None
    layers_in_turn: bool = False  # several GPUs run one after another, unless it is told to split every tensor (--tp)
    # Why it cannot draft with this kind of drafter in pipeline stages; "" where it can.
    stage_drafts: Callable[[Layout, str], str] = lambda _layout, _kind: ""
    # Why it cannot draft with this kind of drafter, for a target with or without recurrent layers; "" where it can.
    cannot_draft: Callable[[str, bool], str] = lambda _kind, _recurrent: ""
    refuses: Callable[[Layout], str | None] = lambda _: None  # why it cannot run a layout, and what it can

    def larger_graphs(self, *, positions: float, batch: float) -> str:
        """Its option for steps of so many positions and sequences: up to a multiple of 64, which engines capture."""
        up = {name: math.ceil(value / 64.0) * 64 for name, value in (("positions", positions), ("batch", batch))}
        return self.graph_option.format(**up)

    def write(self, request: ScheduleRequest) -> EngineConfig:
        """The best schedule that the engine can run; no setting where none pays."""
        rule = self.rule(request)
        chosen = choose(rule, request.table, request.batches, request.min_gain)
        empty = empty_config(request, chosen.schedule)
        if empty is not None:
            return empty
        schedule = extended(chosen.schedule, rule)
        config, values = self.express(request, schedule), slots(rule, schedule, request.hurdle_by_depth)
        file_text = None if config.file_text is None else filled(config.file_text, values)
        return replace(config, text=filled(config.text, values), file_text=file_text, limits=chosen.limits)


def filled(text: str, values: Mapping[str, object]) -> str:
    """Other braces stay: names of the user's files may have some."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def find_release(form: EngineFormat, text: str | None) -> Release | None:
    """The release that `--engine-version` names, if any."""
    if text is None:
        return None
    if form.releases is None:
        raise CatalogError(f"--engine-version: {form.title} has no numbered releases; leave it out")
    return form.releases.find(text)


def empty_config(request: ScheduleRequest, schedule: Schedule) -> EngineConfig | None:
    """A configuration without a setting, if there is none to write: nothing pays, or no engine supports it."""
    if not pays(request.table, request.batches, schedule):
        several = "" if len(request.batches) == 1 else ", at least not at one depth for all these batches"
        note = f"speculation does not pay here{several}: leave it out of the configuration"
        return EngineConfig(text="", schedule=Schedule.fixed(0, last=request.table.largest), notes=(note,))
    if request.unsupported:
        return _unsupported(schedule, request.unsupported)
    if request.drafter_kind == "free":
        return _unsupported(schedule, "'free' is an assumption, not a drafter")
    return None


def _unsupported(schedule: Schedule, reason: str) -> EngineConfig:
    note = f"{reason}: there is nothing to configure yet"
    return EngineConfig(text="", schedule=schedule, notes=(note,), unsupported=reason)
