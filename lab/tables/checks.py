"""What the checks of the measured tables drop, by table and kernel, and why.

python -m lab.tables.checks
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from lab.tables.modules import MODULES, slow_module
from lab.terminal import console, run, table
from specmargin.catalog.lookup import bundled_device
from specmargin.prices.kernels import features, store
from specmargin.prices.kernels.checks import Dropped, Peaks
from specmargin.prices.kernels.terms import BYTES

Entry = dict[str, Any]
COLUMNS = ("gpu", "engine", "version", "operation", "dtype", "kernel", "rows", "reason")


def dropped_tables(gpus: Sequence[str] = tuple(store.SYSTEMS)) -> Iterator[Entry]:
    """Of every table that prices read: experts of all releases (newest first by shape), the newest of the others."""
    for gpu in gpus:
        for engine in store.ENGINES:
            yield from _experts(gpu, engine)
            yield from _gemms(gpu, engine)
            yield from _modules(gpu, engine)


def _experts(gpu: str, engine: str) -> Iterator[Entry]:
    for path in store.versions(store.SYSTEMS[gpu], "moe", engine, "moe_perf"):
        measured = store.table(path)
        for dtype in BYTES:
            checked = features.expert_rows(measured, dtype, Peaks.of(bundled_device(gpu), dtype))
            for dropped in checked.dropped if checked is not None else ():
                yield _entry(gpu, measured, "experts", dtype, dropped)


def _gemms(gpu: str, engine: str) -> Iterator[Entry]:
    measured = store.load(store.SYSTEMS[gpu], "gemm", engine, "gemm_perf")
    for dtype in BYTES if measured is not None else ():
        assert measured is not None
        checked = features.gemm_rows(measured, dtype, Peaks.of(bundled_device(gpu), dtype))
        for dropped in checked.dropped if checked is not None else ():
            yield _entry(gpu, measured, "gemm", dtype, dropped)


def _modules(gpu: str, engine: str) -> Iterator[Entry]:
    for kind, operation, file in dict.fromkeys((module.kind, module.operation, module.file) for module in MODULES):
        measured = store.load(store.SYSTEMS[gpu], operation, engine, file)
        reason = "" if measured is None else slow_module(gpu, engine, operation, file)
        if measured is not None and reason:
            kernel = str(measured.rows["kernel_source"].mode().sort()[0])
            dropped = Dropped(kernel=kernel, rows=measured.rows.height, reason=reason)
            yield _entry(gpu, measured, kind, "", dropped)


def _entry(gpu: str, measured: store.Table, operation: str, dtype: str, dropped: Dropped) -> Entry:
    values = (gpu, measured.engine, measured.version, operation, dtype, dropped.kernel, dropped.rows, dropped.reason)
    return dict(zip(COLUMNS, values, strict=True))


def report(out: Console) -> None:
    shown = table("Rows of the tables that price nothing", COLUMNS[:6], COLUMNS[6:])
    for entry in dropped_tables():
        shown.add_row(*(str(entry[name]) for name in COLUMNS))
    out.print(shown)


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
