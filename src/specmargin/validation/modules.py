"""Attention modules as the sum of their parts, against measured rows of the whole module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specmargin.catalog.lookup import bundled_device
from specmargin.catalog.modules import measured_modules
from specmargin.catalog.prices import find_prices, law_book
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.kernels.bounds import ModuleShape
from specmargin.prices.kernels.modules import ModuleRows, delta_net_shapes, measured_shapes
from specmargin.prices.model import PriceModel
from specmargin.prices.work import module_work
from specmargin.step import FloatArray, Step

SOURCES = ("tables", "laws")
TOLERANCE = 0.05  # above its row by more than this, a sum contradicts it


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLine:
    """Sum of parts over measured time, for all rows of one module of one engine on one GPU."""

    kind: str
    model: str
    gpu: str
    engine: str
    source: str  # of the prices
    fitted: bool  # the law of this kind was fitted to this model's rows
    launch_bound: bool  # the rows were timed outside a CUDA graph: they only bound the sum from above
    rows: int
    median_ratio: float
    worst_ratio: float
    above: float  # share of rows that the sum exceeds by more than the tolerance


def module_lines(gpus: tuple[str, ...] = tuple(store.SYSTEMS)) -> Iterator[ModuleLine]:
    for gpu in gpus:
        engines = store.ENGINES if law_book(bundled_device(gpu)) is not None else ()
        for engine in engines:
            for source in SOURCES:
                yield from _lines(gpu, engine, source)


def _lines(gpu: str, engine: str, source: str) -> Iterator[ModuleLine]:
    prices = find_prices(source, bundled_device(gpu), engine, RooflineForm.PER_COMPONENT)
    system = store.SYSTEMS[gpu]
    seen: set[str] = set()
    for measured in measured_modules():
        kind, shapes = measured.table.kind, list(measured_shapes(system, engine, measured))
        if shapes:
            head = (kind, measured.table.model, gpu, engine, source)
            yield _line(head, shapes, prices, fitted=kind not in seen)
        seen.add(kind)
    shapes = list(delta_net_shapes(system, engine, bandwidth=bundled_device(gpu).bandwidth_bytes_per_second))
    if shapes:
        yield _line(("gdn", "all", gpu, engine, source), shapes, prices, fitted=True)


def _line(
    head: tuple[str, str, str, str, str],
    shapes: list[tuple[ModuleShape, ModuleRows]],
    prices: PriceModel,
    *,
    fitted: bool,
) -> ModuleLine:
    ratio = np.concatenate([sum_of_parts(shape, rows, prices) / rows.seconds for shape, rows in shapes])
    kind, model, gpu, engine, source = head
    return ModuleLine(
        kind=kind,
        model=model,
        gpu=gpu,
        engine=engine,
        source=source,
        fitted=fitted,
        launch_bound=any(rows.launch_bound for _, rows in shapes),
        rows=ratio.size,
        median_ratio=float(np.median(ratio)),
        worst_ratio=float(ratio.max()),
        above=float(np.mean(ratio > 1.0 + TOLERANCE)),
    )


def sum_of_parts(shape: ModuleShape, rows: ModuleRows, prices: PriceModel) -> FloatArray:
    """Seconds of one layer's projections and attention at every row, priced as in a step."""
    batch, context = (rows.rows[name].to_numpy().astype(np.float64) for name in ("batch_size", "context"))
    step = Step.uniform(batch=batch, context=context)
    works = module_work(shape.module, step, layout=Layout(gpus=shape.ranks), kv=shape.kv)
    return np.asarray(sum((part.seconds for part in prices.price(works)), start=np.zeros(batch.size)))
