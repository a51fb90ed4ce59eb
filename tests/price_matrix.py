"""Prices of every bundled model × GPU × engine × precision: is any of them absurd?

    python -m tests.price_matrix        # all of them (`make test-matrix`), a few minutes

`tests/contracts/test_price_matrix.py` checks a fixed sample. What must hold, whatever the source of a price:

- fewer bytes are never slower by more than 10%, per component and per step, where most of the time is reading weights;
- time never falls with more positions, and one more position never takes less than no time;
- no component takes over five times as long, relative to the datasheet, as on the same GPU in other models.

A measurement that shows otherwise is an exception in `EXCEPTIONS`, with its source.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from specmargin.answers.scenarios import scenarios_of
from specmargin.catalog.engine_support import WITHOUT_FP8
from specmargin.catalog.lookup import device_names, model_names
from specmargin.decisions.pricer import Pricer
from specmargin.errors import InputError
from specmargin.formats import ENGINES
from specmargin.prices.work import Component
from specmargin.sources import SourceKind
from specmargin.step import FloatArray, Step
from specmargin.verbs.price import PriceRequest

BATCHES = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256], dtype=np.float64)
READING = BATCHES <= 8  # of these, steps only read weights
CONTEXT = 1024.0
# Each format, and one with more bytes that it is compared with.
WIDER = {"fp8": "bf16", "fp8-block": "bf16", "int4-g128": "fp8", "mxfp4": "fp8", "nvfp4": "fp8"}
SLOWER, FALLS, ABOVE = 1.10, 0.97, 5.0
# Of the time in the wider format. Where launches and latencies take the rest, fewer bytes gain nothing and conversions
# cost: measured on an H200, an int4 step of one sequence takes 8% longer than one in BF16
# (lab/data/measurements/vllm-0.32-h200-precisions.json).
BOUND_BY_BYTES = 2 / 3
# Shorter components are launches: their ratio to a datasheet says nothing.
SMALLEST_SECONDS = 500e-6
SMALLEST_SHARE = 0.05
COMPUTED = {Component.ENGINE, Component.LAYERS, Component.LAUNCHES, Component.COLLECTIVES}

_ON_PAPER = {SourceKind.DATASHEET, SourceKind.ASSUMED}

#: Measured exceptions: (component, format, GPU, engine), and the measurement that shows it.
EXCEPTIONS = {
    ("attention projections", "fp8", "b300", "sglang"): "aiconfigurator-core 0.12.0, SGLang 0.5.14: no FP8 GEMM under "
    "5.3 µs, BF16 2.1 µs, and the activations are quantized before it"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    model: str
    gpu: str
    engine: str
    weights: str

    def __str__(self) -> str:
        return f"{self.model} {self.weights} on {self.gpu} with {self.engine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Seconds by batch: of each component and of the step, and of one more position."""

    by_component: dict[Component, FloatArray]
    reading: dict[Component, FloatArray]  # of these, the time of reading and writing memory
    on_paper: frozenset[Component]  # priced by the datasheet, which has no launches: not comparable with kernels
    total: FloatArray
    one_more: FloatArray


def cells() -> Iterator[Cell]:
    for model, gpu, engine in itertools.product(model_names(), device_names(), ENGINES):
        for weights in dict.fromkeys(("bf16", *WIDER)):
            yield Cell(model=model, gpu=gpu, engine=engine, weights=weights)


@cache
def priced(cell: Cell, prices: str | None = None) -> Priced | None:
    """None where the combination is refused, or the plan warns that the engine has no such weights."""
    if cell.engine in WITHOUT_FP8 and cell.weights.startswith("fp8"):
        return None
    request = PriceRequest(
        model=cell.model, gpu=cell.gpu, engine=cell.engine, weights=cell.weights, routing="uniform", prices=prices
    )
    try:
        ((_, scenario), *_) = scenarios_of(request)
        pricer = Pricer(scenario)
        step, more = pricer.marginal(Step.uniform(batch=BATCHES, context=CONTEXT))
    except InputError:
        return None
    return Priced(
        by_component={line.component: line.seconds + 0.0 * BATCHES for line in step.components},
        reading={line.component: line.memory_seconds + 0.0 * BATCHES for line in step.components},
        on_paper=frozenset(line.component for line in step.components if line.source.kind in _ON_PAPER),
        total=step.total_seconds,
        one_more=more.total_seconds - step.total_seconds,
    )


