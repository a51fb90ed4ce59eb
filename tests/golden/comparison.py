"""Two versions of a table, or of a document, and what moved between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

TOLERANCE = 1e-3  # of a number
NOISE = 1e-5  # of a number: files hold six digits of it, and machines may differ in the last one
ROUNDING = 1e-12  # what remains of a hurdle of zero: it has another sign after every change
_NOTHING = 1e-9  # a nanosecond, or the rounding error of a hurdle: smaller numbers do not differ from zero
_WORST_SHOWN = 3
_LONGEST = 80  # characters of a value that is shown
ROW = "row"  # the column of a change that is about a whole row
EVERY_ROW = "every row"  # the row of a change that is about a whole column

FloatArray = npt.NDArray[np.float64]
Row = Mapping[str, Any]
Excuse = Callable[[str, Row, Row], bool]  # of a column in the row before and the row after: whether rounding decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows with a unique key. Columns of floats are compared as numbers, all others exactly."""

    name: str
    keys: tuple[str, ...]
    frame: pl.DataFrame
    axes: Mapping[str, str] = field(default_factory=dict)  # by column of lists, what its entries are by: depth, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    file: str
    column: str
    row: str
    before: Any
    after: Any
    position: str = ""  # in a list
    relative: float | None = None  # of a number
    tie: bool = False  # rounding decides between the two

    def __str__(self) -> str:
        by = "" if self.relative is None else f" ({self.relative:+.3%})"
        before, after = _shown(self.before, self.after), _shown(self.after, self.before)
        return f"{self.row}{self.position}: {before} → {after}{by}{' (a tie)' if self.tie else ''}"

    @property
    def size(self) -> float:
        return math.inf if self.relative is None else abs(self.relative)


