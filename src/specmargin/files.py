"""User files, read and written. Every failure is one sentence that names the file and the fix."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specmargin.errors import InputError, needs_extra

if TYPE_CHECKING:
    import polars as pl

    from specmargin.step import FloatArray

TABLE_ENDINGS = (".csv", ".parquet")
_OTHER_ENDINGS = frozenset(
    f".{name}" for name in ("xlsx", "xls", "ods", "tsv", "feather", "arrow", "db", "pdf", "docx", "html", "png", "svg")
)
STANDARD_INPUT = ("-", "/dev/stdin")
_LARGEST_STREAM_BYTES = 1 << 26  # of standard input or a pipe, which may never end
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_REASONS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file (a part of its path is a file, not a folder)",
    errno.EISDIR: "it is a folder; give a file",
    errno.ELOOP: "it is a symbolic link that leads back to itself; give the file itself",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.ENAMETOOLONG: "the name is too long for a file",
}


# --- reading ---


def existing(spec: str) -> Path | None:
    """The path, if a file, a folder, a link or `-` (standard input) is there; None for what cannot be a path."""
    try:
        path = Path(spec).expanduser()
        return path if spec in STANDARD_INPUT or os.path.lexists(path) else None
    except (OSError, RuntimeError, ValueError):
        return None


def split_detail(spec: str) -> tuple[str, str]:
    """`NAME[:DETAIL]` or `PATH[:DETAIL]`; an existing path is taken whole, colons included."""
    if ":" not in spec or os.path.lexists(spec):
        return spec, ""
    name, _, detail = spec.rpartition(":")
    return name, detail


def origin(path: Path) -> str:
    """The name of a file in messages."""
    return "standard input" if str(path) in STANDARD_INPUT else str(path)


def read_text(path: Path, fault: type[InputError]) -> str:
    """Text in UTF-8, with or without a byte order mark. `-` is standard input; a pipe may be read more than once."""
    try:
        content = _content(path)
    except OSError as error:
        raise fault(f"{origin(path)}: cannot be read ({_reason(path, error)})") from None
    except ValueError as error:  # a zero byte in the name
        raise fault(f"{origin(path)}: not a file name ({error})") from None
    if content.startswith(_UTF16):
        raise fault(f"{origin(path)}: is text in UTF-16; save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fault(f"{origin(path)}: not a text file in UTF-8 (at byte {error.start:,})") from None
    if not text.strip():
        raise fault(f"{origin(path)}: is empty")
    return text


def read_json(path: Path, fault: type[InputError]) -> Any:
    text = read_text(path, fault)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise fault(f"{origin(path)}: not valid JSON ({error.msg.lower()}, {where})") from None
    except (ValueError, RecursionError) as error:
        what = "brackets are nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        raise fault(f"{origin(path)}: not usable JSON ({what})") from None


def read_toml(path: Path, fault: type[InputError]) -> dict[str, Any]:
    text = read_text(path, fault)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise fault(f"{origin(path)}: not valid TOML ({str(error).rstrip('.')})") from None


def _content(path: Path) -> bytes:
    if str(path) in STANDARD_INPUT:
        return _stream("-")
    return path.read_bytes() if path.is_file() or path.is_dir() or not path.exists() else _stream(str(path))


@cache
def _stream(name: str) -> bytes:
    """What a pipe or a device gives, kept: it can be read only once."""
    if name == "-" and (sys.stdin is None or sys.stdin.isatty()):
        raise OSError(errno.ENODATA, "nothing is piped into it; use `< FILE`")
    if name == "-":
        content = sys.stdin.buffer.read(_LARGEST_STREAM_BYTES + 1)
    else:
        with Path(name).open("rb") as file:
            content = file.read(_LARGEST_STREAM_BYTES + 1)
    if len(content) > _LARGEST_STREAM_BYTES:
        raise OSError(errno.EFBIG, f"more than {_LARGEST_STREAM_BYTES >> 20} MB; give a file")
    return content


def _reason(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT and path.is_symlink():
        return f"it is a symbolic link to {path.readlink()}, which does not exist"
    return _REASONS.get(error.errno or 0, (error.strerror or str(error)))


# --- tables ---


def scan_parquet(path: Path, columns: Sequence[str], fault: type[InputError]) -> pl.LazyFrame:
    """A lazy table that has these columns; `fault` is raised if the file is not one."""
    check_readable(path, fault)
    with needs_extra():
        import polars as pl  # noqa: PLC0415 (an extra)

    try:
        frame = pl.scan_parquet(path)
        present = frame.collect_schema().names()
    except Exception:  # Polars raises many types for a truncated file or one that is not Parquet
        raise fault(f"{path}: not a complete Parquet file; write it again") from None
    missing = [name for name in columns if name not in present]
    if missing:
        raise fault(f"{path}: lacks the column {missing[0]!r}")
    return frame


Columns = dict[str, list[Any]]  # by name; None where a row has no value


def read_csv(path: Path, fault: type[InputError]) -> Columns:
    """A CSV file with a header. Values are text; an empty one is None."""
    lines = csv.reader(io.StringIO(read_text(path, fault), newline=""))
    try:
        header, rows = next(lines), []
        for row in lines:
            if row and len(row) != len(header):
                why = f"line {lines.line_num} has not the {len(header)} fields of the header"
                raise fault(f"{origin(path)}: not valid CSV ({why})")
            rows.append(row)
    except csv.Error as error:
        raise fault(f"{origin(path)}: not valid CSV ({error})") from None
    filled = [row for row in rows if row]
    return {name: [row[i] or None for row in filled] for i, name in enumerate(header)}


def read_json_lines(path: Path, fault: type[InputError]) -> Columns:
    """JSON Lines: one object per line."""
    rows = []
    for number, line in enumerate(read_text(path, fault).splitlines(), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            row = ()
        if row is not None and not isinstance(row, dict):
            raise fault(f"{origin(path)}: line {number} is not a JSON object; write one per line")
        rows += [] if row is None else [row]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def as_numbers(values: Sequence[Any]) -> FloatArray:
    """NaN where there is none. Raises ValueError or TypeError for what is not a number."""
    import numpy as np  # noqa: PLC0415 (help pages do without)

    return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)


def check_readable(path: Path, fault: type[InputError]) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise fault(f"{path}: cannot be read ({_reason(path, error)})") from None


# --- writing ---


def check_new(path: Path, *, force: bool) -> None:
    """Whether a file can be written there: refused before any work is done, and never overwritten without --force."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; give the name of a file in it, such as {path / 'FILE'}")
        if not path.parent.is_dir():
            raise InputError(f"{path}: cannot be written (the folder {path.parent} does not exist; create it first)")
        if path.exists() and not force:
            raise InputError(f"{path} exists; give --force to overwrite it")
        probe = path if path.exists() else path.parent
        if not os.access(probe, os.W_OK):
            raise InputError(f"{path}: cannot be written (permission denied)")
        path.lstat()  # raises for a name that no file can have
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be written ({_written(path, error)})") from None