def faults(cell: Cell) -> Iterator[str]:
    price = priced(cell)
    if price is None:
        return
    yield from _wider_faults(cell, price)
    yield from _position_faults(price)


def _wider_faults(cell: Cell, price: Priced) -> Iterator[str]:
    wider = WIDER.get(cell.weights)
    other = None if wider is None else priced(Cell(model=cell.model, gpu=cell.gpu, engine=cell.engine, weights=wider))
    if other is None:
        return
    mixed = {component for component in price.on_paper ^ other.on_paper if component not in COMPUTED}
    pairs = {} if mixed else {"step": (price.total, other.total, sum(other.reading.values(), start=0.0 * BATCHES))}
    for component, seconds in price.by_component.items():
        if component in other.by_component and component not in COMPUTED | mixed:
            pairs[str(component)] = (seconds, other.by_component[component], other.reading[component])
    for name, (seconds, others, reading) in pairs.items():
        weighs = READING & (seconds > SMALLEST_SHARE * price.total) & (reading > BOUND_BY_BYTES * others)
        ratio = np.where(weighs, seconds / np.maximum(others, 1e-12), 0.0)
        if ratio.max() > SLOWER and (name, cell.weights, cell.gpu, cell.engine) not in EXCEPTIONS:
            batch = BATCHES[int(ratio.argmax())]
            yield f"{name} takes {ratio.max():.2f} times as long as in {wider} at batch {batch:g}"


def _position_faults(price: Priced) -> Iterator[str]:
    growth = price.total[1:] / price.total[:-1]
    if growth.min() < FALLS:
        index = int(growth.argmin())
        yield f"a step of {BATCHES[index + 1]:g} takes {growth.min():.2f} of one of {BATCHES[index]:g} positions"
    if price.one_more.min() < -1e-9:
        index = int(price.one_more.argmin())
        yield f"one more position adds {price.one_more.min() * 1e6:.1f} µs at batch {BATCHES[index]:g}"


def ratio_faults(chosen: Iterable[Cell]) -> Iterator[tuple[Cell, str]]:
    """Components whose ratio to the datasheet is far above that of the same component in other models on the GPU."""
    ratios: dict[tuple[str, str, Component], list[tuple[float, Cell]]] = defaultdict(list)
    for cell in chosen:
        price, sheet = priced(cell), priced(cell, "datasheet")
        if price is None or sheet is None:
            continue
        for component, seconds in price.by_component.items():
            if component in COMPUTED or component not in sheet.by_component:
                continue
            index = int(np.flatnonzero(BATCHES == 8)[0])
            if seconds[index] > max(SMALLEST_SECONDS, SMALLEST_SHARE * price.total[index]):
                ratio = float(seconds[index] / max(float(sheet.by_component[component][index]), SMALLEST_SECONDS))
                ratios[cell.gpu, cell.engine, component].append((ratio, cell))
    for (_, _, component), found in ratios.items():
        usual = float(np.median([ratio for ratio, _ in found]))
        for ratio, cell in found:
            if len(found) >= 3 and ratio > ABOVE * usual:
                yield cell, f"{component} takes {ratio:.1f} times the datasheet's time, other models {usual:.1f} times"


def sample(size: int) -> list[Cell]:
    """Always the same: evenly spaced, with a step that shares no factor with the axes."""
    every = list(cells())
    stride = len(every) // size
    return every[:: stride + 1 - stride % 2]


def main() -> int:
    began, count, bad = time.monotonic(), 0, 0
    for model in model_names():
        chosen = [cell for cell in cells() if cell.model == model]
        for cell in chosen:
            count += 1
            for fault in faults(cell):
                bad += 1
                print(f"{cell}: {fault}", flush=True)
    for cell, fault in ratio_faults(cell for cell in cells() if cell.weights == "fp8-block"):
        bad += 1
        print(f"{cell}: {fault}")
    print(f"{count:,} prices, {bad} faults, {(time.monotonic() - began) / 60:.1f} min")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
