"""What every engine's format has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.decisions.schedule import DepthTable, Range, Schedule
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a format is written from."""

    table: DepthTable  # goodput of every batch and depth, relative to the best
    batches: tuple[int, ...]  # the batches of the plan: what a single depth is chosen for
    drafter_kind: str
    drafter_spec: str
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
    position_limit: Callable[[Device], int | None]  # batch × (depth + 1) above which there is no graph
    write: Callable[[Request], EngineConfig]


def off(table: DepthTable) -> Schedule:
    return Schedule(ranges=(Range(first=1, last=table.batches, depth=0),))


def single_depth(table: DepthTable, batches: Sequence[int]) -> int:
    """The one depth that is best on average over the plan's batches."""
    rows = [min(batch, table.batches) - 1 for batch in batches]
    worth = np.where(np.isfinite(table.relative[rows]), table.relative[rows], 0.0)
    return int(worth.mean(axis=0).argmax())


def fixed(table: DepthTable, depth: int) -> Schedule:
    return Schedule(ranges=(Range(first=1, last=table.batches, depth=depth),))


NOT_CONFIGURED = "speculation does not pay here: leave it out of the configuration"
OVERLAP_NOTE = "no engine here overlaps drafting with verification yet: the setting is that of the inner drafter"
