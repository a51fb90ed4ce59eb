"""Traces of real services: arrival, prompt and output of every request, in several published column layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specmargin.errors import ScenarioError, needs_extra
from specmargin.files import read_csv, read_json_lines
from specmargin.simulator.workload import Trace
from specmargin.step import FloatArray

# Column names, first match wins: Specmargin, Azure LLM inference, BurstGPT, Mooncake, then common variants.
_ARRIVAL = ("arrival_seconds", "TIMESTAMP", "Timestamp", "timestamp", "arrival_time", "arrival", "time")
_PROMPT = ("prompt_tokens", "ContextTokens", "Request tokens", "input_length", "prompt_length", "num_prefill_tokens")
_OUTPUT = ("output_tokens", "GeneratedTokens", "Response tokens", "output_length", "num_decode_tokens")


def read_trace(path: Path) -> Trace:
    """Read CSV or JSON Lines. Times are seconds or dates (Mooncake's integer milliseconds must be converted first);
    failed requests (no output) are left out."""
    with needs_extra("simulate"):
        import polars  # noqa: F401, PLC0415 (an extra)

    if path.suffix in (".jsonl", ".json"):
        frame = read_json_lines(path, ScenarioError)
    else:
        frame = read_csv(path, ScenarioError, try_parse_dates=True)
    columns = [_column(path, frame.columns, names) for names in (_ARRIVAL, _PROMPT, _OUTPUT)]
    try:
        arrival, prompt, output = (_numbers(frame[name]) for name in columns)
    except Exception:  # Polars raises several types for values that are not numbers
        raise ScenarioError(
            f"{path}: the columns {', '.join(columns)} must hold numbers (or dates, for arrivals)"
        ) from None
    served = (prompt >= 1) & (output >= 1) & np.isfinite(arrival)
    return Trace(
        arrival_seconds=arrival[served] - (float(arrival[served].min()) if served.any() else 0.0),
        prompt_tokens=prompt[served].astype(np.int64),
        output_tokens=output[served].astype(np.int64),
        source=path.name,
    )


def _column(path: Path, columns: list[str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in columns:
            return name
    raise ScenarioError(f"{path}: missing column {names[0]!r} (or one of {', '.join(names[1:])})")


def _numbers(column: object) -> FloatArray:
    """Numbers as they are, dates as seconds."""
    import polars as pl  # noqa: PLC0415

    assert isinstance(column, pl.Series)
    if column.dtype == pl.String:
        column = column.str.to_datetime(strict=True)
    if column.dtype.is_temporal():
        return np.asarray(column.dt.epoch("us").to_numpy() / 1e6, dtype=np.float64)
    return np.asarray(column.cast(pl.Float64).to_numpy(), dtype=np.float64)
