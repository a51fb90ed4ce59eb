"""Fit the laws of attention modules that read prompts, and write them to the catalog.

    python -m lab.fits.prompts            # needs: pip install 'specmargin[tables]' scipy
    python -m lab.fits.prompts --check    # fits again and reports what would change

After `lab.fits.laws`: a law has what a module takes beyond its GEMMs. Fitted to the first model of each kind; the
others validate it (`python -m lab.validation.prompts`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from rich.progress import track

from lab import CATALOG
from lab.fits.fitting import fitted_law, write_or_compare
from lab.tables.modules import measured_modules
from lab.tables.prompts import PromptRows, delta_net_prompts, prompt_shapes
from lab.terminal import parser, run
from specmargin.architecture.precision import Arithmetic
from specmargin.catalog.lookup import bundled_device
from specmargin.catalog.prices import PROMPT_LAWS, law_book
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.kernels.fit import Samples
from specmargin.prices.kernels.kinds import MODULE_KINDS
from specmargin.prices.kernels.law import Law, Terms
from specmargin.prices.kernels.model import SiliconPrices
from specmargin.prices.kernels.prompts import PromptPath, prompt_terms
from specmargin.prices.roofline import Roofline
from specmargin.prices.work import module_work
from specmargin.step import FloatArray

TARGET = CATALOG / PROMPT_LAWS
_FEWEST_SHAPES = 3
_SLOWEST = 0.05  # of the device's bf16 rate
# Rows timed outside a CUDA graph show unfused norms and rotations, and for MLA these are most of what a module takes
# beyond its GEMMs: vLLM 0.24 on B300 and GB200 (outside) has 26 ns per token, on B200 and GB300 (inside) 9. Served
# engines compile them, so another engine's rows on the same GPU are nearer.
_UNFUSED = ("mla",)
_DENSE_SELECTION_SINCE = {"vllm": (0, 27)}  # the releases before it have no dense path for DSA
_FEATURES = ("bytes", "operations", "units", "residents", "elements")
Entry = dict[str, Any]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--check", action="store_true", help="compare with the shipped laws instead of writing them")
    arguments = options.parse_args()
    entries = [entry for gpu in track(store.SYSTEMS, description="fitting") for entry in _entries(gpu)]
    text = _text(entries)
    write_or_compare(TARGET, text, compare=arguments.check)
    for entry in entries:
        print(_line(entry))


def _line(entry: Entry) -> str:
    evidence = entry["evidence"]
    return (
        f"{entry['gpu']:13s}{entry['engine']:8s}{entry['operation']:13s}{evidence['shapes']:4d} shapes "
        f"{evidence['median_error']:7.1%} {evidence['p90_error']:7.1%} {entry['fixed_seconds'] * 1e6:7.1f} µs "
        f"{entry['operations_per_second'] / 1e12:8.0f} TFLOP/s {evidence['note']}"
    )


def _text(entries: list[Entry]) -> str:
    """One law per line, for readable diffs."""
    lines = ",\n".join("    " + json.dumps(entry) for entry in entries)
    return f'{{\n  "schema": "specmargin.laws/1",\n  "laws": [\n{lines}\n  ]\n}}\n'


def _entries(gpu: str) -> list[Entry]:
    device = bundled_device(gpu)
    if law_book(device) is None:
        return []
    fitted = [item for engine in store.ENGINES for item in _laws(device, engine)]
    shortest: dict[str, float] = {}
    for kind, _, law, rows in fitted:
        if not rows[0].launch_bound:
            shortest[kind] = min(law.fixed_seconds, shortest.get(kind, law.fixed_seconds))
    laws = [(kind, engine, _in_graph(law, rows, shortest[kind])) for kind, engine, law, rows in fitted]
    return [_entry(gpu, engine, kind, law) for kind, engine, law in laws if _is_possible(device, engine, kind, law)]


def _is_possible(device: Device, engine: str, kind: str, law: Law) -> bool:
    """Rows far below the device's matrix rate are of a kernel that was not made for it. GatedDeltaNet: one head's."""
    possible = kind == "gdn" or law.operations_per_second > _SLOWEST * device.rate(Arithmetic.BF16)
    if not possible:
        print(f"dropped: {kind} prompts of {engine} on {device.name}, {law.operations_per_second / 1e12:.0f} TFLOP/s")
    return possible


def _in_graph(law: Law, rows: list[PromptRows], fixed_seconds: float) -> Law:
    """The fixed time of rows that were timed outside a CUDA graph is launches: another engine's instead."""
    return replace(law, fixed_seconds=fixed_seconds) if rows[0].launch_bound else law


