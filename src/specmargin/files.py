"""User files: one-line errors for unusable ones, and no overwriting without --force."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specmargin.errors import InputError

if TYPE_CHECKING:
    import polars as pl


def check_new(path: Path, *, force: bool) -> None:
    """Refuse to overwrite a file without --force. Called before any work is done."""
    if path.exists() and not force:
        raise InputError(f"{path} exists; give --force to overwrite it")


def write_text(path: Path, text: str, *, force: bool) -> None:
    try:
        check_new(path, force=force)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def scan_parquet(path: Path, columns: Sequence[str], fault: type[InputError]) -> pl.LazyFrame:
    """A lazy table that has these columns; `fault` is raised if the file is not one."""
    import polars as pl  # noqa: PLC0415 (an extra)

    try:
        frame = pl.scan_parquet(path)
        present = frame.collect_schema().names()
    except Exception as error:  # Polars raises many types for a truncated file or one that is not Parquet
        raise fault(f"{path}: not a readable Parquet file ({type(error).__name__})") from None
    missing = [name for name in columns if name not in present]
    if missing:
        raise fault(f"{path}: lacks the column {missing[0]!r}")
    return frame
