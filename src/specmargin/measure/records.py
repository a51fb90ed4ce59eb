"""Records of a measurement: one JSON line per record, appended while it runs and read to resume it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmargin.errors import InputError
from specmargin.files import check_new, write_bytes
from specmargin.measure.points import Key, Point, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """A file of records of one measurement. The first record is a header that says what is measured."""

    path: Path

    def check(self, header: dict[str, Any], *, fresh: bool) -> None:
        """Whether the file can be started or continued: called first, because `begin` leaves a file behind."""
        check_new(self.path, force=True)
        recorded = None if fresh else next(iter(self.read()), None)
        if recorded is None and not fresh and self.path.exists() and self.path.stat().st_size:
            raise InputError(f"{self.path} is not a measurement: give another -o, or --force to overwrite it")
        wanted = _head(header)
        if recorded is not None and recorded != wanted and self._has_rows():
            difference = next(name for name in {**wanted, **recorded} if recorded.get(name) != wanted.get(name))
            raise InputError(
                f"{self.path} holds a measurement with another {difference}: pass --force to start again, or another -o"
            )

    def begin(self, header: dict[str, Any], *, fresh: bool) -> None:
        """Start the file, or continue it if its header is the same. A file without rows is overwritten."""
        self.check(header, fresh=fresh)
        recorded = None if fresh else next(iter(self.read()), None)
        if recorded != _head(header):
            write_bytes(self.path, (json.dumps(_head(header)) + "\n").encode())

    def _has_rows(self) -> bool:
        return any(record.get("record") == "row" for record in self.read())

    def append(self, record: dict[str, Any]) -> None:
        """A new line, even after one that an interruption cut short."""
        with self.path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                cut_short = file.read(1) != b"\n"
            else:
                cut_short = False
            file.write((("\n" if cut_short else "") + json.dumps(record) + "\n").encode())

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C while it is measured says what is kept."""
        try:
            yield
        except KeyboardInterrupt:
            rows = sum(record.get("record") == "row" for record in self.read())
            raise InputError(
                f"interrupted; {rows} rows are saved in {self.path}: run the same command to resume"
            ) from None

    def read(self) -> Iterator[dict[str, Any]]:
        """Every complete record; a line that an interruption cut short is skipped."""
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record

    def rows(self) -> list[dict[str, Any]]:
        """The last row of every point."""
        row_by_key = {_key(record): record for record in self.read() if record.get("record") == "row"}
        return list(row_by_key.values())

    def engines(self) -> dict[str, dict[str, Any]]:
        """The engine and machine of every run, with the GPU clocks at its end where they were recorded."""
        engine_by_run: dict[str, dict[str, Any]] = {}
        for record in self.read():
            if record.get("record") == "engine":
                engine_by_run[record["run"]] = record
            elif record.get("record") == "clocks" and record["run"] in engine_by_run:
                clocks = [f"{name.removeprefix('clocks.')} {record[name]}" for name in ("clocks.sm", "clocks.mem")]
                engine_by_run[record["run"]]["clocks"] = ", ".join(clocks)
        return engine_by_run

    def failures(self) -> dict[str, str]:
        """The error of every run that failed and was not finished later."""
        error_by_run: dict[str, str] = {}
        for record in self.read():
            if record.get("record") == "failure":
                error_by_run[record["run"]] = record["error"]
            elif record.get("record") == "done":
                error_by_run.pop(record["run"], None)
        return error_by_run

    def missing(self, run: Run) -> tuple[Point, ...]:
        done = {_key(row) for row in self.rows()}
        return tuple(point for point in run.points if run.key(point) not in done)


def _head(header: dict[str, Any]) -> dict[str, Any]:
    return {"record": "measurement", **header}


def _key(row: dict[str, Any]) -> Key:
    return row["run"], row["batch"], row["depth"], row["prompt"], row["kind"]
