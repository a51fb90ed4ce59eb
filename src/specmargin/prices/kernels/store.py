"""The public kernel measurements: `aiconfigurator-core`'s Parquet tables, newest version first.

The tables have latencies in milliseconds; they are read as seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from specmargin.errors import TableError

if TYPE_CHECKING:
    import polars as pl

# Specmargin's device names, and aiconfigurator's names of the same systems.
SYSTEMS = {
    "a100": "a100_sxm",
    "h100": "h100_sxm",
    "h100-pcie": "h100_pcie",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "rtx-pro-6000": "rtx_pro_6000_server",
    "arc-pro-b60": "b60",
}
ENGINES = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One file: its rows, and which engine version it was measured with."""

    system: str
    engine: str
    version: str
    rows: pl.DataFrame

    @property
    def origin(self) -> str:
        return f"{self.engine} {self.version} on {self.system}"


def available() -> bool:
    return find_spec("aiconfigurator_core") is not None and find_spec("polars") is not None


def data_folder() -> Path:
    if not available():
        raise TableError("the kernel tables are not installed; run: pip install 'specmargin[tables]'")
    return Path(str(files("aiconfigurator_core"))) / "systems" / "data"


def release() -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return f"aiconfigurator-core {version('aiconfigurator-core')}"


def versions(system: str, operation: str, engine: str, file: str) -> list[Path]:
    """Files of one operation, newest engine version first."""
    paths = (data_folder() / system / operation / engine).glob(f"*/{file}.parquet")
    return sorted(paths, key=lambda path: _version_key(path.parent.name), reverse=True)


def load(system: str, operation: str, engine: str, file: str) -> Table | None:
    """The newest table, or None where nothing was measured."""
    for path in versions(system, operation, engine, file):
        return table(path)
    return None


def table(path: Path) -> Table:
    system, _, engine, version = path.parts[-5:-1]
    return Table(system=system, engine=engine, version=version, rows=read(path))


@cache
def read(path: Path, *, latency: str | None = "latency") -> pl.DataFrame:
    """`latency`: the column of milliseconds; None for a table whose times are read by the caller."""
    import polars as pl  # noqa: PLC0415 (imported only where tables are used)

    try:
        rows = pl.read_parquet(path)
    except Exception as error:  # Polars raises many kinds for a file that is cut short or not Parquet
        raise TableError(
            f"{path}: not a readable Parquet file ({type(error).__name__}); reinstall specmargin[tables]"
        ) from None
    if latency is None:
        return rows
    if latency not in rows.columns:
        raise TableError(f"{path}: has no {latency!r} column; this release of aiconfigurator-core is not understood")
    return rows.with_columns(seconds=pl.col(latency) * 1e-3).filter(pl.col("seconds") > 0)


def _version_key(version: str) -> tuple[int, ...]:
    """1.3.0rc20 < 1.3.0rc23 < 1.3.0; 0.5.6 < 0.5.6.post2."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    is_final = 0 if re.search(r"rc|dev", version) else 1
    head, tail = numbers[:3], numbers[3:]
    return (*(head + [0] * (3 - len(head))), is_final, *tail)