def _shown(value: Any, other: Any) -> str:
    if value is None:
        return "nothing"
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    if len(text) <= _LONGEST:
        return text
    pairs = zip(text, " ".join(str(other).split()), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(min(same, len(text) - _LONGEST), 0)  # where a long setting begins to differ
    return f"{'…' if start else ''}{text[start : start + _LONGEST]}{'…' if start + _LONGEST < len(text) else ''}"


# --- tables ---


def compare_tables(
    before: Table, after: Table, *, tolerance: float = TOLERANCE, excuse: Excuse = lambda *_: False
) -> list[Change]:
    """Every row that vanished or is new, and every value that differs by more than the tolerance."""
    name, keys = before.name, list(before.keys)
    old, new = before.frame, after.frame
    changes = [
        *(_whole_row(name, keys, row, gone=True) for row in _without(old, new, keys)),
        *(_whole_row(name, keys, row, gone=False) for row in _without(new, old, keys)),
    ]
    old, new = _common_rows(old, new, keys)
    for column in old.columns:
        if column in keys:
            continue
        if column not in new.columns:
            changes.append(Change(file=name, column=column, row=EVERY_ROW, before="a column", after=None))
        elif _is_number(old.schema[column]):
            changes += _numbers_moved(before, column, old, new, tolerance, excuse)
        else:
            changes += _values_moved(name, keys, column, old, new, excuse)
    changes += [
        Change(file=name, column=column, row=EVERY_ROW, before=None, after="a column")
        for column in new.columns
        if column not in old.columns
    ]
    return changes


def _common_rows(old: pl.DataFrame, new: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that both have, in the same order."""
    return (
        old.join(new, on=keys, how="semi").sort(keys),
        new.join(old, on=keys, how="semi").sort(keys),
    )


def _without(frame: pl.DataFrame, other: pl.DataFrame, keys: Sequence[str]) -> Iterator[Row]:
    return frame.join(other, on=keys, how="anti").select(keys).iter_rows(named=True)


def _whole_row(name: str, keys: Sequence[str], row: Row, *, gone: bool) -> Change:
    before, after = ("recorded", None) if gone else (None, "new")
    return Change(file=name, column=ROW, row=row_name(keys, row), before=before, after=after)


def row_name(keys: Sequence[str], row: Row) -> str:
    """`qwen3-8b h200 vllm laws batch 8`: texts as they are, numbers with their name."""
    parts = [str(row[key]) if isinstance(row[key], str) else f"{key} {row[key]}" for key in keys]
    return " ".join(part for part in parts if part)


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_float() or (isinstance(dtype, pl.List) and dtype.inner.is_float())


def _values_moved(
    name: str, keys: Sequence[str], column: str, old: pl.DataFrame, new: pl.DataFrame, excuse: Excuse
) -> Iterator[Change]:
    for before, after in _rows_where(~old[column].eq_missing(new[column]), old, new):
        yield Change(
            file=name,
            column=column,
            row=row_name(keys, before),
            before=before[column],
            after=after[column],
            tie=excuse(column, before, after),
        )


def _rows_where(chosen: pl.Series, old: pl.DataFrame, new: pl.DataFrame) -> Iterator[tuple[Row, Row]]:
    return zip(old.filter(chosen).iter_rows(named=True), new.filter(chosen).iter_rows(named=True), strict=True)


def _numbers_moved(
    table: Table, column: str, old: pl.DataFrame, new: pl.DataFrame, tolerance: float, excuse: Excuse
) -> Iterator[Change]:
    name, keys, axis = table.name, table.keys, table.axes.get(column, "place")
    listed = isinstance(old.schema[column], pl.List)
    if listed:
        differs = ~old[column].list.len().eq_missing(new[column].list.len())
        for before, after in _rows_where(differs, old, new):
            counts = [None if row[column] is None else f"{len(row[column])} numbers" for row in (before, after)]
            yield Change(file=name, column=column, row=row_name(keys, before), before=counts[0], after=counts[1])
        old, new = old.filter(~differs), new.filter(~differs)
    (rows, index, one), (_, _, other) = _flattened(old[column]), _flattened(new[column])
    relative = relative_change(one, other)
    for i in np.flatnonzero(~(np.abs(relative) <= tolerance)):  # also where a number is new or missing
        before, after = old.row(int(rows[i]), named=True), new.row(int(rows[i]), named=True)
        yield Change(
            file=name,
            column=column,
            row=row_name(keys, before),
            position=f" {axis} {index[i]}" if listed else "",
            before=_number(one[i]),
            after=_number(other[i]),
            relative=None if np.isnan(relative[i]) else float(relative[i]),
            tie=excuse(column, before, after),
        )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _flattened(column: pl.Series) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], FloatArray]:
    """Row, position in the list and value of each number of a column. Missing values are NaN."""
    if not isinstance(column.dtype, pl.List):
        values = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
        return np.arange(values.size), np.zeros(values.size, dtype=np.int64), values
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    rows = np.repeat(np.arange(lengths.size), lengths)
    values = column.filter(column.list.len() > 0).explode().cast(pl.Float64).fill_null(np.nan).to_numpy()
    return rows, np.arange(rows.size) - starts[rows], values


def relative_change(before: FloatArray, after: FloatArray) -> FloatArray:
    """0 where both are missing, NaN where one of them is."""
    change = (after - before) / np.maximum(np.abs(before), _NOTHING)
    change = np.where(np.maximum(np.abs(before), np.abs(after)) < ROUNDING, 0.0, change)
    return np.asarray(np.where(np.isnan(before) & np.isnan(after), 0.0, change))


# --- documents ---


def compare_documents(name: str, before: Any, after: Any) -> list[Change]:
    """JSON documents, leaf by leaf. The column is the first part of a leaf's path, the row is the rest."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    changes = []
    for path in sorted(old.keys() | new.keys()):
        one, other = old.get(path), new.get(path)
        if one != other:
            column, row = path[0] if path else "", " ".join(path[1:])
            changes.append(Change(file=name, column=column, row=row, before=one, after=other))
    return changes


def _leaves(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(document, dict) and (document or not path):
        for key, value in document.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(document, list) and any(isinstance(value, dict | list) for value in document):
        for index, value in enumerate(document):
            yield from _leaves(value, (*path, str(index)))
    else:
        yield path, repr(document)


# --- in words ---


def summary(changes: Iterable[Change]) -> str:
    """By file and column: how many, by how much, and the worst by name; ties apart."""
    grouped: dict[tuple[str, str, bool], list[Change]] = {}
    for change in changes:
        grouped.setdefault((change.file, change.column, change.tie), []).append(change)
    return "\n".join(_group(*name, those) for name, those in grouped.items()) or "nothing moved"


def _group(file: str, column: str, tie: bool, changes: Sequence[Change]) -> str:
    numbers = np.array([change.size for change in changes if change.relative is not None])
    rows = len({change.row for change in changes})
    head = f"{file}, {column}: {rows} {'row' if rows == 1 else 'rows'} {'tied' if tie else 'moved'}"
    if numbers.size:
        head += f", by at most {numbers.max():.3%}, median {np.median(numbers):.3%}"
    worst = sorted(changes, key=lambda change: -change.size)
    shown = [f"  {change}" for change in worst[:_WORST_SHOWN]]
    more = [f"  and {len(changes) - _WORST_SHOWN} more"] if len(changes) > _WORST_SHOWN else []
    return "\n".join([head, *shown, *more])
