"""The recorded files: tables as CSV and documents as JSON, one line per row, so that a diff can be read.

Numbers are rounded to six digits, two hundred times finer than the tests compare them. Lists are written with spaces,
and a cell without a value is empty. A line break in a text is written as `\\n`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tests.golden.comparison import EVERY_ROW, ROUNDING, ROW, Change, Row, Table, row_name

DATA = Path(__file__).parent / "data"
_DIGITS = 6


def table_path(name: str) -> Path:
    return DATA / f"{name}.csv"


def read_frame(name: str, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Its columns as the schema has them; a column that the schema does not have is text."""
    raw = _read_raw(name)
    return raw.select(_parsed(column, schema.get(column, pl.String())) for column in raw.columns)


def _read_raw(name: str) -> pl.DataFrame:
    return pl.read_csv(table_path(name), infer_schema=False).fill_null("")


def _parsed(column: str, dtype: pl.DataType) -> pl.Expr:
    text = pl.col(column)
    if dtype == pl.String():
        return text.str.replace_all("\\n", "\n", literal=True)
    present = text.str.split(" ") if isinstance(dtype, pl.List) else text
    return pl.when(text != "").then(present).cast(dtype).alias(column)


def write_frame(name: str, frame: pl.DataFrame, *, exact: bool = False) -> None:
    """`exact`: numbers are inputs and keep all their digits."""
    with table_path(name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(frame.columns)
        writer.writerows([_text(value, exact) for value in row] for row in frame.iter_rows())


def _text(value: Any, exact: bool) -> str:
    match value:
        case None:
            return ""
        case list():
            return " ".join(_text(inner, exact) for inner in value)
        case float() if not exact:
            return f"{0.0 if abs(value) < ROUNDING else value:.{_DIGITS}g}"
        case str():
            return value.replace("\n", "\\n")
        case _:
            return str(value)


def update_table(table: Table, changes: Sequence[Change]) -> None:
    """Over the recorded version: of its rows, those that did not move stay as they are."""
    moved = {change.row for change in changes if change.file == table.name and not change.tie}
    recorded: dict[str, Row] = {}
    if table_path(table.name).exists() and EVERY_ROW not in moved:
        old = read_frame(table.name, table.frame.schema)
        recorded = {row_name(table.keys, row): row for row in old.iter_rows(named=True)}
    rows = []
    for row in table.frame.iter_rows(named=True):
        name = row_name(table.keys, row)
        rows.append(row if name in moved else recorded.get(name, row))
    write_frame(table.name, pl.DataFrame(rows, schema=table.frame.schema))


def left_over(name: str, keys: Sequence[str], keys_now: Sequence[tuple[str, ...]]) -> list[Change]:
    """Recorded keys that are not computed any more."""
    if not table_path(name).exists():
        return []
    gone = sorted(set(_read_raw(name).select(keys).unique().rows()) - set(keys_now))
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
