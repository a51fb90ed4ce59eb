"""Banks from a live engine: rounds and steps, written by a background thread in complete parts.

Every part is a bank (`part-000001/acceptance.parquet`, `speculator.parquet`, `steps.parquet`), written to a hidden
folder and renamed: a killed engine leaves readable parts and loses at most the last one. The engine only appends to a
queue; rows beyond its limit are dropped and counted.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from specmargin.live.board import Board
from specmargin.live.sequences import LiveRequest, StepDone
from specmargin.live.settings_schema import CaptureSettings

Row = TypeVar("Row")
_MAX_QUEUED = 200_000  # rows in memory
_WAKE_SECONDS = 0.25
_FIRST_PART_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The keys of a bank that are the same in every row."""

    model: str
    speculator: str
    config: str

    def keys(self, group: Sequence[str], number: npt.ArrayLike, index: npt.ArrayLike) -> dict[str, Any]:
        """The columns that name a round: its category, its request, and which of the request's rounds it is."""
        same = {name: [getattr(self, name)] * len(group) for name in ("model", "speculator", "config")}
        return same | {
            "category": group,
            "prompt_idx": np.asarray(number, dtype=np.int64),
            "turn": np.zeros(len(group), dtype=np.int16),
            "round_idx": np.asarray(index, dtype=np.int32),
        }


class PartWriter:
    """A thread that writes parts. `collect` runs on that thread and returns the files of a part, or none."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        kind: str,
        collect: Callable[[], dict[str, Callable[[Path], None]]],
        fault: Callable[[str], None],
        pending: Callable[[], int],
    ) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S")
        self.folder = settings.folder / f"{kind}-{stamp}-{os.getpid()}"
        self.stopped = False  # size limit reached, or a write failed
        self._settings, self._collect, self._fault, self._pending = settings, collect, fault, pending
        self._parts, self._bytes = 0, 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"specmargin-{kind}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=10.0)

    @property
    def _part_seconds(self) -> float:
        """The first parts are short: an engine killed by vLLM's server at its end loses the part it has begun."""
        return min(self._settings.part_seconds, _FIRST_PART_SECONDS * 2.0 ** min(self._parts, 16))

    def _run(self) -> None:
        last = time.monotonic()
        while not self.stopped:
            closing = self._closing.wait(_WAKE_SECONDS)
            due = time.monotonic() - last >= self._part_seconds
            if closing or due or self._pending() > _MAX_QUEUED // 2:
                self._write()
                last = time.monotonic()
            if closing:
                return

    def _write(self) -> None:
        hidden = self.folder / f".part-{self._parts + 1:06d}"
        try:
            files = self._collect()
            if not files:
                return
            hidden.mkdir(parents=True, exist_ok=True)
            for name, write in files.items():
                write(hidden / name)
            size = sum(file.stat().st_size for file in hidden.iterdir())
            hidden.rename(self.folder / f"part-{self._parts + 1:06d}")
        except Exception as error:  # a full disk, a removed folder: the engine continues
            shutil.rmtree(hidden, ignore_errors=True)
            self.stopped = True
            self._fault(f"{type(error).__name__}: {error}; capture stops")
            return
        self._parts, self._bytes = self._parts + 1, self._bytes + size
        if self._bytes > self._settings.max_megabytes * 1e6:
            self.stopped = True
            self._fault(f"{self.folder} has reached {self._settings.max_megabytes:g} MB; capture stops")


@dataclass(kw_only=True)
class BankWriter:
    """Writes acceptance and speculator banks, and a table of steps."""

    settings: CaptureSettings
    identity: Identity
    max_depth: int
    board: Board
    fault: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _rounds: deque[tuple[Any, ...]] = field(default_factory=deque)
    _steps: deque[tuple[Any, ...]] = field(default_factory=deque)
    _allowance: float = field(init=False)
    _last: float = field(init=False)
    _writer: PartWriter = field(init=False)

    def __post_init__(self) -> None:
        self._allowance, self._last = self.settings.rounds_per_second, self.clock()
        self._writer = PartWriter(
            self.settings, kind="rounds", collect=self._collect, fault=self.fault, pending=lambda: len(self._rounds)
        )

    @property
    def folder(self) -> Path:
        return self._writer.folder

    def wants(self) -> bool:
        """Whether to capture a new request. Requests are captured whole, to keep consecutive rounds together."""
        now = self.clock()
        rate = self.settings.rounds_per_second
        self._allowance = min(self._allowance + (now - self._last) * rate, rate)
        self._last = now
        return self._allowance > 0.0 and not self._writer.stopped

    def round(
        self,
        request: LiveRequest,
        verified: int,
        accepted: int,
        context: int,
        confidence: npt.NDArray[np.floating[Any]] | None = None,
    ) -> None:
        self._allowance -= 1.0
        index = request.rounds
        request.rounds += 1
        if self._writer.stopped or len(self._rounds) >= _MAX_QUEUED:
            self.board.add("capture_dropped_total")
            return
        self._rounds.append((request.group, request.number, index, context, verified, accepted, confidence))
        self.board.add("captured_rounds_total")

    def step(self, step: StepDone, drafted: int) -> None:
        if self._writer.stopped or len(self._steps) >= _MAX_QUEUED:
            return
        sizes = (step.verified.size, step.verified_tokens, step.accepted_tokens)
        context = sum(step.contexts) / max(len(step.contexts), 1)
        self._steps.append(
            (time.time(), *sizes, drafted, context, step.prompt_tokens, step.seconds, step.distinct_experts)
        )

    def close(self) -> None:
        self._writer.close()

    def _collect(self) -> dict[str, Callable[[Path], None]]:
        rounds, steps = drain(self._rounds), drain(self._steps)
        files: dict[str, Callable[[Path], None]] = {}
        if rounds:
            accepted, speculator = _bank_frames(rounds, self.identity, self.max_depth)
            files |= {"acceptance.parquet": accepted.write_parquet, "speculator.parquet": speculator.write_parquet}
        if steps:
            files["steps.parquet"] = _step_frame(steps).write_parquet
        return files


def drain(rows: deque[Row]) -> list[Row]:
    """Remove and return the current rows; the engine's thread may append meanwhile."""
    return [rows.popleft() for _ in range(len(rows))]


def _bank_frames(
    rounds: Sequence[tuple[Any, ...]], identity: Identity, depth: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    group, number, index, context, verified, accepted, confidence = zip(*rounds, strict=True)
    keys = pl.DataFrame(identity.keys(group, number, index))
    is_accepted = np.arange(depth) < np.array(accepted)[:, np.newaxis]
    confidence_by_round = np.full((len(rounds), depth), np.nan, dtype=np.float32)
    for i, row in enumerate(confidence):
        if row is not None:
            confidence_by_round[i, : row.size] = row[:depth]
    outcomes = pl.DataFrame(
        {
            "context_len": pl.Series(context, dtype=pl.Int32),
            "depth": pl.Series(verified, dtype=pl.Int16),
            "accept": pl.Series(accepted, dtype=pl.Int16),
            **{f"acc{d}": is_accepted[:, d].astype(np.int8) for d in range(depth)},
        }
    )
    confidences = pl.DataFrame({f"conf{d}": confidence_by_round[:, d] for d in range(depth)})
    return pl.concat([keys, outcomes], how="horizontal"), pl.concat([keys, confidences], how="horizontal")


def _step_frame(steps: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    names = ("time", "sequences", "verified", "accepted", "drafted", "context", "prompt_tokens", "seconds", "experts")
    return pl.DataFrame(dict(zip(names, zip(*steps, strict=True), strict=True)))
