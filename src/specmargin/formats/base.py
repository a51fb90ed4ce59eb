"""The parts that all engine formats share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.decisions.schedule import DepthTable, Range, Schedule
from specmargin.errors import CatalogError
from specmargin.hardware.device import Device
from specmargin.modes import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """The inputs of a format."""

    table: DepthTable  # goodput of every batch and depth, relative to the best
    batches: tuple[int, ...]  # the batches of the plan that fit; a single depth is chosen for these
    drafter_kind: str
    drafter_model: str  # what the engine loads as drafter, "" if the user named none
    overlapped: bool  # drafting while verifying, which none of these engines does
    parallel: Parallel
    min_gain: float
    hurdle: float  # at the plan's first batch, for engines with a confidence threshold
    p_min: float | None = None  # the confidence at which drafts stop, as priced
    drafted_by_depth: tuple[float, ...] = ()  # from depth 0: mean tokens of drafts that stop there


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The setting as text, the schedule that it expresses, a file that it refers to, and notes for the user."""

    text: str
    schedule: Schedule
    file_name: str | None = None
    file_text: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFormat:
    name: str
    title: str
    graph_limit: Callable[[Device], int | None]  # positions, batch × (depth + 1), of its largest CUDA graph
    write: Callable[[ScheduleRequest], EngineConfig]
    stops_early: bool = False  # a draft may stop at a confidence, --draft-p-min


def single_depth(table: DepthTable, batches: Sequence[int]) -> int:
    """The one depth that is best on average over the plan's batches."""
    rows = [min(batch, table.batches) - 1 for batch in batches]
    goodput = np.where(np.isfinite(table.relative[rows]), table.relative[rows], 0.0)
    return int(goodput.mean(axis=0).argmax())


def fixed_schedule(table: DepthTable, depth: int) -> Schedule:
    return Schedule(ranges=(Range(first=1, last=table.batches, depth=depth),))


def empty_config(request: ScheduleRequest, schedule: Schedule) -> EngineConfig | None:
    """A configuration without a setting, if there is none to write: nothing pays, or no engine supports it."""
    if schedule.max_depth == 0:
        several = "" if len(request.batches) == 1 else ", at least not at one depth for all these batches"
        note = f"speculation does not pay here{several}: leave it out of the configuration"
        return EngineConfig(text="", schedule=fixed_schedule(request.table, 0), notes=(note,))
    if request.overlapped:
        note = "none of these engines overlaps drafting with verification, so there is no setting to write"
        return EngineConfig(text="", schedule=schedule, notes=(note,))
    if request.drafter_kind == "free":
        note = "'free' is an assumption, not a drafter, so there is no setting to write"
        return EngineConfig(text="", schedule=schedule, notes=(note,))
    return None


_PLACEHOLDERS = {"eagle": "<your EAGLE-3 head>", "dflash": "<your DFlash head>", "model": "<your draft model>"}


def drafter_model(request: ScheduleRequest) -> str:
    """The drafter's model as the engine takes it; "" for drafters without a model of their own."""
    return request.drafter_model or _PLACEHOLDERS.get(request.drafter_kind, "")


def drafter_method(request: ScheduleRequest, methods: Mapping[str, str], engine: str) -> str:
    """The engine's name for the kind of drafter."""
    if request.drafter_kind not in methods:
        raise CatalogError(f"no {engine} setting is known for --drafter {request.drafter_kind}")
    return methods[request.drafter_kind]
