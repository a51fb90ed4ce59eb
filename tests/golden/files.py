"""Reading the recorded files, and writing them again without churn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tests.golden.comparison import NOISE, ROW, Change, Table, common_rows, flattened, relative_change

DATA = Path(__file__).parent / "data"


def table_path(name: str) -> Path:
    return DATA / f"{name}.parquet"


def read_frame(name: str) -> pl.DataFrame:
    return pl.read_parquet(table_path(name))


def write_table(table: Table) -> None:
    """Over an earlier version; numbers that differ from it by noise alone stay as they were."""
    frame = table.frame
    if table_path(table.name).exists():
        frame = _calmed(read_frame(table.name), frame, table.keys)
    frame.write_parquet(table_path(table.name), compression="zstd", compression_level=19, statistics=False)


def _calmed(old: pl.DataFrame, new: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    before, after = common_rows(old, new, keys)
    for column in after.columns:
        if column in keys or before.schema.get(column) != after.schema[column]:
            continue
        if after.schema[column].is_float():
            after = after.with_columns(_calm(before[column], after[column]))
        elif isinstance(after.schema[column], pl.List):
            after = after.with_columns(_calm_list(before[column], after[column]))
    added = new.join(old, on=keys, how="anti")
    return pl.concat([after, added]).sort(keys)


def _calm(before: pl.Series, after: pl.Series) -> pl.Series:
    one, other = flattened(before)[2], flattened(after)[2]
    same = np.abs(relative_change(one, other)) <= NOISE
    return after.zip_with(pl.Series(~same), before)


def _calm_list(before: pl.Series, after: pl.Series) -> pl.Series:
    """A list at a time: it is one row of a price grid."""
    keep = before.list.len().eq_missing(after.list.len())
    rows, _, one = flattened(before.filter(keep))
    other = flattened(after.filter(keep))[2]
    moved = np.zeros(int(keep.sum()), dtype=bool)
    np.logical_or.at(moved, rows, ~(np.abs(relative_change(one, other)) <= NOISE))
    same = np.zeros(len(after), dtype=bool)
    same[np.flatnonzero(keep.to_numpy())] = ~moved
    return after.zip_with(pl.Series(~same), before)


def left_over(name: str, keys: Sequence[str], keys_now: Sequence[tuple[str, ...]]) -> list[Change]:
    """Recorded keys that are not computed any more."""
    if not table_path(name).exists():
        return []
    recorded = pl.read_parquet(table_path(name), columns=list(keys)).unique().rows()
    gone = sorted(set(recorded) - set(keys_now))
    return [
        Change(file=name, column=ROW, row=" ".join(part for part in key if part), before="recorded", after=None)
        for key in gone
    ]


def document_path(name: str) -> Path:
    return DATA / f"{name}.json"


def read_document(name: str) -> Any:
    return json.loads(document_path(name).read_text(encoding="utf-8"))


def write_document(name: str, document: Any) -> None:
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    document_path(name).write_text(f"{text}\n", encoding="utf-8")
