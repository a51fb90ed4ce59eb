"""Banks from a live engine: rounds and steps, written by a thread, in parts that are whole or not there.

Every part is a bank of its own (`part-000001/acceptance.parquet`, `speculator.parquet`, `steps.parquet`), made under
another name and renamed: a killed engine leaves readable parts and loses at most the last seconds. The engine only
appends to a queue; what does not fit is dropped and counted.
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
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from specmargin.live.board import Board
from specmargin.live.sequences import Live, StepDone
from specmargin.live.settings_schema import CaptureSettings

_MOST_HELD = 200_000  # rows in memory
_WAKE_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The keys of a bank that are the same in every row."""

    model: str
    speculator: str
    config: str

    def columns(self, rows: int) -> dict[str, list[str]]:
        return {name: [getattr(self, name)] * rows for name in ("model", "speculator", "config")}


class PartWriter:
    """A thread that writes parts. `collect` gives the files of one, or nothing; it runs on that thread."""

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
        self.stopped = False  # full, or broken
        self._settings, self._collect, self._fault, self._pending = settings, collect, fault, pending
        self._parts, self._bytes = 0, 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"specmargin-{kind}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        last = time.monotonic()
        while not self.stopped:
            closing = self._closing.wait(_WAKE_SECONDS)
            due = time.monotonic() - last >= self._settings.part_seconds
            if closing or due or self._pending() > _MOST_HELD // 2:
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
        except Exception as error:  # a full disk, a folder that went away: the engine does not care
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
    """Acceptance and speculator banks, and the steps beside them."""

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
        """Whole requests are captured or left out, so that streaks stay streaks."""
        now = self.clock()
        rate = self.settings.rounds_per_second
        self._allowance = min(self._allowance + (now - self._last) * rate, rate)
        self._last = now
        return self._allowance > 0.0 and not self._writer.stopped

    def round(
        self,
        live: Live,
        verified: int,
        accepted: int,
        context: int,
        confidence: npt.NDArray[np.floating[Any]] | None = None,
    ) -> None:
        self._allowance -= 1.0
        index = live.rounds
        live.rounds += 1
        if self._writer.stopped or len(self._rounds) >= _MOST_HELD:
            self.board.add("capture_dropped_total")
            return
        self._rounds.append((live.group, live.number, index, context, verified, accepted, confidence))
        self.board.add("captured_rounds_total")

    def step(self, step: StepDone, drafted: int) -> None:
        if self._writer.stopped or len(self._steps) >= _MOST_HELD:
            return
        sizes = (len(step.request_ids), sum(step.verified), sum(step.accepted))
        context = sum(step.contexts) / max(len(step.contexts), 1)
        self._steps.append(
            (time.time(), *sizes, drafted, context, step.prompt_tokens, step.seconds, step.distinct_experts)
        )

    def close(self) -> None:
        self._writer.close()

    def _collect(self) -> dict[str, Callable[[Path], None]]:
        rounds, steps = _taken(self._rounds), _taken(self._steps)
        files: dict[str, Callable[[Path], None]] = {}
        if rounds:
            accepted, speculator = _bank(rounds, self.identity, self.max_depth)
            files |= {"acceptance.parquet": accepted.write_parquet, "speculator.parquet": speculator.write_parquet}
        if steps:
            files["steps.parquet"] = _steps(steps).write_parquet
        return files


def _taken(rows: deque[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What is there now; the engine's thread may append meanwhile."""
    return [rows.popleft() for _ in range(len(rows))]


def _bank(rounds: Sequence[tuple[Any, ...]], identity: Identity, depth: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    group, number, index, context, verified, accepted, confidence = zip(*rounds, strict=True)
    keys = pl.DataFrame(
        {
            **identity.columns(len(rounds)),
            "category": group,
            "prompt_idx": pl.Series(number, dtype=pl.Int64),
            "turn": pl.Series([0] * len(rounds), dtype=pl.Int16),
            "round_idx": pl.Series(index, dtype=pl.Int32),
        }
    )
    taken = np.arange(depth) < np.array(accepted)[:, np.newaxis]
    known = np.full((len(rounds), depth), np.nan, dtype=np.float32)
    for i, row in enumerate(confidence):
        if row is not None:
            known[i, : row.size] = row[:depth]
    rest = pl.DataFrame(
        {
            "context_len": pl.Series(context, dtype=pl.Int32),
            "depth": pl.Series(verified, dtype=pl.Int16),
            "accept": pl.Series(accepted, dtype=pl.Int16),
            **{f"acc{d}": taken[:, d].astype(np.int8) for d in range(depth)},
        }
    )
    confidences = pl.DataFrame({f"conf{d}": known[:, d] for d in range(depth)})
    return pl.concat([keys, rest], how="horizontal"), pl.concat([keys, confidences], how="horizontal")


def _steps(steps: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    names = ("time", "sequences", "verified", "accepted", "drafted", "context", "prompt_tokens", "seconds", "experts")
    return pl.DataFrame(dict(zip(names, zip(*steps, strict=True), strict=True)))
