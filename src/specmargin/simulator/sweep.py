"""Sweeps: many runs, serial or parallel. Finished cells are stored on disk and not run again.

A cell's key is a digest of its full description. One process appends results to a JSON Lines file, one write per cell;
a line truncated by a crash is dropped. When all cells are done, the file is sorted into the grid's order, so that it
does not depend on the runner.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from specmargin.compiler import HAS_NUMBA
from specmargin.errors import InputError, ScenarioError

SCHEMA = "specmargin.sweep-cell/2"
Description = dict[str, Any]
RunCell = Callable[[Description, str], dict[str, Any]]
_AHEAD = 3  # queued cells per worker, so that none is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    key: str
    description: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCounts:
    cells: int
    ran: int  # in this call
    failed: int  # of all cells: those that ended in an error


def make_cells(descriptions: Sequence[Description], folder: Path) -> list[Cell]:
    """Cells of a grid, without duplicates."""
    digests: dict[str, str] = {}
    cells = {}
    for description in descriptions:
        files = {name: _digest(folder / name, digests) for name in _file_names(description)}
        text = json.dumps({"schema": SCHEMA, "cell": description, "files": files}, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        cells[key] = Cell(key=key, description=description)
    return list(cells.values())


def _file_names(description: Description) -> list[str]:
    """Whatever may name a file: model, GPU, prices, routing, acceptance (`FILE:CATEGORY`), bank and trace."""
    names = [*description.values(), *(category.get("acceptance") for category in description.get("categories", ()))]
    texts = [name.partition(":")[0] for name in names if isinstance(name, str)]
    return [text for text in texts if "/" in text or "." in text]


def _digest(path: Path, digests: dict[str, str]) -> str:
    """Digest of a file, or of the Parquet and JSON files of a folder; empty if there are none."""
    if str(path) not in digests:
        inside = (file for file in path.rglob("*") if file.suffix in (".parquet", ".json")) if path.is_dir() else ()
        files = [path] if path.is_file() else sorted(inside)
        text = b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)
        digests[str(path)] = hashlib.sha256(text).hexdigest()[:16] if files else ""
    return digests[str(path)]


# --- results on disk ---


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open for appending, with an exclusive lock."""
    import fcntl  # noqa: PLC0415 (not on Windows; nothing else of Specmargin needs it)

    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InputError(f"{path}: another sweep is writing to it") from None
    try:
        yield handle
    finally:
        os.close(handle)


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Finished cells by key; truncated lines are skipped."""
    if not path.exists():
        return {}
    rows = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            continue  # truncated when a sweep was killed
        if row is None:
            continue
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            raise ScenarioError(f"{path}: line {number} is not a sweep result; choose another file for the results")
        rows[row["key"]] = row
    return rows


def _is_outdated(row: dict[str, Any]) -> bool:
    """Whether it was shortened for want of Numba, which is here now."""
    return HAS_NUMBA and row.get("result", {}).get("shortened") is not None


def _row(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "key": cell.key, "cell": cell.description, **result}


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True, allow_nan=False).encode() + b"\n"


def _drop_truncated_line(handle: int) -> None:
    size = os.fstat(handle).st_size
    text = os.pread(handle, size, 0)
    whole = text.rfind(b"\n") + 1
    if whole < size:
        os.ftruncate(handle, whole)


def _sort_results(path: Path, cells: Sequence[Cell], rows: dict[str, dict[str, Any]]) -> None:
    """Write all cells in the grid's order, then the cells of earlier grids. The file is replaced atomically."""
    grid_keys = {cell.key for cell in cells}
    keys = [cell.key for cell in cells] + sorted(set(rows) - grid_keys)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(b"".join(_line(rows[key]) for key in keys))
    temporary.replace(path)


# --- running ---


class Runner(Protocol):
    """Runs cells and yields each with its result as it finishes."""

    def __call__(self, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]: ...


def sweep(
    cells: Sequence[Cell], path: Path, runner: Runner, folder: Path, advance: Callable[[int], None] = lambda _: None
) -> SweepCounts:
    """Run the cells missing from `path`. `advance` counts every finished cell, including those of earlier calls."""
    with _locked(path) as handle:
        _drop_truncated_line(handle)
        rows = read_results(path)
        missing = [cell for cell in cells if cell.key not in rows or _is_outdated(rows[cell.key])]
        advance(len(cells) - len(missing))
        ran = 0
        for cell, result in runner(missing, str(folder)):
            rows[cell.key] = _row(cell, result)
            os.write(handle, _line(rows[cell.key]))
            ran += 1
            advance(1)
        _sort_results(path, cells, rows)
    failed = sum("error" in rows[cell.key] for cell in cells)
    return SweepCounts(cells=len(cells), ran=ran, failed=failed)


def run_or_report(run: RunCell, description: Description, folder: str) -> dict[str, Any]:
    """Run one cell. An input error (a model that does not fit) becomes its result, and the sweep continues."""
    try:
        return {"result": run(description, folder)}
    except InputError as error:
        return {"error": str(error)}


def _as_finished(
    submit: Callable[[Description], Future[dict[str, Any]]], cells: Sequence[Cell], workers: int
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    queue = iter(cells)
    running: dict[Future[dict[str, Any]], Cell] = {}
    while True:
        for cell in islice(queue, _AHEAD * workers - len(running)):
            running[submit(cell.description)] = cell
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRunner:
    """Processes on this machine, spawned: a fork of a process with threads may hang."""

    run: RunCell
    workers: int

    def __call__(self, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
        if self.workers == 1 or len(cells) <= 1:
            for cell in cells:
                yield cell, run_or_report(self.run, cell.description, folder)
            return
        context = multiprocessing.get_context("spawn")
        workers = min(self.workers, len(cells))
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            try:
                yield from _as_finished(lambda cell: pool.submit(run_or_report, self.run, cell, folder), cells, workers)
            except BrokenProcessPool:
                raise InputError(
                    "a worker process died (out of memory?); finished cells are kept: run again with fewer --workers"
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRunner:
    """A Ray cluster: `auto`, `local`, or an address. Specmargin must be installed on its machines."""

    run: RunCell
    address: str
    workers: int | None = None  # CPUs of a local cluster; all CPUs of other clusters

    def __call__(self, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
        if not cells:
            return
        import ray  # noqa: PLC0415 (an extra)

        started = not ray.is_initialized()
        if started:
            self._start(ray)
        try:
            yield from self._run_on(ray, cells, folder)
        finally:
            if started:
                ray.shutdown()

    def _start(self, ray: Any) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        try:
            if self.address == "local":
                ray.init(num_cpus=self.workers, **quiet)
            else:
                ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray raises many kinds where it finds no cluster
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"no Ray cluster at {self.address!r} ({reason}); start one, or use --ray local") from None

    def _run_on(self, ray: Any, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
        remote, run = ray.remote(num_cpus=1)(run_or_report), ray.put(self.run)
        workers = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        return _as_finished(lambda cell: remote.remote(run, cell, folder).future(), cells, workers)
