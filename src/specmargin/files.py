"""Files of users, read and written with care: one sentence where one is not what it should be, and none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specmargin.errors import InputError

if TYPE_CHECKING:
    import polars as pl


def check_new(path: Path, *, force: bool) -> None:
    """Never lose somebody's file: overwrite only when told to. Asked before any work is done."""
    if path.exists() and not force:
        raise InputError(f"{path} exists; give --force to overwrite it")


def write_text(path: Path, text: str, *, force: bool) -> None:
    try:
        check_new(path, force=force)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def scan_parquet(path: Path, columns: Sequence[str], fault: type[InputError]) -> pl.LazyFrame:
    """A table that has these columns, opened and not read; `fault` is raised where it is not one."""
    import polars as pl  # noqa: PLC0415 (an extra)

    try:
        frame = pl.scan_parquet(path)
        known = frame.collect_schema().names()
    except Exception as error:  # Polars raises many kinds for a file that is cut short or not Parquet
        raise fault(f"{path}: not a readable Parquet file ({type(error).__name__})") from None
    missing = [name for name in columns if name not in known]
    if missing:
        raise fault(f"{path}: lacks the column {missing[0]!r}")
    return frame