def _entry(gpu: str, engine: str, kind: str, law: Law) -> Entry:
    head = {"gpu": gpu, "engine": engine, "operation": f"{kind} prompts", "dtype": "bfloat16", "variant": ""}
    return head | law.as_json()


def _laws(device: Device, engine: str) -> Iterator[tuple[str, str, Law, list[PromptRows]]]:
    system = store.SYSTEMS[device.name]
    for kind in MODULE_KINDS:
        measured = next(measured for measured in measured_modules() if measured.table.kind == kind)
        shapes = [part for part in prompt_shapes(system, engine, measured) if part.rows.height > 0]
        if len(shapes) >= _FEWEST_SHAPES and not (kind in _UNFUSED and shapes[0].launch_bound):
            yield kind, engine, _law(device, engine, shapes), shapes
    shapes = list(delta_net_prompts(system, engine))
    if len(shapes) >= _FEWEST_SHAPES:
        yield "gdn", engine, _law(device, engine, shapes), shapes


def _law(device: Device, engine: str, shapes: list[PromptRows]) -> Law:
    parts = [_samples(device, engine, part) for part in shapes]
    terms = {name: np.concatenate([getattr(part.terms, name) for part in parts]) for name in _FEATURES}
    samples = replace(
        parts[0],
        seconds=np.concatenate([part.seconds for part in parts]),
        terms=Terms(**terms),
        shape=np.repeat(np.arange(len(parts)), [part.seconds.size for part in parts]),
        weight=np.concatenate([part.weight for part in parts]),
        offset=np.concatenate([part.offset for part in parts]),
    )
    note = "launches left out: timed outside a CUDA graph" if shapes[0].launch_bound else ""
    return fitted_law(samples, shapes[0].version, judged=np.ones(samples.seconds.size, dtype=bool), note=note)


def _samples(device: Device, engine: str, part: PromptRows) -> Samples:
    """Rows of one shape, with the time of their GEMMs as the offset."""
    step = part.step
    terms = prompt_terms(part.shape.module.attention, step, prompt_path(device, engine, part))
    every = {name: np.broadcast_to(getattr(terms, name), part.seconds.shape) for name in _FEATURES}
    return Samples(
        seconds=part.seconds,
        terms=Terms(**every),
        shape=np.zeros(part.seconds.size, dtype=np.int64),
        weight=np.ones(part.seconds.size),
        offset=gemm_seconds(device, engine, part),
        bandwidth_limit=1.05 * device.bandwidth_bytes_per_second,
    )


def prompt_path(device: Device, engine: str, part: PromptRows) -> PromptPath:
    release = tuple(int(number) for number in part.version.split()[1].split(".")[:2])
    return PromptPath(
        engine=engine,
        architecture=device.architecture,
        fp8_cache=part.fp8_cache,
        ranks=part.shape.ranks,
        dense_selection=release >= _DENSE_SELECTION_SINCE.get(engine, (0, 0)),
    )


def gemm_seconds(device: Device, engine: str, part: PromptRows) -> FloatArray:
    """The module's projections over the prompts' positions, as the price model prices them without a module."""
    book = law_book(device)
    assert book is not None
    if not part.shape.module.projections:
        return np.zeros(part.seconds.size)
    fallback = Roofline(device=device, form=RooflineForm.PER_COMPONENT)
    prices = SiliconPrices(name="laws", engine=engine, book=book, fallback=fallback)
    works = module_work(part.shape.module, part.step, layout=Layout(gpus=part.shape.ranks), kv=part.shape.kv)
    return np.asarray(prices.price([works[0]])[0].seconds)


if __name__ == "__main__":
    run(main)
