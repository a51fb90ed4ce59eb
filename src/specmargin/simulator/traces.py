"""Traces of real services: arrival, prompt and output of every request, in several published column layouts."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specmargin.errors import ScenarioError, needs_extra
from specmargin.files import read_csv, read_json_lines, read_text
from specmargin.simulator.workload import BlockHashes, Trace
from specmargin.step import BoolArray, FloatArray

if TYPE_CHECKING:
    import polars as pl

HASH_TOKENS = 512  # per hash of Mooncake's traces
# Column names, first match wins: Specmargin, Azure LLM inference, BurstGPT, Mooncake, then common variants.
_ARRIVAL = ("arrival_seconds", "TIMESTAMP", "Timestamp", "timestamp", "arrival_time", "arrival", "time")
_PROMPT = ("prompt_tokens", "ContextTokens", "Request tokens", "input_length", "prompt_length", "num_prefill_tokens")
_OUTPUT = ("output_tokens", "GeneratedTokens", "Response tokens", "output_length", "num_decode_tokens")
_MOONCAKE = ["timestamp", "input_length", "output_length"]  # with times in milliseconds
_HASHES = "hash_ids"
_NEVER = {"priority": 0.0, "cancel_tokens": 0.0, "cancel_seconds": np.inf}  # optional columns; where they are empty
_ROW = "row of the file"


def read_trace(path: Path, *, hash_tokens: int = HASH_TOKENS) -> Trace:
    """Read CSV or JSON Lines; failed requests (no output) are left out. `hash_tokens`: per block hash.

    Times are seconds or dates, and milliseconds in Mooncake's columns.
    """
    with needs_extra("simulate"):
        import polars  # noqa: F401, PLC0415 (an extra)

    is_json = path.suffix in (".jsonl", ".json")
    frame = (_read_lines(path) if is_json else read_csv(path, ScenarioError, try_parse_dates=True)).with_row_index(_ROW)
    names = [_column(path, frame.columns, known) for known in (_ARRIVAL, _PROMPT, _OUTPUT)]
    arrival, prompt, output = (_numbers(path, frame[name], dates=name == names[0]) for name in names)
    if is_json:
        for name, values in zip(names, (arrival, prompt, output), strict=True):
            _refuse(path, frame, np.isnan(values), f"{name} is missing")
    if names == _MOONCAKE:
        arrival = _milliseconds(path, frame, arrival)
    served = (prompt >= 1) & (output >= 1) & np.isfinite(arrival)
    frame, prompt = frame.filter(served), prompt[served]
    return Trace(
        arrival_seconds=arrival[served] - (float(arrival[served].min()) if served.any() else 0.0),
        prompt_tokens=prompt.astype(np.int64),
        output_tokens=output[served].astype(np.int64),
        source=path.name,
        hashes=_hashes(path, frame, prompt, hash_tokens) if _HASHES in frame.columns else None,
        **{name: _optional(path, frame, name) for name in _NEVER},
    )


def _column(path: Path, columns: list[str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in columns:
            return name
    raise ScenarioError(f"{path}: missing column {names[0]!r} (or one of {', '.join(names[1:])})")


def _numbers(path: Path, column: pl.Series, *, dates: bool = False) -> FloatArray:
    """Numbers as they are, dates as seconds, NaN where there is none."""
    import polars as pl  # noqa: PLC0415

    given = column
    try:
        if dates and column.dtype == pl.String:
            column = column.str.to_datetime(strict=True)
        if dates and column.dtype.is_temporal():
            return np.asarray(column.dt.epoch("us").to_numpy() / 1e6, dtype=np.float64)
        return np.asarray(column.cast(pl.Float64).to_numpy(), dtype=np.float64)
    except Exception:  # Polars raises several types for values that are not numbers
        kinds = "numbers or dates" if dates else "numbers"
        raise ScenarioError(_first_fault(path, given.name, kinds) or _first_word(path, given, kinds)) from None


def _milliseconds(path: Path, frame: pl.DataFrame, arrival: FloatArray) -> FloatArray:
    if frame["timestamp"].dtype.is_numeric():
        partial = arrival != np.floor(arrival)
        _refuse(
            path,
            frame,
            partial & np.isfinite(arrival),
            "timestamp is in milliseconds beside input_length, and has a fraction; name seconds arrival_seconds",
        )
        return arrival / 1e3
    return arrival


def _optional(path: Path, frame: pl.DataFrame, name: str) -> Any:
    """A column that traces may have, as whole numbers except for seconds; None: it is not there."""
    if name not in frame.columns:
        return None
    values = _numbers(path, frame[name])
    filled = np.where(np.isnan(values), _NEVER[name], values)
    whole = name != "cancel_seconds"
    wrong = filled != np.floor(filled) if whole else filled < 0.0
    _refuse(path, frame, wrong, f"{name} must be {'a whole number' if whole else 'at least 0'}")
    return filled.astype(np.int64) if whole else filled


def _hashes(path: Path, frame: pl.DataFrame, prompt: FloatArray, hash_tokens: int) -> BlockHashes:
    import polars as pl  # noqa: PLC0415

    column = frame[_HASHES]
    if column.dtype == pl.List(pl.Null):
        column = column.cast(pl.List(pl.Int64))
    kinds = "lists of whole numbers"
    if column.dtype not in (pl.List(pl.Int64), pl.List(pl.UInt64)):
        fault = _first_fault(path, _HASHES, kinds)
        raise ScenarioError(fault or f"{path}: the column {_HASHES} must hold {kinds}, which only JSON lines can")
    blocks = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    listed = np.ceil(prompt / hash_tokens)
    _refuse(
        path,
        frame,
        blocks > listed,
        f"{_HASHES} has more blocks than the prompt has of {hash_tokens} tokens; give their size as hash_tokens",
    )
    ids = column.filter(pl.Series(blocks > 0)).explode()
    if ids.null_count():
        raise ScenarioError(_first_fault(path, _HASHES, kinds))
    first = np.concatenate([[0], np.cumsum(blocks)])
    return BlockHashes(ids=ids.to_numpy().astype(np.int64), first=first, block_tokens=hash_tokens)


# --- errors ---


def _refuse(path: Path, frame: pl.DataFrame, wrong: BoolArray, message: str) -> None:
    """Raise for the first row that is wrong."""
    if wrong.any():
        row = int(frame[_ROW][int(np.argmax(wrong))])
        raise ScenarioError(f"{path}: line {_line(path, row)}: {message}")


def _line(path: Path, row: int) -> int:
    """The line of a row: blank lines have none, and a CSV file has a header."""
    lines = [number for number, line in enumerate(read_text(path, ScenarioError).splitlines(), 1) if line.strip()]
    return lines[row if path.suffix in (".jsonl", ".json") else row + 1]


def _read_lines(path: Path) -> pl.DataFrame:
    try:
        return read_json_lines(path, ScenarioError)
    except ScenarioError as error:
        for name in (*_ARRIVAL, *_PROMPT, *_OUTPUT, *_NEVER, _HASHES):
            kinds = "lists of whole numbers" if name == _HASHES else "numbers"
            fault = _first_fault(path, name, "numbers or dates" if name in _ARRIVAL else kinds)
            if fault:
                raise ScenarioError(fault) from None
        raise error from None


def _first_fault(path: Path, name: str, kinds: str) -> str:
    """The first line of JSON whose field is not of a kind; "": there is none, or it is not JSON."""
    if path.suffix not in (".jsonl", ".json"):
        return ""
    for number, line in enumerate(read_text(path, ScenarioError).splitlines(), start=1):
        try:
            value = json.loads(line).get(name) if line.strip() else None
        except (ValueError, AttributeError, RecursionError):
            return ""
        if value is not None and not _is_of(value, kinds):
            return f"{path}: line {number}: {name} must hold {kinds}, got {json.dumps(value)[:40]}"
    return ""


def _first_word(path: Path, column: pl.Series, kinds: str) -> str:
    """The first line of a CSV file whose value is text."""
    import polars as pl  # noqa: PLC0415

    if column.dtype != pl.String:
        return f"{path}: the column {column.name} must hold {kinds}"
    words = column.filter(column.cast(pl.Float64, strict=False).is_null())
    word = next((word for word in words if word is not None and not ("dates" in kinds and _is_date(word))), None)
    if word is None:
        return f"{path}: the column {column.name} must hold {kinds} of one form"
    row = int(np.argmax((column == word).fill_null(False).to_numpy()))
    return f"{path}: line {_line(path, row)}: {column.name} must hold {kinds}, got {word!r}"


def _is_date(word: str) -> bool:
    try:
        datetime.fromisoformat(word)
    except ValueError:
        return False
    return True


def _is_of(value: Any, kinds: str) -> bool:
    if kinds == "lists of whole numbers":
        return isinstance(value, list) and all(type(part) is int for part in value)
    return (isinstance(value, int | float) and not isinstance(value, bool)) or ("date" in kinds and type(value) is str)
