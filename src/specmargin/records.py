"""Rows with named fields for compiled code: a class of annotated numbers as a NumPy record type.

    class Request:
        prompt_tokens: int
        arrival_seconds: float

    requests = rows_of(Request, 100)

To the type checker `requests[3].prompt_tokens` is a number of a `Request`; to NumPy and Numba it is a field of a row of
a structured array, read and written in place. `requests["prompt_tokens"]` is the whole column.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol, TypeVar, cast, get_type_hints, overload

import numpy as np
import numpy.typing as npt

Row_co = TypeVar("Row_co", covariant=True)
Row = TypeVar("Row")
_KINDS: dict[type, type] = {int: np.int64, float: np.float64}


class Rows(Protocol[Row_co]):
    """A structured array with one field for each of the class's annotations."""

    @property
    def size(self) -> int: ...

    @overload
    def __getitem__(self, index: int) -> Row_co: ...

    @overload
    def __getitem__(self, index: str) -> npt.NDArray[Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Rows[Row_co]: ...


@cache
def record_type(row: type) -> np.dtype[Any]:
    """The record type of a class whose annotations are int and float. A field named as a method of NumPy's records
    would be that method where nothing is compiled."""
    fields = get_type_hints(row)
    taken = next((name for name in fields if hasattr(np.void, name)), None)
    if taken is not None:
        raise ValueError(f"{row.__qualname__}.{taken}: a NumPy record has a method of this name")
    # As np.record, whose look-up by name in Python takes four times as long: most of a run without Numba.
    scalar = type(row.__name__, (np.void,), {"__slots__": (), **{name: _field(name) for name in fields}})
    return np.dtype((scalar, [(name, _KINDS[kind]) for name, kind in fields.items()]))


def _field(name: str) -> property:
    def read(record: np.void) -> Any:
        return record[name]

    def write(record: np.void, value: Any) -> None:
        record[name] = value

    return property(read, write)


def rows_of(row: type[Row], count: int = 1, **values: float) -> Rows[Row]:
    """`count` rows of zeros, with `values` in all of them."""
    rows = np.zeros(count, dtype=record_type(cast(Any, row)))
    for name, value in values.items():
        rows[name] = value
    return cast("Rows[Row]", rows)


def joined(first: Rows[Row], second: Rows[Row]) -> Rows[Row]:
    return cast("Rows[Row]", np.concatenate([np.asarray(first), np.asarray(second)]))


def fields_of(rows: Rows[Any], index: int = 0) -> dict[str, Any]:
    """One row as plain numbers by name."""
    array = cast("npt.NDArray[Any]", rows)
    return {name: array[name][index].item() for name in array.dtype.names or ()}
