"""What a measurement leaves behind while it runs: a JSON line a record, appended as it comes, read to resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmargin.errors import InputError
from specmargin.measure.points import Key, Point, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """A file of records. The first says what is being measured; another measurement never lands in it."""

    path: Path

    def begin(self, header: dict[str, Any], *, fresh: bool) -> None:
        """Start the file, or go on with it where it is about the same thing. One without rows has nothing to lose."""
        wanted = {"record": "measurement", **header}
        known = None if fresh else next(iter(self.read()), None)
        if known is None or (known != wanted and not self._has_rows()):
            self.path.write_text(json.dumps(wanted) + "\n", encoding="utf-8")
        elif known != wanted:
            other = next(name for name in wanted if known.get(name) != wanted[name])
            raise InputError(
                f"{self.path} holds a measurement with another {other}: give --force to start anew, or another -o"
            )

    def _has_rows(self) -> bool:
        return any(record.get("record") == "row" for record in self.read())

    def append(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read(self) -> Iterator[dict[str, Any]]:
        """Every whole line; one that was cut short by an interruption is passed over."""
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found

    def rows(self) -> list[dict[str, Any]]:
        """The last row of every point."""
        found = {_key(record): record for record in self.read() if record.get("record") == "row"}
        return list(found.values())

    def engines(self) -> dict[str, dict[str, Any]]:
        """What every run was measured on, with the clocks at its end where there are any."""
        found: dict[str, dict[str, Any]] = {}
        for record in self.read():
            if record.get("record") == "engine":
                found[record["run"]] = record
            elif record.get("record") == "clocks" and record["run"] in found:
                clocks = [f"{name.removeprefix('clocks.')} {record[name]}" for name in ("clocks.sm", "clocks.mem")]
                found[record["run"]]["clocks"] = ", ".join(clocks)
        return found

    def failures(self) -> dict[str, str]:
        """Runs that failed and were not finished since."""
        found: dict[str, str] = {}
        for record in self.read():
            if record.get("record") == "failure":
                found[record["run"]] = record["error"]
            elif record.get("record") == "done":
                found.pop(record["run"], None)
        return found

    def missing(self, run: Run) -> tuple[Point, ...]:
        done = {_key(row) for row in self.rows()}
        return tuple(point for point in run.points if run.key(point) not in done)


def _key(row: dict[str, Any]) -> Key:
    return row["run"], row["batch"], row["depth"], row["prompt"], row["kind"]
