"""Counters and gauges that an engine process writes and the server's `/metrics` reads: a small memory-mapped file.

Writing is a store to memory: no lock, no I/O, no message. The reader may see a value one step old.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from specmargin.errors import EngineError
from specmargin.live.guard import Guard
from specmargin.live.settings_schema import Mode

DEPTHS = 33  # 0..32; deeper drafts count as 32
FAULTS = (
    "configuration",
    "request",
    "verify decision",
    "depth decision",
    "outcome",
    "slow verify decision",
    "slow depth decision",
    "capture",
    "gate",
    "other",
)
_MAGIC = 0x5350_4543_4D52_3033  # includes the version of the layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    help: str

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


METRICS = tuple(
    Metric(name=name, help=text)
    for name, text in (
        ("enabled", "1 while Specmargin decides, 0 after it disabled itself"),
        ("mode", ", ".join(f"{code}: {mode}" for code, mode in enumerate(Mode))),
        ("steps_total", "Steps with decoding sequences"),
        ("step_seconds_total", "Seconds of these steps, by the engine core's clock"),
        (
            "decision_seconds_total",
            "Seconds that Specmargin adds to steps: all its code in the engine core, by the core's clock",
        ),
        ("verify_positions_total", "Positions verified: one per sequence and one per draft token"),
        ("draft_tokens_total", "Draft tokens verified"),
        ("accepted_tokens_total", "Draft tokens accepted"),
        ("committed_tokens_total", "Tokens committed: accepted draft tokens and one per sequence"),
        ("sequences", "Sequences that decoded in the last step"),
        ("goodput_tokens_per_second", "Committed tokens per second in steps without prompts, moving average"),
        ("expected_goodput_tokens_per_second", "Goodput that the controller expects at the depth it chose"),
        ("gating", "1 while drafts are gated by confidence, 0 while they are verified in full"),
        ("hurdle", "Survival that the next draft token of a sequence must reach to raise goodput"),
        ("expected_acceptance", "Share of verified draft tokens expected to be accepted, moving average"),
        ("measured_acceptance", "Share of verified draft tokens that were accepted, moving average"),
        ("calibration_error", "Absolute difference between expected and measured acceptance"),
        ("distinct_experts", "Distinct experts of the last step, mean over layers (with routing capture)"),
        ("ignored_outcomes_total", "Steps whose outcome was invalid, so that nothing was learned from them"),
        ("captured_rounds_total", "Rounds written to the bank"),
        ("capture_dropped_total", "Rounds dropped by the capture limits"),
    )
)
_INDEX = {metric.name: 1 + i for i, metric in enumerate(METRICS)}
_STEPS = _INDEX["steps_total"]
_SECONDS = _INDEX["step_seconds_total"]
_POSITIONS = _INDEX["verify_positions_total"]
_DRAFTED = _INDEX["draft_tokens_total"]
_ACCEPTED = _INDEX["accepted_tokens_total"]
_COMMITTED = _INDEX["committed_tokens_total"]
_SEQUENCES = _INDEX["sequences"]
_DECISIONS = _INDEX["decision_seconds_total"]
_FIRST_DEPTH = 1 + len(METRICS)
_FIRST_FAULT = _FIRST_DEPTH + DEPTHS
_SIZE = _FIRST_FAULT + len(FAULTS)


class Board:
    """The writer's side. Without a path the values stay in memory, for engines without metrics."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            values = np.zeros(_SIZE)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            values = np.memmap(path, dtype=np.float64, mode="w+", shape=(_SIZE,))
        # The buffer and not the array: writing an element of a memory-mapped array takes ten times as long.
        self._values = cast("MutableSequence[float]", values.data)
        self._values[0] = float(_MAGIC)
        self.put("enabled", 1.0)

    def __getitem__(self, name: str) -> float:
        return float(self._values[_INDEX[name]])

    def put(self, name: str, value: float) -> None:
        self._values[_INDEX[name]] = value

    def add(self, name: str, value: float = 1.0) -> None:
        self._values[_INDEX[name]] += value

    def smooth(self, name: str, value: float, forgetting: float) -> None:
        """A moving average. A value of exactly 0 counts as not set yet: the next one replaces it."""
        before = self[name]
        self.put(name, value if before == 0.0 else forgetting * before + (1.0 - forgetting) * value)

    def add_step(self, batch: int, verified: int, accepted: int, depth: int, seconds: float) -> None:
        """Count a step. `verified` and `accepted` are draft tokens; NaN seconds: not timed."""
        values = self._values
        values[_STEPS] += 1.0
        values[_POSITIONS] += batch + verified
        values[_DRAFTED] += verified
        values[_ACCEPTED] += accepted
        values[_COMMITTED] += batch + accepted
        values[_SEQUENCES] = batch
        values[_FIRST_DEPTH + min(max(depth, 0), DEPTHS - 1)] += 1.0
        if not math.isnan(seconds):
            values[_SECONDS] += seconds

    def show_guard(self, guard: Guard) -> None:
        self._values[_DECISIONS] = guard.decision_seconds
        if guard.faults:
            self.put("enabled", 0.0 if guard.off else 1.0)
            listed = {kind: guard.faults.get(kind, 0) for kind in FAULTS}
            listed["other"] += sum(count for kind, count in guard.faults.items() if kind not in FAULTS)
            for index, kind in enumerate(FAULTS):
                self._values[_FIRST_FAULT + index] = listed[kind]

    def steps_by_depth(self) -> list[int]:
        return [int(value) for value in self._values[_FIRST_DEPTH:_FIRST_FAULT]]


def board_path(folder: Path, engine: str) -> Path:
    return folder / f"engine-{engine}.board"


def report_failed_start(folder: Path | None, engine: str = "0") -> None:
    """Write the board of an engine in which Specmargin could not start. None: it has no metrics."""
    guard = Guard(log=lambda _: None, off=True)
    guard.faults["configuration"] = 1
    Board(None if folder is None else board_path(folder, engine)).show_guard(guard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The contents of a board: values by name, steps by depth, faults by kind."""

    values: dict[str, float] = field(default_factory=dict)
    steps_by_depth: dict[int, float] = field(default_factory=dict)
    faults: dict[str, float] = field(default_factory=dict)


def read_board(path: Path) -> Reading:
    try:
        raw = np.fromfile(path, dtype=np.float64)
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({error.strerror or error})") from None
    if raw.size != _SIZE or raw[0] != _MAGIC:
        raise EngineError(f"{path}: is not a board of this version of Specmargin")
    values = {metric.name: float(raw[1 + i]) for i, metric in enumerate(METRICS)}
    return Reading(
        values={name: value for name, value in values.items() if not math.isnan(value)},
        steps_by_depth={d: float(raw[_FIRST_DEPTH + d]) for d in range(DEPTHS) if raw[_FIRST_DEPTH + d]},
        faults={kind: float(raw[_FIRST_FAULT + i]) for i, kind in enumerate(FAULTS)},
    )


def boards(folder: Path) -> Iterator[tuple[str, Reading]]:
    """All boards of a server, by engine. Incomplete boards are skipped."""
    for path in sorted(folder.glob(board_path(folder, "*").name)):
        try:
            yield path.stem.removeprefix("engine-"), read_board(path)
        except EngineError:
            continue
