"""Prompts through whole attention modules: prices against measured rows, also on models and GPUs left out of the fit.

python -m lab.validation.prompt_modules

Laws are fitted to the first model of a kind (deepseek-v3, -v3.2, -v4-flash); `scaled` are those of the nearest other
GPU. Rows that launches dominate, and prompts of fewer than 64 tokens, are left out, as in the fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from lab.tables.modules import measured_modules
from lab.tables.prompts import PromptRows, delta_net_prompts, prompt_shapes
from lab.terminal import console, note, run, table, tracked
from lab.validation.accuracy import Accuracy, median_and
from specmargin.catalog.lookup import bundled_device
from specmargin.catalog.prices import find_prices, law_book, scaled_prices
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.model import PriceModel
from specmargin.prices.work import module_work
from specmargin.step import FloatArray

SOURCES = ("laws", "scaled", "datasheet")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """Absolute errors of the priced time of all rows of one module of one engine on one GPU, by price source."""

    kind: str
    model: str
    gpu: str
    engine: str
    fitted: bool  # the law of this kind was fitted to this model's rows
    errors: dict[str, FloatArray]


def prompt_lines(gpus: Sequence[str] = tuple(store.SYSTEMS)) -> Iterator[PromptLine]:
    for gpu in gpus:
        device = bundled_device(gpu)
        engines = store.ENGINES if law_book(device) is not None else ()
        for engine in engines:
            yield from _lines(device, engine)


def _lines(device: Device, engine: str) -> Iterator[PromptLine]:
    system = store.SYSTEMS[device.name]
    seen: set[str] = set()
    for measured in measured_modules():
        kind = measured.table.kind
        parts = [part for part in prompt_shapes(system, engine, measured) if part.rows.height > 0]
        if parts:
            head = (kind, measured.table.model, device.name, engine)
            yield _line(head, parts, device, fitted=kind not in seen)
        seen.add(kind)
    if parts := list(delta_net_prompts(system, engine)):
        yield _line(("gdn", "all", device.name, engine), parts, device, fitted=True)


def _line(head: tuple[str, str, str, str], parts: list[PromptRows], device: Device, *, fitted: bool) -> PromptLine:
    kind, model, gpu, engine = head
    prices: dict[str, PriceModel | None] = {
        "laws": find_prices("laws", device, engine, RooflineForm.PER_COMPONENT),
        "scaled": scaled_prices(device, engine, without=(gpu,)),
        "datasheet": find_prices("datasheet", device, engine, RooflineForm.PER_COMPONENT),
    }
    errors = {
        source: np.concatenate([np.abs(priced_seconds(part, price) / part.seconds - 1.0) for part in parts])
        for source, price in prices.items()
        if price is not None
    }
    return PromptLine(kind=kind, model=model, gpu=gpu, engine=engine, fitted=fitted, errors=errors)


def priced_seconds(part: PromptRows, prices: PriceModel) -> FloatArray:
    """One layer's projections and attention at every row, as a step with prompts prices them."""
    works = module_work(part.shape.module, part.step, layout=Layout(gpus=part.shape.ranks), kv=part.shape.kv)
    inside = works if part.shape.module.projections else works[-1:]
    return np.asarray(sum((price.seconds for price in prices.price(inside)), start=np.zeros(part.seconds.size)))


# --- the report ---


def report(out: Console) -> list[Accuracy]:
    lines = [line for gpu in tracked("prompt modules", tuple(store.SYSTEMS)) for line in prompt_lines((gpu,))]
    shown = table(
        "Prompts through attention modules: absolute error, median (90th percentile)",
        ("module", "model", "gpu", "engine"),
        ("rows", *SOURCES),
    )
    for line in sorted(lines, key=lambda line: (line.kind, line.model, line.gpu, line.engine)):
        model = line.model + ("" if line.fitted else " *")
        rows = line.errors["laws"].size
        shown.add_row(line.kind, model, line.gpu, line.engine, f"{rows:,}", *_cells(line.errors))
    out.print(shown)
    note(out, "* a model that the law has not seen; scaled: laws of another GPU")
    out.print()
    return [_accuracy(lines, fitted) for fitted in (True, False)]


def _cells(errors: dict[str, FloatArray]) -> list[str]:
    return [median_and(*_median_p90(errors[source])) if source in errors else "" for source in SOURCES]


def _median_p90(errors: FloatArray) -> tuple[float, float]:
    return float(np.median(errors)), float(np.quantile(errors, 0.9))


def _accuracy(lines: Sequence[PromptLine], fitted: bool) -> Accuracy:
    chosen = [line for line in lines if line.fitted is fitted]
    errors = {
        source: np.concatenate([line.errors[source] for line in chosen if source in line.errors]) for source in SOURCES
    }
    whose = "models of the fit" if fitted else "other models"
    return Accuracy(
        what=f"attention modules reading prompts, {whose} (p90)",
        count=errors["laws"].size,
        errors={source: median_and(*_median_p90(errors[source])) for source in ("laws", "datasheet")},
    )


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
