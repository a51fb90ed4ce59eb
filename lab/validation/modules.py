"""Attention modules as the sum of their parts, against measured rows of the whole module.

python -m lab.validation.modules
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from lab.tables.modules import ModuleRows, delta_net_shapes, measured_modules, measured_shapes
from lab.terminal import console, note, run, table, tracked
from lab.validation.accuracy import Accuracy
from specmargin.catalog.lookup import bundled_device
from specmargin.catalog.prices import find_prices, law_book
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.kernels.bounds import ModuleShape
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


# --- the report ---


def report(out: Console) -> list[Accuracy]:
    lines = [line for gpu in tracked("modules", tuple(store.SYSTEMS)) for line in module_lines((gpu,))]
    _show_lines(out, lines)
    above = {source: _above([line for line in lines if line.source == source]) for source in SOURCES}
    for source, share in above.items():
        note(out, f"{source}: {share:.1%} of all rows are exceeded by more than {TOLERANCE:.0%}")
    note(out, "* launches included in the rows: they only bound the sum from above")
    out.print()
    accuracy = Accuracy(
        what=f"attention modules: share of rows exceeded by {TOLERANCE:.0%}",
        count=sum(line.rows for line in lines if line.source == SOURCES[0]),
        errors={source: f"{share:.1%}" for source, share in above.items()},
    )
    return [accuracy]


def _above(lines: Sequence[ModuleLine]) -> float:
    return sum(line.above * line.rows for line in lines) / max(sum(line.rows for line in lines), 1)


def _show_lines(out: Console, lines: Sequence[ModuleLine]) -> None:
    shown = table(
        "Attention modules: sum of parts over measured time, median (worst)",
        ("module", "model", "gpu", "engine"),
        ("rows", *SOURCES),
    )
    for group in _by_module(lines):
        first = group[0]
        cells = [f"{line.median_ratio:.2f} ({line.worst_ratio:.2f})" for line in group]
        mark = " *" if first.launch_bound else ""
        shown.add_row(first.kind, first.model, first.gpu, first.engine + mark, f"{first.rows:,}", *cells)
    out.print(shown)


def _by_module(lines: Sequence[ModuleLine]) -> list[list[ModuleLine]]:
    groups: dict[tuple[str, str, str, str], list[ModuleLine]] = {}
    for line in lines:
        groups.setdefault((line.kind, line.model, line.gpu, line.engine), []).append(line)
    return [groups[key] for key in sorted(groups)]


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
