"""Many runs, one after another or side by side: what is finished is on disk, and is never run again.

Every cell is known by a digest of its full description. Results are appended to a file of JSON lines, one write a cell,
by one process; a line that a crash cut short is dropped. When all cells are there the file is put in the grid's order,
so that it is the same whoever ran them.
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

from specmargin.errors import InputError, ScenarioError, needs_extra

SCHEMA = "specmargin.sweep-cell/1"
Described = dict[str, Any]
RunCell = Callable[[Described, str], dict[str, Any]]
_AHEAD = 3  # cells a worker has waiting, so that none is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    key: str
    described: Described


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    cells: int
    ran: int  # in this call
    failed: int  # of all: cells whose description cannot be run


def make_cells(descriptions: Sequence[Described], folder: Path) -> list[Cell]:
    """A cell stands once, however often the grid names it."""
    digests: dict[str, str] = {}
    cells = {}
    for described in descriptions:
        files = {name: _digest(folder / name, digests) for name in _files_of(described)}
        text = json.dumps({"schema": SCHEMA, "cell": described, "files": files}, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        cells[key] = Cell(key=key, described=described)
    return list(cells.values())


def _files_of(described: Described) -> list[str]:
    found = [described.get("bank"), described["workload"].get("trace"), described["scenario"].get("acceptance")]
    found += [kind.get("acceptance") for kind in described["workload"].get("categories", ())]
    return [name for name in found if isinstance(name, str) and ("/" in name or "." in name)]


def _digest(path: Path, known: dict[str, str]) -> str:
    """Of a file or of the files of a folder; nothing where the name is not one."""
    if str(path) not in known:
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
        text = b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)
        known[str(path)] = hashlib.sha256(text).hexdigest()[:16] if files else ""
    return known[str(path)]


# --- what is on disk ---


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open for appending, by one sweep at a time."""
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
    """Finished cells by key; a line that was cut short is not one."""
    if not path.exists():
        return {}
    found = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            continue  # the last line of a sweep that was killed
        if row is None:
            continue
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            raise ScenarioError(f"{path}: line {number} is not of a sweep; give another file for the results")
        found[row["key"]] = row
    return found


def _row(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "key": cell.key, "cell": cell.described, **result}


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True, allow_nan=False).encode() + b"\n"


def _drop_cut_line(handle: int) -> None:
    size = os.fstat(handle).st_size
    text = os.pread(handle, size, 0)
    whole = text.rfind(b"\n") + 1
    if whole < size:
        os.ftruncate(handle, whole)


def _in_order(path: Path, cells: Sequence[Cell], rows: dict[str, dict[str, Any]]) -> None:
    """All cells in the grid's order, and after them what earlier grids left; replaced in one go."""
    ours = {cell.key for cell in cells}
    keys = [cell.key for cell in cells] + sorted(set(rows) - ours)
    beside = path.with_name(path.name + ".tmp")
    beside.write_bytes(b"".join(_line(rows[key]) for key in keys))
    beside.replace(path)


# --- running ---


class Runner(Protocol):
    """Runs cells somewhere; yields each with its result as it is finished."""

    def __call__(self, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]: ...


def sweep(
    cells: Sequence[Cell], path: Path, runner: Runner, folder: Path, advance: Callable[[int], None] = lambda _: None
) -> Swept:
    """Run what is missing from `path`; `advance` hears of every finished cell, those of earlier calls included."""
    with _locked(path) as handle:
        _drop_cut_line(handle)
        rows = read_results(path)
        missing = [cell for cell in cells if cell.key not in rows]
        advance(len(cells) - len(missing))
        ran = 0
        for cell, result in runner(missing, str(folder)):
            rows[cell.key] = _row(cell, result)
            os.write(handle, _line(rows[cell.key]))
            ran += 1
            advance(1)
        _in_order(path, cells, rows)
    failed = sum("error" in rows[cell.key] for cell in cells)
    return Swept(cells=len(cells), ran=ran, failed=failed)


def answered(run: RunCell, described: Described, folder: str) -> dict[str, Any]:
    """A cell that cannot be run (a model that does not fit, say) says so in its result, and the sweep goes on."""
    try:
        return {"result": run(described, folder)}
    except InputError as error:
        return {"error": str(error)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRunner:
    """Processes on this machine. Fresh ones: forks of a process with threads may hang."""

    run: RunCell
    workers: int

    def __call__(self, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
        if self.workers == 1 or len(cells) <= 1:
            for only in cells:
                yield only, answered(self.run, only.described, folder)
            return
        context = multiprocessing.get_context("spawn")
        workers = min(self.workers, len(cells))
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            todo = iter(cells)
            waiting: dict[Future[dict[str, Any]], Cell] = {}
            try:
                while True:
                    for cell in islice(todo, _AHEAD * workers - len(waiting)):
                        waiting[pool.submit(answered, self.run, cell.described, folder)] = cell
                    if not waiting:
                        return
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        yield waiting.pop(future), future.result()
            except BrokenProcessPool:
                raise InputError(
                    "a worker died (out of memory?); finished cells are kept: run again, with fewer --workers"
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRunner:
    """A Ray cluster: `auto`, `local`, or an address. Specmargin must be installed on its machines."""

    run: RunCell
    address: str
    workers: int | None = None  # CPUs of a local cluster; of others all that there are

    def __call__(self, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
        if not cells:
            return
        with needs_extra("ray"):
            import ray  # noqa: PLC0415 (an extra)

        started = not ray.is_initialized()
        if started:
            self._start(ray)
        try:
            yield from self._through(ray, cells, folder)
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

    def _through(self, ray: Any, cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
        remote = ray.remote(num_cpus=1)(answered)
        run = ray.put(self.run)
        room = _AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        todo = iter(cells)
        waiting: dict[Any, Cell] = {}
        while True:
            for cell in islice(todo, room - len(waiting)):
                waiting[remote.remote(run, cell.described, folder)] = cell
            if not waiting:
                return
            done, _ = ray.wait(list(waiting), num_returns=1)
            for reference in done:
                yield waiting.pop(reference), ray.get(reference)
