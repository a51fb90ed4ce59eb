"""Fit the compact price laws to the public kernel tables and write them to the catalog.

    python -m lab.fits.laws            # needs: pip install 'specmargin[tables]' scipy
    python -m lab.fits.laws --check    # fits again and reports what would change

Every law carries its row count and its error on shapes that its fit did not see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from rich.progress import track

from lab import CATALOG
from lab.fits.collectives import all_reduce_curves, all_to_all_curves
from lab.fits.fitting import fitted_law, write_or_compare
from lab.tables.checks import COLUMNS, dropped_tables
from lab.tables.features import gemm_terms_of, prefill_rows, prefill_terms_of, shape_numbers
from lab.tables.modules import delta_net_shapes, measured_modules, measured_shapes, rows_of
from lab.terminal import parser, run
from lab.validation.skew import skewed_load
from specmargin.architecture.types import LinearAttention
from specmargin.catalog.lookup import bundled_device
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import features, store
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.bounds import ModuleShape
from specmargin.prices.kernels.checks import Peaks
from specmargin.prices.kernels.fit import Samples
from specmargin.prices.kernels.kinds import MODULE_KINDS, expert_variant, shape_key
from specmargin.prices.kernels.law import Curve, Law, Terms
from specmargin.prices.kernels.model import SiliconPrices
from specmargin.prices.kernels.terms import BYTES, quantize_terms
from specmargin.prices.roofline import Roofline
from specmargin.prices.work import Work, module_work
from specmargin.step import FloatArray, Step

TARGET = CATALOG / "laws.json"
MEMORY_BOUND = 256  # positions up to which errors are evaluated
Entry = dict[str, Any]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--check", action="store_true", help="compare with the shipped laws instead of writing them")
    options.add_argument("--gpu", action="append", help="fit this device again, keep the others (may be repeated)")
    arguments = options.parse_args()
    entries: list[Entry] = []
    kernels: dict[str, Any] = {}
    gpus = arguments.gpu or list(store.SYSTEMS)
    pairs = [(gpu, engine) for gpu in gpus for engine in store.ENGINES]
    for gpu, engine in track(pairs, description="fitting"):
        entries += list(_entries(gpu, engine, kernels))
    dropped = list(dropped_tables(gpus))
    text = _text(*_with_shipped(gpus, entries, kernels, dropped))
    write_or_compare(TARGET, text, compare=arguments.check)
    for entry in entries:
        print(_line(entry))
    for entry in dropped:
        print("dropped:", *(entry[name] for name in COLUMNS))


def _with_shipped(
    gpus: list[str], entries: list[Entry], kernels: dict[str, Any], dropped: list[Entry]
) -> tuple[list[Entry], dict[str, Any], list[Entry]]:
    """What was fitted now, and the shipped laws of the other devices."""
    shipped = json.loads(TARGET.read_text())
    others = [[entry for entry in shipped.get(name, ()) if entry["gpu"] not in gpus] for name in ("laws", "dropped")]
    kept = {key: value for key, value in shipped["kernels"].items() if key.split("/")[0] not in gpus}
    place = {gpu: index for index, gpu in enumerate(store.SYSTEMS)}
    laws, left_out = (
        sorted(old + new, key=lambda entry: place[entry["gpu"]])
        for old, new in zip(others, (entries, dropped), strict=True)
    )
    by_gpu = dict(sorted((kept | kernels).items(), key=lambda item: place[item[0].split("/")[0]]))
    return laws, by_gpu, left_out


def _line(entry: Entry) -> str:
    evidence = entry["evidence"]
    name = f"{entry['gpu']:13s}{entry['engine']:8s}{entry['operation']:11s}{entry['dtype']:17s}"
    errors = f"{evidence['shapes']:4d} shapes {evidence['median_error']:7.1%} {evidence['p90_error']:7.1%}"
    if "sizes" in entry:
        return f"{name}{entry['variant']:41s} {errors}"
    law = f"{entry['fixed_seconds'] * 1e6:6.1f} µs {entry['bytes_per_second'] / 1e12:6.2f} TB/s"
    return f"{name}{entry['variant'][-40:]:41s} {errors} {law} {entry['operations_per_second'] / 1e12:8.0f} TFLOP/s"


def _text(entries: list[Entry], kernels: dict[str, Any], dropped: list[Entry]) -> str:
    """One law per line, for readable diffs."""
    lines, left_out = (",\n".join("    " + json.dumps(entry) for entry in part) for part in (entries, dropped))
    shapes = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in kernels.items())
    head = f'{{\n  "schema": "specmargin.laws/1",\n  "source": {json.dumps(store.release())},\n'
    return f'{head}  "kernels": {{\n{shapes}\n  }},\n  "dropped": [\n{left_out}\n  ],\n  "laws": [\n{lines}\n  ]\n}}\n'


def _entries(gpu: str, engine: str, kernels: dict[str, Any]) -> Iterator[Entry]:
    gemms: dict[str, Law] = {}
    for entry, law in _gemms(gpu, engine):
        gemms[entry["dtype"]] = law
        yield entry
    yield from _quantize(gpu, engine)
    yield from _experts(gpu, engine, kernels)
    yield from _attention(gpu, engine)
    yield from _prefill(gpu, engine)
    yield from _modules(gpu, engine, gemms)
    yield from _delta_net(gpu, engine)
    for operation, curves in (("all-reduce", all_reduce_curves), ("all-to-all", all_to_all_curves)):
        for ranks, curve in curves(gpu, engine):
            yield _entry(gpu, engine, operation, "bfloat16", str(ranks), curve)


def _entry(gpu: str, engine: str, operation: str, dtype: str, variant: str, law: Law | Curve) -> Entry:
    head = {"gpu": gpu, "engine": engine, "operation": operation, "dtype": dtype, "variant": variant}
    return head | law.as_json()


def _gemms(gpu: str, engine: str) -> Iterator[tuple[Entry, Law]]:
    """GEMMs of the engine; where its table is launch-bound, those of another engine on the same GPU."""
    for dtype in BYTES:
        for source in (engine, *(other for other in store.ENGINES if other != engine)):
            table = store.load(store.SYSTEMS[gpu], "gemm", source, "gemm_perf")
            checked = features.gemm_rows(table, dtype, _peaks(gpu, dtype)) if table is not None else None
            if table is None or checked is None or checked.rows.select(features.GEMM_SHAPE).unique().height < 20:
                continue
            rows = checked.rows
            m = rows["m"].to_numpy()
            samples = Samples(
                seconds=rows["seconds"].to_numpy(),
                terms=gemm_terms_of(rows, dtype),
                shape=shape_numbers(rows, features.GEMM_SHAPE),
                weight=np.where(m <= 512, 1.0, 0.2),
                **_plain(gpu),
            )
            note = "" if source == engine else f"measured with {source}"
            law = fitted_law(samples, f"{source} {table.version}", judged=m <= MEMORY_BOUND, note=note)
            yield _entry(gpu, engine, "gemm", dtype, "", law), law
            break


def _quantize(gpu: str, engine: str) -> Iterator[Entry]:
    """Activations to per-tensor fp8. SGLang's rows take four times as long as the others': several kernels each."""
    sources = [source for source in (engine, "vllm", "trtllm") if source != "sglang"]
    for source in sources:
        table = store.load(store.SYSTEMS[gpu], "quantize", source, "scale_matrix_perf")
        if table is None:
            continue
        rows = table.rows.group_by(["m", "k"]).agg(pl.col("seconds").min()).sort(["k", "m"])
        m = rows["m"].to_numpy().astype(np.float64)
        samples = Samples(
            seconds=rows["seconds"].to_numpy(),
            terms=quantize_terms(m, rows["k"].to_numpy()),
            shape=shape_numbers(rows, ["k"]),
            weight=np.where(m <= 512, 1.0, 0.2),
            **_plain(gpu),
        )
        note = "" if source == engine else f"measured with {source}"
        law = fitted_law(samples, f"{source} {table.version}", judged=m <= MEMORY_BOUND, note=note)
        yield _entry(gpu, engine, "quantize", "fp8", "", law)
        return


def _experts(gpu: str, engine: str, kernels: dict[str, Any]) -> Iterator[Entry]:
    for dtype in BYTES:
        for plain in (False, True):
            newest = _newest_experts(gpu, engine, dtype, plain=plain)
            if newest is None:
                continue
            table, rows, note = newest
            _record_kernels(kernels.setdefault(f"{gpu}/{engine}/{dtype}", {"shapes": {}}), rows)
            for key, part in sorted(rows.partition_by(["kernel", "spread"], as_dict=True).items()):
                kernel, spread = key
                shape = shape_numbers(part, features.EXPERT_SHAPE)
                if np.unique(shape).size < 4:
                    continue
                tokens = part["num_tokens"].to_numpy()
                samples = Samples(
                    seconds=part["seconds"].to_numpy(),
                    terms=features.expert_terms_of(part, dtype),
                    shape=shape,
                    weight=np.where(tokens <= 512, 1.0, 0.3),
                    crowding_limit=1.0 if _is_triton(str(kernel)) else 0.25,
                    **_plain(gpu),
                )
                law = fitted_law(samples, f"{engine} {table.version}", judged=tokens <= MEMORY_BOUND, note=note)
                variant = expert_variant(_short(str(kernel)), spread=bool(spread), plain=plain)
                yield _entry(gpu, engine, "experts", dtype, variant, law)


def _is_triton(kernel: str) -> bool:
    """Triton falls back to an untuned configuration at many pairs per expert; other kernels do not."""
    return "triton" in kernel or kernel.endswith("fused_moe")


def _record_kernels(recorded: dict[str, Any], rows: pl.DataFrame) -> None:
    """Record the kernel of each shape, and the most frequent one as default."""
    by_shape = rows.select([*features.MODEL_SHAPE, "kernel"]).unique(maintain_order=True)
    recorded["shapes"] |= {shape_key(*shape): _short(kernel) for *shape, kernel in by_shape.rows()}
    recorded.setdefault("default", _short(rows["kernel"].mode().sort()[0]))


def _newest_experts(gpu: str, engine: str, dtype: str, *, plain: bool) -> tuple[store.Table, pl.DataFrame, str] | None:
    """The newest version with at least ten shapes in this dtype; else with four (a format that one model has)."""
    for min_shapes in (10, 4):
        for path in store.versions(store.SYSTEMS[gpu], "moe", engine, "moe_perf"):
            table = store.table(path)
            expert = _measured_experts(table, gpu, dtype)
            if expert is None:
                continue
            rows = expert.rows.with_columns(spread=pl.col("moe_ep_size") > 1)
            rows = rows.filter(features.matrices_expression() == (2.0 if plain else 3.0))
            if rows.select(features.EXPERT_SHAPE).unique().height >= min_shapes:
                note = f"{expert.dropped_rows} rows dropped by the checks" if expert.dropped_rows else ""
                return table, rows, note
    return None


def _measured_experts(table: store.Table, gpu: str, dtype: str) -> features.CheckedRows | None:
    """Balanced rows, or skewed ones where there are no others (Intel), counted as they were drawn."""
    balanced = features.expert_rows(table, dtype, _peaks(gpu, dtype))
    if balanced is not None:
        return balanced
    load = partial(skewed_load, exponent=1.01)
    return features.expert_rows(table, dtype, _peaks(gpu, dtype), routing="power_law_1.01", load=load)


def _short(kernel: str) -> str:
    return kernel.removeprefix("vllm_").removeprefix("sglang_").removeprefix("moe_torch_flow_")


def _attention(gpu: str, engine: str) -> Iterator[Entry]:
    table = store.load(store.SYSTEMS[gpu], "attention", engine, "generation_attention_perf")
    if table is None:
        return
    rows = features.attention_rows(table).with_columns(windowed=pl.col("window_size") > 0)
    for key, part in sorted(rows.partition_by(["head_dim", "windowed", "kv_cache_dtype"], as_dict=True).items()):
        dim, windowed, kv = key
        if part.select(features.ATTENTION_SHAPE).unique().height < 4:
            continue
        batch, context = part["batch_size"].to_numpy(), part["context"].to_numpy()
        samples = Samples(
            seconds=part["seconds"].to_numpy(),
            terms=features.attention_terms_of(part),
            shape=shape_numbers(part, features.ATTENTION_SHAPE),
            weight=np.where((batch <= 512) & (context >= 64), 1.0, 0.2),
            **_plain(gpu),
        )
        judged = (batch <= MEMORY_BOUND) & (context >= 64)
        law = fitted_law(samples, f"{engine} {table.version}", judged=judged)
        variant = f"d{dim}{'-window' if windowed else ''}-{'fp8' if kv == 'fp8' else 'bf16'}"
        yield _entry(gpu, engine, "attention", "bfloat16", variant, law)


def _prefill(gpu: str, engine: str) -> Iterator[Entry]:
    """Attention of whole prompts, for its compute rate."""
    table = store.load(store.SYSTEMS[gpu], "attention", engine, "context_attention_perf")
    if table is None:
        return
    rows = prefill_rows(table)
    samples = Samples(
        seconds=rows["seconds"].to_numpy(),
        terms=prefill_terms_of(rows),
        shape=shape_numbers(rows, ["num_heads", "num_key_value_heads", "head_dim"]),
        weight=np.ones(rows.height),
        **_plain(gpu),
    )
    law = fitted_law(samples, f"{engine} {table.version}", judged=np.ones(rows.height, dtype=bool))
    yield _entry(gpu, engine, "prefill", "bfloat16", "", law)


def _modules(gpu: str, engine: str, gemms: dict[str, Law]) -> Iterator[Entry]:
    """MLA, DSA, CSA, HCA: time of a measured module beyond its GEMMs, which are priced separately."""
    prices = _gemm_prices(gpu, engine, gemms)
    for kind in MODULE_KINDS:
        measured = next(measured for measured in measured_modules() if measured.table.kind == kind)
        rows = rows_of(store.SYSTEMS[gpu], engine, measured.table)
        if rows is None or rows.launch_bound:
            continue
        shapes = list(measured_shapes(store.SYSTEMS[gpu], engine, measured))
        for kv in sorted({shape.kv.name for shape, _ in shapes}):
            chosen = [(shape, part) for shape, part in shapes if shape.kv.name == kv]
            parts = [
                _module_samples(gpu, shape, part.rows, lambda work: prices.price([work])[0].seconds)
                for shape, part in chosen
                if part.rows["gemm_type"][0] in gemms
            ]
            if len(parts) >= 3:
                law = _module_law(parts, rows.version)
                yield _entry(gpu, engine, kind, "fp8" if kv == "fp8" else "bfloat16", "", law)


def _delta_net(gpu: str, engine: str) -> Iterator[Entry]:
    bandwidth = bundled_device(gpu).bandwidth_bytes_per_second
    shapes = list(delta_net_shapes(store.SYSTEMS[gpu], engine, bandwidth=bandwidth))
    parts = [_module_samples(gpu, shape, part.rows, lambda work: 0.0 * work.positions) for shape, part in shapes]
    if len(parts) >= 3:
        yield _entry(gpu, engine, "gdn", "fp32", "", _module_law(parts, shapes[0][1].version))


def _gemm_prices(gpu: str, engine: str, gemms: dict[str, Law]) -> SiliconPrices:
    """The GEMM laws just fitted, as the price model uses them."""
    laws = {(engine, "gemm", dtype, ""): law for dtype, law in gemms.items()}
    fallback = Roofline(device=bundled_device(gpu), form=RooflineForm.PER_COMPONENT)
    book = LawBook(gpu=gpu, release="", laws=laws, curves={})
    return SiliconPrices(name="laws", engine=engine, book=book, fallback=fallback)


def _module_samples(
    gpu: str, shape: ModuleShape, rows: pl.DataFrame, product_seconds: Callable[[Work], FloatArray]
) -> Samples:
    """Rows of one shape, with the time of their GEMMs as the offset."""
    batch, context = (rows[name].to_numpy().astype(float) for name in ("batch_size", "context"))
    step = Step.uniform(batch=batch, context=context)
    *products, attention = module_work(shape.module, step, layout=Layout(gpus=shape.ranks), kv=shape.kv)
    is_recurrent = isinstance(shape.module.attention, LinearAttention)
    return Samples(
        seconds=rows["seconds"].to_numpy(),
        terms=Terms(
            bytes=attention.bytes, operations=0.0 * batch if is_recurrent else attention.flops, units=step.sequences
        ),
        shape=np.zeros(batch.size, dtype=np.int64),
        weight=np.where((batch <= 512) | is_recurrent, 1.0, 0.2),
        offset=product_seconds(products[0] if products else attention),
        bandwidth_limit=_limit(gpu),
    )


def _module_law(parts: list[Samples], version: str) -> Law:
    """Fitted to the samples of several shapes."""

    def column(read: Callable[[Samples], FloatArray]) -> FloatArray:
        return np.concatenate([read(part) for part in parts])

    samples = replace(
        parts[0],
        seconds=column(lambda part: part.seconds),
        terms=Terms(
            bytes=column(lambda part: part.terms.bytes),
            operations=column(lambda part: part.terms.operations),
            units=column(lambda part: part.terms.units),
        ),
        shape=np.repeat(np.arange(len(parts)), [part.seconds.size for part in parts]),
        weight=column(lambda part: part.weight),
        offset=column(lambda part: part.offset),
    )
    return fitted_law(samples, version, judged=samples.terms.units <= MEMORY_BOUND)


def _peaks(gpu: str, dtype: str) -> Peaks:
    return Peaks.of(bundled_device(gpu), dtype)


def _limit(gpu: str) -> float:
    return 1.05 * bundled_device(gpu).bandwidth_bytes_per_second


def _plain(gpu: str) -> dict[str, Any]:
    return {"offset": np.zeros(()), "bandwidth_limit": _limit(gpu)}


if __name__ == "__main__":
    run(main)