def write_text(path: Path, text: str, *, force: bool) -> None:
    check_new(path, force=force)
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """To a file that `check_new` has approved."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({_written(path, error)})") from None


def _written(path: Path, error: Exception) -> str:
    return _reason(path, error) if isinstance(error, OSError) else str(error)


def is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLE_ENDINGS


def check_text(path: Path, *, force: bool) -> None:
    """A file of flags or settings may have any name but those of formats that are not written."""
    if path.suffix.lower() in _OTHER_ENDINGS:
        raise InputError(
            f"{path}: {path.suffix} files are not written; a table is FILE{' or FILE'.join(TABLE_ENDINGS)}, a chart is "
            "--plot FILE.png, .svg, .html or .json, and any other name holds the engine's flags"
        )
    check_new(path, force=force)


def check_table(path: Path, *, force: bool) -> None:
    """Check before any work is done: a supported suffix, and a file that can be written."""
    if not is_table(path):
        raise InputError(f"{path}: the name of a table must end in {' or '.join(TABLE_ENDINGS)}")
    check_new(path, force=force)
    if path.suffix.lower() == ".parquet":
        with needs_extra():
            import polars  # noqa: F401, PLC0415 (an extra)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], *, force: bool) -> None:
    """CSV or Parquet; values that are lists or tables of their own are left out."""
    check_new(path, force=force)
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, [{name: row.get(name) for name in _plain_columns(rows)} for row in rows])
        return
    write_bytes(path, csv_text(rows).encode())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Values that are lists or tables of their own are left out."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _plain_columns(rows), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plain_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if not any(isinstance(row.get(name), list | dict | tuple) for row in rows)]


def write_columns(path: Path, columns: Mapping[str, Any], *, force: bool) -> None:
    """Columns of equal length, lists or arrays, as CSV or Parquet."""
    check_new(path, force=force)
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, dict(columns))
        return
    import numpy as np  # noqa: PLC0415 (as above)

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True))
    write_bytes(path, text.getvalue().encode())


def _write_parquet(path: Path, table: Any) -> None:
    """Whatever Polars makes a table of."""
    with needs_extra():
        import polars as pl  # noqa: PLC0415 (an extra)

    content = io.BytesIO()
    pl.DataFrame(table, infer_schema_length=None).write_parquet(content)
    write_bytes(path, content.getvalue())
