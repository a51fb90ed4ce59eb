"""`python -m tests.golden`: compute everything again, print what moved and by how much, and record it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from tests.golden import files
from tests.golden.comparison import NOISE, TOLERANCE, Change, Table, summary
from tests.golden.parts import Part, in_parallel, left_over, parts


def main() -> None:
    with in_parallel(list(parts())) as part_named:
        computed = [part_named(name) for name in parts()]
    changes = [change for part in computed for change in part.changes(NOISE)]
    changes += left_over()
    print(summary(changes))
    moved = {change.file for change in changes if not change.tie}
    if not moved:
        return
    for table in _joined(computed):
        if table.name in moved:
            files.update_table(table, changes)
    for name, document in _documents(computed).items():
        if name in moved:
            files.write_document(name, document)
    print(f"\n{_over_tolerance(changes)} Recorded in {', '.join(sorted(moved))}: review their diff.")


def _joined(computed: Iterable[Part]) -> Iterable[Table]:
    frames: dict[str, list[Table]] = {}
    for part in computed:
        for table in part.tables:
            frames.setdefault(table.name, []).append(table)
    for name, those in frames.items():
        keys = those[0].keys
        yield Table(name=name, keys=keys, frame=pl.concat([table.frame for table in those]).sort(keys))


def _documents(computed: Iterable[Part]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in computed:
        for name, document in part.documents.items():
            merged[name] = merged.get(name, {}) | document
    return merged


def _over_tolerance(changes: Iterable[Change]) -> str:
    count = sum(change.size > TOLERANCE and not change.tie for change in changes)
    return f"{count} changes are beyond the {TOLERANCE:.1%} that the tests allow."


if __name__ == "__main__":
    main()
