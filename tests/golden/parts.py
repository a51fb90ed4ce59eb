"""Everything that is recorded, in parts that can be computed in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import polars as pl

from tests.golden import cells, files, policies, rounds, surface
from tests.golden.comparison import TOLERANCE, Change, Excuse, Table, compare_documents, compare_tables
from tests.golden.predictions import is_tie, predict

_MOST_PROCESSES = 8


def _no_excuse(*_: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """As it is now. `scope`: of the recorded tables, only the rows with these keys belong to it."""

    tables: Sequence[Table] = ()
    documents: dict[str, Any] = field(default_factory=dict)
    some_keys: bool = False  # of the documents; other parts have the others
    scope: pl.DataFrame | None = None
    excuse: Excuse = _no_excuse

    def changes(self, tolerance: float = TOLERANCE) -> list[Change]:
        """Changes against the recording."""
        changes = []
        for table in self.tables:
            changes += compare_tables(self._recorded(table), table, tolerance=tolerance, excuse=self.excuse)
        for name, document in self.documents.items():
            recorded = files.read_document(name) if files.document_path(name).exists() else {}
            if self.some_keys:
                recorded = {key: recorded[key] for key in document if key in recorded}
            changes += compare_documents(name, recorded, document)
        return changes

    def _recorded(self, table: Table) -> Table:
        if not files.table_path(table.name).exists():
            return replace(table, frame=table.frame.clear())
        frame = files.read_frame(table.name, table.frame.schema)
        if self.scope is not None:
            frame = frame.join(self.scope, on=self.scope.columns, how="semi")
        return replace(table, frame=frame)


def _prices(block: str) -> Part:
    asked = cells.blocks()[block]
    scope = pl.DataFrame([cell.key for cell in asked], schema=list(cells.KEY), orient="row")
    return Part(tables=predict(asked), scope=scope, excuse=is_tie)


def _controller(player: rounds.Player) -> Part:
    return Part(tables=rounds.replayed_tables((player,)), scope=pl.DataFrame({"controller": [player.name]}))


def _policies() -> Part:
    return Part(tables=[policies.policies_table()])


def _verb(name: str) -> Part:
    return Part(documents={"verbs": {name: surface.verb_keys(name)}}, some_keys=True)


def _document(name: str) -> Part:
    return Part(documents={name: surface.DOCUMENTS[name]()})


def left_over() -> list[Change]:
    """What is recorded of cells, controllers and verbs that are no longer asked for: no part would miss it."""
    players = [(player.name,) for player in rounds.PLAYERS]
    verbs = files.read_document("verbs") if files.document_path("verbs").exists() else {}
    return [
        *(
            Change(file="verbs", column=name, row="every key", before="recorded", after=None)
            for name in verbs.keys() - set(surface.VERBS)
        ),
        *(change for name in ("cells", "steps", "plans") for change in files.left_over(name, cells.KEY, cells.keys())),
        *(change for name in ("decisions", "learned") for change in files.left_over(name, ("controller",), players)),
    ]


def parts() -> dict[str, Callable[[], Part]]:
    """By name; what takes longest comes first."""
    blocks = sorted(cells.blocks(), key=lambda name: ("tables" not in name, "laws" not in name))
    return {
        **{f"prices, {block}": partial(_prices, block) for block in blocks},
        **{f"controller, {player.name}": partial(_controller, player) for player in rounds.PLAYERS},
        "policies": _policies,
        **{f"verb, {name}": partial(_verb, name) for name in surface.VERBS},
        **{name: partial(_document, name) for name in surface.DOCUMENTS},
    }


def compute(name: str) -> Part:
    return parts()[name]()


@contextmanager
def in_parallel(names: Sequence[str]) -> Iterator[Callable[[str], Part]]:
    """All of them on all cores; the function that is yielded waits for one of them."""
    workers = min(os.cpu_count() or 1, _MOST_PROCESSES)
    pool = ProcessPoolExecutor(max_workers=workers, mp_context=get_context("spawn"))
    try:
        running = {name: pool.submit(compute, name) for name in names}
        yield lambda name: running[name].result()
    finally:
        pool.shutdown(cancel_futures=True)
