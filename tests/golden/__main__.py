"""`python -m tests.golden`: work everything out again, say what moved and by how much, and record it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from tests.golden import files
from tests.golden.comparison import NOISE, TOLERANCE, Change, Table, summary
from tests.golden.parts import Part, left_over, parts, side_by_side


def main() -> None:
    with side_by_side(list(parts())) as found:
        worked_out = [found(name) for name in parts()]
    changes = [change for part in worked_out for change in part.changes(NOISE)]
    changes += left_over()
    print(summary(changes))
    moved = {change.file for change in changes if not change.tie}
    if not moved:
        return
    for table in _joined(worked_out):
        if table.name in moved:
            files.write_table(table)
    for name, document in _documents(worked_out).items():
        if name in moved:
            files.write_document(name, document)
    print(f"\n{_over_tolerance(changes)} Recorded in {', '.join(sorted(moved))}: review the diff of this output.")


def _joined(worked_out: Iterable[Part]) -> Iterable[Table]:
    frames: dict[str, list[Table]] = {}
    for part in worked_out:
        for table in part.tables:
            frames.setdefault(table.name, []).append(table)
    for name, those in frames.items():
        keys = those[0].keys
        yield Table(name=name, keys=keys, frame=pl.concat([table.frame for table in those]).sort(keys))


def _documents(worked_out: Iterable[Part]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in worked_out:
        for name, document in part.documents.items():
            found[name] = found.get(name, {}) | document
    return found


def _over_tolerance(changes: Iterable[Change]) -> str:
    count = sum(change.size > TOLERANCE and not change.tie for change in changes)
    return f"{count} changes are beyond the {TOLERANCE:.1%} that the tests allow."


if __name__ == "__main__":
    main()
