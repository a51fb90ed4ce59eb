"""Traces of real services: arrival, prompt and output of every request, in several published column layouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.errors import ScenarioError
from specmargin.files import Columns, as_numbers, read_csv, read_json_lines, read_text
from specmargin.simulator.workload import BlockHashes, Trace
from specmargin.step import BoolArray, FloatArray

HASH_TOKENS = 512  # per hash of Mooncake's traces
# Column names, first match wins: Specmargin, Azure LLM inference, BurstGPT, Mooncake, then common variants.
_ARRIVAL = ("arrival_seconds", "TIMESTAMP", "Timestamp", "timestamp", "arrival_time", "arrival", "time")
_PROMPT = ("prompt_tokens", "ContextTokens", "Request tokens", "input_length", "prompt_length", "num_prefill_tokens")
_OUTPUT = ("output_tokens", "GeneratedTokens", "Response tokens", "output_length", "num_decode_tokens")
_MOONCAKE = ["timestamp", "input_length", "output_length"]  # with times in milliseconds
_HASHES = "hash_ids"
_NEVER = {"priority": 0.0, "cancel_tokens": 0.0, "cancel_seconds": np.inf}  # optional columns; where they are empty


def read_trace(path: Path, *, hash_tokens: int = HASH_TOKENS) -> Trace:
    """Read CSV or JSON Lines; failed requests (no output) are left out. `hash_tokens`: per block hash.

    Times are seconds or dates, and milliseconds in Mooncake's columns.
    """
    is_json = path.suffix in (".jsonl", ".json")
    table = (read_json_lines if is_json else read_csv)(path, ScenarioError)
    names = [_column(path, list(table), known) for known in (_ARRIVAL, _PROMPT, _OUTPUT)]
    arrival, prompt, output = (_numbers(path, table, name, dates=name == names[0]) for name in names)
    if is_json:
        for name, values in zip(names, (arrival, prompt, output), strict=True):
            _refuse(path, np.isnan(values), f"{name} is missing")
    if names == _MOONCAKE and not any(map(_is_date, table["timestamp"])):
        arrival = _milliseconds(path, arrival)
    served = (prompt >= 1) & (output >= 1) & np.isfinite(arrival)
    hashes = _hashes(path, table, np.where(served, prompt, np.inf), hash_tokens) if _HASHES in table else None
    return Trace(
        arrival_seconds=arrival[served] - (float(arrival[served].min()) if served.any() else 0.0),
        prompt_tokens=prompt[served].astype(np.int64),
        output_tokens=output[served].astype(np.int64),
        source=path.name,
        hashes=None if hashes is None else _block_hashes(hashes, served, hash_tokens),
        **{name: _optional(path, table, name, served) for name in _NEVER},
    )


def _column(path: Path, columns: list[str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in columns:
            return name
    raise ScenarioError(f"{path}: missing column {names[0]!r} (or one of {', '.join(names[1:])})")


def _numbers(path: Path, table: Columns, name: str, *, dates: bool = False) -> FloatArray:
    """Numbers as they are, dates as seconds, NaN where there is none."""
    values = table[name]
    try:
        return as_numbers(values) if not _has_words(values) else _from_dates(values, dates=dates)
    except (TypeError, ValueError):
        kinds = "numbers or dates" if dates else "numbers"
        wrong = next((row for row, value in enumerate(values) if not _is_number(value, dates=dates)), None)
        if wrong is None:
            raise ScenarioError(f"{path}: the column {name} must hold {kinds} of one form") from None
        raise ScenarioError(_fault(path, name, wrong, kinds, values[wrong])) from None


def _has_words(values: Sequence[Any]) -> bool:
    """Whether there are dates, or what is not a number in JSON although Python would make one of it."""
    return any(isinstance(value, bool) or (isinstance(value, str) and not _is_float(value)) for value in values)


def _from_dates(values: Sequence[Any], *, dates: bool) -> FloatArray:
    if not dates:
        raise ValueError
    return as_numbers([None if value is None else _seconds(value) for value in values])


def _seconds(date: str) -> float:
    moment = datetime.fromisoformat(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _is_number(value: Any, *, dates: bool) -> bool:
    if isinstance(value, str):
        return _is_float(value) or (dates and _is_date(value))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return not _is_float(value)


def _milliseconds(path: Path, arrival: FloatArray) -> FloatArray:
    partial = (arrival != np.floor(arrival)) & np.isfinite(arrival)
    _refuse(
        path,
        partial,
        "timestamp is in milliseconds beside input_length, and has a fraction; name seconds arrival_seconds",
    )
    return arrival / 1e3


def _optional(path: Path, table: Columns, name: str, served: BoolArray) -> Any:
    """A column that traces may have, as whole numbers except for seconds; None: it is not there."""
    if name not in table:
        return None
    values = _numbers(path, table, name)
    filled = np.where(np.isnan(values), _NEVER[name], values)
    whole = name != "cancel_seconds"
    wrong = filled != np.floor(filled) if whole else filled < 0.0
    _refuse(path, wrong & served, f"{name} must be {'a whole number' if whole else 'at least 0'}")
    return filled[served].astype(np.int64) if whole else filled[served]


def _hashes(path: Path, table: Columns, prompt: FloatArray, hash_tokens: int) -> list[list[int]]:
    """By row: the ids of its blocks, of which a prompt has no more than its length."""
    kinds = "lists of whole numbers"
    for row, value in enumerate(table[_HASHES]):
        if isinstance(value, str) and path.suffix not in (".jsonl", ".json"):
            raise ScenarioError(f"{path}: the column {_HASHES} must hold {kinds}, which only JSON lines can")
        if value is not None and not (isinstance(value, list) and all(type(part) is int for part in value)):
            raise ScenarioError(_fault(path, _HASHES, row, kinds, value))
    listed = [value or [] for value in table[_HASHES]]
    _refuse(
        path,
        np.array([len(value) for value in listed]) > np.ceil(prompt / hash_tokens),
        f"{_HASHES} has more blocks than the prompt has of {hash_tokens} tokens; give their size as hash_tokens",
    )
    return listed


def _block_hashes(listed: list[list[int]], served: BoolArray, hash_tokens: int) -> BlockHashes:
    chosen = [listed[row] for row in np.flatnonzero(served)]
    first = np.concatenate([[0], np.cumsum([len(ids) for ids in chosen])]).astype(np.int64)
    ids = np.array([part for ids in chosen for part in ids], dtype=np.int64)
    return BlockHashes(ids=ids, first=first, block_tokens=hash_tokens)


# --- errors ---


def _refuse(path: Path, wrong: BoolArray, message: str) -> None:
    """Raise for the first row that is wrong."""
    if wrong.any():
        raise ScenarioError(f"{path}: line {_line(path, int(np.argmax(wrong)))}: {message}")


def _fault(path: Path, name: str, row: int, kinds: str, value: Any) -> str:
    shown = json.dumps(value)[:40] if path.suffix in (".jsonl", ".json") else repr(value)
    return f"{path}: line {_line(path, row)}: {name} must hold {kinds}, got {shown}"


def _line(path: Path, row: int) -> int:
    """The line of a row: blank lines have none, and a CSV file has a header."""
    lines = [number for number, line in enumerate(read_text(path, ScenarioError).splitlines(), 1) if line.strip()]
    return lines[row if path.suffix in (".jsonl", ".json") else row + 1]
