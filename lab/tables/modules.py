"""Measured rows of whole attention modules: projections and attention together (GatedDeltaNet: its kernels alone)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import numpy as np
import polars as pl

from lab.tables import features
from specmargin.architecture.precision import BF16, FP8, FP32, Precision
from specmargin.architecture.types import LinearAttention
from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.prices.kernels import store
from specmargin.prices.kernels.bounds import GEMM_TYPES, ModuleShape, ModuleTimes, main_precision, signature
from specmargin.prices.kernels.kinds import attention_kind
from specmargin.prices.work import Module
from specmargin.step import FloatArray

# A module whose smallest time is this many times that of another engine was timed outside a CUDA graph.
LAUNCH_BOUND = 1.4
SLOW_MODULE = 5.0  # times the fastest other GPU's time, at equal bandwidth
_GPUS = {system: gpu for gpu, system in store.SYSTEMS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """A whole attention module as it was measured: its kind, operation folder, file, and whose shapes it has."""

    kind: str
    operation: str
    file: str
    model: str  # the bundled model
    table_models: tuple[str, ...]  # ends of its names in the tables


def _sparse(kind: str, file: str, model: str, *table_models: str) -> ModuleTable:
    return ModuleTable(kind=kind, operation="sparse_attention", file=file, model=model, table_models=table_models)


# Laws are fitted to the first model of each kind; the others are only looked up and validated.
MODULES = (
    ModuleTable(
        kind="mla",
        operation="mla",
        file="mla_generation_module_perf",
        model="deepseek-v3",
        table_models=("DeepSeek-V3",),
    ),
    _sparse("dsa", "dsa_generation_module_perf", "deepseek-v3.2", "DeepSeek-V3.2"),
    _sparse("dsa", "dsa_generation_module_perf", "glm-5", "GLM-5", "GLM-5-FP8"),
    _sparse("csa", "dsv4_csa_generation_module_perf", "deepseek-v4-flash", "V4-Flash-FP8"),
    _sparse("csa", "dsv4_csa_generation_module_perf", "deepseek-v4-pro", "V4-Pro", "V4-Pro-FP8"),
    _sparse("hca", "dsv4_hca_generation_module_perf", "deepseek-v4-flash", "V4-Flash-FP8"),
    _sparse("hca", "dsv4_hca_generation_module_perf", "deepseek-v4-pro", "V4-Pro", "V4-Pro-FP8"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRows:
    """Rows of one shape: batch size, context, seconds."""

    rows: pl.DataFrame
    version: str  # engine and release
    launch_bound: bool  # launches included: an upper bound of the module inside a graph

    @property
    def seconds(self) -> FloatArray:
        return self.rows["seconds"].to_numpy()

    def times(self) -> ModuleTimes:
        columns = [self.rows[name].to_numpy().astype(np.float64) for name in ("batch_size", "context")]
        batch, context = (np.unique(column) for column in columns)
        seconds = np.full((batch.size, context.size), np.nan)
        seconds[np.searchsorted(batch, columns[0]), np.searchsorted(context, columns[1])] = self.seconds
        return ModuleTimes(version=self.version, batch=batch, context=context, seconds_by_batch_context=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModule:
    """A table of module rows, and the module that it measured."""

    table: ModuleTable
    module: Module


def in_format(module: Module, gemm_type: str) -> Module:
    """The module with the quantised matrices in another format of the tables; what is never quantised stays."""
    stored = main_precision(module)
    matrices = tuple(
        replace(matrix, precision=GEMM_TYPES[gemm_type]) if matrix.precision is stored else matrix
        for matrix in module.projections
    )
    return replace(module, projections=matrices)


def kv_precision(name: str) -> Precision:
    return FP8 if name.startswith("fp8") else BF16


def measured_shapes(system: str, engine: str, measured: MeasuredModule) -> Iterator[tuple[ModuleShape, ModuleRows]]:
    """Every shape of a module table, with its rows."""
    rows = rows_of(system, engine, measured.table)
    if rows is None:
        return
    all_heads = measured.module.attention.heads
    for key, part in sorted(rows.rows.partition_by(["num_heads", "kv_cache_dtype", "gemm_type"], as_dict=True).items()):
        heads, kv, gemm_type = key
        if heads <= all_heads and gemm_type in GEMM_TYPES:
            module = in_format(measured.module, gemm_type)
            shape = ModuleShape(module=module, ranks=round(all_heads / heads), kv=kv_precision(kv))
            yield shape, replace(rows, rows=part)


@cache
def rows_of(system: str, engine: str, table: ModuleTable) -> ModuleRows | None:
    found = store.load(system, table.operation, engine, table.file)
    rows = None if found is None else features.module_rows(found, table.table_models)
    if found is None or rows is None or rows.height == 0:
        return None
    if slow_module(_GPUS[system], engine, table.operation, table.file):
        return None
    launch_bound = _fastest(rows) > LAUNCH_BOUND * _fastest_of_any_engine(system, table)
    return ModuleRows(rows=rows, version=f"{engine} {found.version}", launch_bound=launch_bound)


@cache
def slow_module(gpu: str, engine: str, operation: str, file: str) -> str:
    """Why a module's table is dropped: it takes a multiple of the time of all other GPUs for the same work; "" if not.

    Times are compared at the ratio of bandwidths. SGLang 0.5.14 on an RTX PRO 6000 (SM120, which FlashMLA does not
    support) takes 660 µs per sequence and layer whatever the heads and the context: a reference path.
    """
    own = _seconds_by_work(gpu, engine, operation, file)
    others = [
        _seconds_by_work(other, candidate, operation, file)
        for other in store.SYSTEMS
        for candidate in store.ENGINES
        if other != gpu
    ]
    ratios = [time / min(times) for work, time in own.items() if (times := [o[work] for o in others if work in o])]
    ratio = float(np.median(ratios)) if ratios else 1.0
    return f"takes {ratio:.0f} times as long as on any other GPU at equal bandwidth" if ratio > SLOW_MODULE else ""


@cache
def _seconds_by_work(gpu: str, engine: str, operation: str, file: str) -> dict[tuple[object, ...], float]:
    """Times as they would be at 1 B/s, by the work of a row."""
    found = store.load(store.SYSTEMS[gpu], operation, engine, file)
    if found is None:
        return {}
    keys = [name for name in ("model", "num_heads", "gemm_type", "batch_size", "isl", "step") if name in found.rows]
    times = found.rows.group_by(keys).agg(pl.col("seconds").min())
    bandwidth = bundled_device(gpu).bandwidth_bytes_per_second
    return {row[:-1]: row[-1] * bandwidth for row in times.rows()}


def _fastest(rows: pl.DataFrame) -> float:
    return float(np.quantile(rows["seconds"].to_numpy(), 0.01))


def _fastest_of_any_engine(system: str, table: ModuleTable) -> float:
    tables = [store.load(system, table.operation, engine, table.file) for engine in store.ENGINES]
    rows = [features.module_rows(found, table.table_models) for found in tables if found is not None]
    return min(_fastest(part) for part in rows if part.height)


# --- GatedDeltaNet: its kernels alone, at any context ---


def delta_net_shapes(system: str, engine: str, *, bandwidth: float) -> Iterator[tuple[ModuleShape, ModuleRows]]:
    table = store.load(system, "linear_attention", engine, "gdn_perf")
    if table is None:
        return
    keys = ["num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim"]
    for key, part in sorted(
        features.delta_net_rows(table, bandwidth=bandwidth).partition_by(keys, as_dict=True).items()
    ):
        module = Module(attention=delta_net_attention(*(int(value) for value in key)), projections=())
        yield (
            ModuleShape(module=module, ranks=1, kv=BF16),
            ModuleRows(
                rows=part.with_columns(context=pl.lit(0.0)), version=f"{engine} {table.version}", launch_bound=False
            ),
        )


def delta_net_attention(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> LinearAttention:
    state = value_heads * key_dim * value_dim
    return LinearAttention(
        kind="gated_delta_net",
        heads=value_heads,
        state_elements=state,
        convolution_elements=features.DELTA_NET_TAPS * (2 * key_heads * key_dim + value_heads * value_dim),
        state_precision=FP32,
        flops_per_position=8.0 * state,
    )


# --- the modules of bundled models ---


@cache
def measured_modules() -> tuple[MeasuredModule, ...]:
    """The first of each kind is the one that its law is fitted to."""
    return tuple(MeasuredModule(table=table, module=_module(table)) for table in MODULES)


def _module(table: ModuleTable) -> Module:
    """Of several layers of its kind, the one with the most matrices.

    DeepSeek V4's first layers attend to a window alone: they are of HCA's kind, but have no compressor.
    """
    layers = [group.layer for group in bundled_model(table.model).groups]
    modules = [module for layer in layers if (module := Module.of(layer)) is not None]
    return max((m for m in modules if attention_kind(m.attention) == table.kind), key=lambda m: len(m.projections))


def measured_times(gpu: str) -> dict[tuple[str, str], ModuleTimes]:
    """Of the tables, by engine and signature; of several models with the same module, the first."""
    system, bandwidth = store.SYSTEMS[gpu], bundled_device(gpu).bandwidth_bytes_per_second
    times: dict[tuple[str, str], ModuleTimes] = {}
    for engine in store.ENGINES:
        modules = (measured_shapes(system, engine, measured) for measured in measured_modules())
        for shape, rows in chain(*modules, delta_net_shapes(system, engine, bandwidth=bandwidth)):
            times.setdefault((engine, signature(shape)), rows.times())
    return times
