"""What every engine's format has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.decisions.schedule import DepthTable, Range, Schedule
from specmargin.hardware.device import Device
from specmargin.modes import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """What a format is written from."""

    table: DepthTable  # goodput of every batch and depth, relative to the best
    batches: tuple[int, ...]  # the batches of the plan that fit: what a single depth is chosen for
    drafter_kind: str
    drafter_model: str  # what the engine loads as drafter, "" where the user did not say
    overlapped: bool  # drafting beside verification, which no engine here does
    parallel: Parallel
    min_gain: float
    hurdle: float  # at the plan's first batch, for engines with a confidence threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The setting as text, the schedule it stands for, a file it needs beside it, and what to know about it."""

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


def off(table: DepthTable) -> Schedule:
    return Schedule(ranges=(Range(first=1, last=table.batches, depth=0),))


def single_depth(table: DepthTable, batches: Sequence[int]) -> int:
    """The one depth that is best on average over the plan's batches."""
    rows = [min(batch, table.batches) - 1 for batch in batches]
    worth = np.where(np.isfinite(table.relative[rows]), table.relative[rows], 0.0)
    return int(worth.mean(axis=0).argmax())


def fixed(table: DepthTable, depth: int) -> Schedule:
    return Schedule(ranges=(Range(first=1, last=table.batches, depth=depth),))


def unwritten(request: ScheduleRequest, schedule: Schedule) -> EngineConfig | None:
    """The cases in which there is no setting to write: nothing pays, or no engine can do it."""
    if schedule.max_depth == 0:
        several = "" if len(request.batches) == 1 else ", at one depth for all these batches at least"
        note = f"speculation does not pay here{several}: leave it out of the configuration"
        return EngineConfig(text="", schedule=off(request.table), notes=(note,))
    if request.overlapped:
        note = "no engine here overlaps drafting with verification yet, so there is no setting to write"
        return EngineConfig(text="", schedule=schedule, notes=(note,))
    if request.drafter_kind == "free":
        note = "'free' is an assumption, not a drafter, so there is no setting to write"
        return EngineConfig(text="", schedule=schedule, notes=(note,))
    return None


_PLACEHOLDERS = {"eagle": "<your EAGLE-3 head>", "dflash": "<your DFlash head>", "model": "<your draft model>"}


def drafter_model(request: ScheduleRequest) -> str:
    """What to put where the engine wants the drafter's model; "" for drafters that have none of their own."""
    return request.drafter_model or _PLACEHOLDERS.get(request.drafter_kind, "")
