"""The build: which cells, what is finished already, and one process per core for the rest."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any

from specmargin._version import __version__
from specmargin.catalog.drafters import default_kind
from specmargin.catalog.lookup import device_names, find_device, model_names, named_model
from specmargin.errors import CatalogError, InputError, nearest_names
from specmargin.files import write_bytes
from specmargin.formats import ENGINES, find_engine
from specmargin.prices.kernels import store
from specmargin.show.explorer.fewest import enough_gpus
from specmargin.show.explorer.front import front_cell
from specmargin.show.site.grids import DEPTH, FORMAT, Cell, cell_files
from specmargin.verbs.plan.request_schema import PlanRequest

DRAFTERS = ("mtp", "eagle", "dflash", "ngram")  # those whose settings the page can write
FINISHED = Path("data") / "cells.jsonl"
Wanted = tuple[str, str, str, tuple[str, ...]]  # model, GPU, engine and drafters


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the site covers."""

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    engines: tuple[str, ...]
    drafters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BuiltCell:
    """One finished cell: its header, which is written last, or why there is none."""

    key: str
    model: str
    gpu: str
    engine: str
    gpus: int = 0
    path: str | None = None
    refused: str | None = None
    front: dict[str, Any] = field(default_factory=dict)  # its part of the front table, by drafter

    @property
    def place(self) -> str:
        return self.gpu if self.gpus == 1 else f"{self.gpus} × {self.gpu}"


def select(models: str, gpus: str, engines: str, drafters: str) -> Selection:
    """From comma-separated names, or `all`."""
    return Selection(
        models=_named("--models", models, model_names()),
        gpus=tuple(dict.fromkeys(find_device(name).name for name in _listed("--gpus", gpus, device_names()))),
        engines=tuple(dict.fromkeys(find_engine(name).name for name in _listed("--engines", engines, tuple(ENGINES)))),
        drafters=_named("--drafters", drafters, ("own", *DRAFTERS)),
    )


def _listed(option: str, text: str, names: Sequence[str]) -> tuple[str, ...]:
    if text.strip().lower() == "all":
        return tuple(names)
    found = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not found:
        raise InputError(f"{option} is empty; give names, or all")
    return found


def _named(option: str, text: str, names: Sequence[str]) -> tuple[str, ...]:
    found = _listed(option, text, names)
    for name in found:
        if name not in names:
            raise CatalogError(f"{option}: {name!r} is not bundled{nearest_names(name, names)}; names or all")
    return tuple(dict.fromkeys(found))


def drafters_of(model: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """In the wanted order; `mtp` only for a model that has a head."""
    target = named_model(model)
    own = default_kind(target)
    names = dict.fromkeys(own if name == "own" else name for name in wanted)
    return tuple(name for name in names if name != "mtp" or target.draft_head is not None) or (own,)


def key_of(model: str, gpu: str, engine: str, drafters: Sequence[str]) -> str:
    """Changes with anything that changes the cell's file: the release, the form of files, prices and the inputs."""
    inputs = [__version__, FORMAT, store.available(), model, gpu, engine, list(drafters)]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]


def build_cell(wanted: Wanted, folder: Path) -> BuiltCell:
    """Write the files of one cell. A scenario that cannot be priced is an outcome, not an error."""
    model, gpu, engine, drafters = wanted
    key, name = key_of(*wanted), f"data/{model}/{gpu}-{engine}"
    (folder / name).mkdir(parents=True, exist_ok=True)
    try:
        gpus = enough_gpus(model, gpu, drafters[0])
        for ending, content in cell_files(Cell(model=model, gpu=gpu, gpus=gpus, engine=engine, drafters=drafters)):
            write_bytes(folder / f"{name}{ending}", content)
    except InputError as error:
        rmtree(folder / name)
        return BuiltCell(key=key, model=model, gpu=gpu, engine=engine, refused=str(error))
    asked = (
        PlanRequest(model=model, gpu=gpu, gpus=gpus, engine=engine, drafter=drafter, depth=DEPTH)
        for drafter in drafters
    )
    front = {request.drafter or "": front_cell(request).values() for request in asked}
    return BuiltCell(key=key, model=model, gpu=gpu, engine=engine, gpus=gpus, path=f"{name}.json", front=front)


def finished(folder: Path) -> dict[str, BuiltCell]:
    """Cells of an earlier build, by key; a line that was cut off is built again, and so is a cell without its file."""
    found: dict[str, BuiltCell] = {}
    if not (folder / FINISHED).is_file():
        return found
    for line in (folder / FINISHED).read_text(encoding="utf-8").splitlines():
        try:
            outcome = BuiltCell(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if outcome.path is None or (folder / outcome.path).is_file():
            found[outcome.key] = outcome
    return found


def build_cells(
    selection: Selection, folder: Path, jobs: int, advance: Callable[[int], None] = lambda _: None
) -> tuple[list[BuiltCell], int]:
    """All cells, and how many of them were built now. Each is recorded as soon as it is written."""
    wanted: list[Wanted] = [
        (model, gpu, engine, drafters_of(model, selection.drafters))
        for model in selection.models
        for gpu in selection.gpus
        for engine in selection.engines
    ]
    known = finished(folder)
    missing = [cell for cell in wanted if key_of(*cell) not in known]
    advance(len(wanted) - len(missing))
    (folder / FINISHED).parent.mkdir(parents=True, exist_ok=True)
    with (folder / FINISHED).open("a", encoding="utf-8") as record:
        for outcome in _built(missing, folder, jobs):
            known[outcome.key] = outcome
            record.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
            record.flush()
            advance(1)
    return [known[key_of(*cell)] for cell in wanted], len(missing)


def _built(cells: Sequence[Wanted], folder: Path, jobs: int) -> Iterable[BuiltCell]:
    if jobs == 1 or len(cells) < 2:
        yield from (build_cell(cell, folder) for cell in cells)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(min(jobs, len(cells)), mp_context=context, initializer=_end_with_the_build) as pool:
        try:
            for future in as_completed([pool.submit(build_cell, cell, folder) for cell in cells]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # an interrupted build does not go on behind the reader
            raise


def _end_with_the_build() -> None:
    """In a worker: a build that is killed cannot stop its workers, so each watches for its end."""
    build = multiprocessing.parent_process()
    assert build is not None

    def watch() -> None:
        build.join()
        os._exit(1)  # a cell that is not recorded yet will be built again

    Thread(target=watch, daemon=True).start()
