"""Measured rows of whole attention modules: projections and attention together (GatedDeltaNet: its kernels alone)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import polars as pl

from specmargin.architecture.precision import BF16, FP8, FP32, Precision
from specmargin.architecture.types import LinearAttention
from specmargin.prices.kernels import features, store
from specmargin.prices.kernels.bounds import GEMM_TYPES, ModuleShape, ModuleTimes, main_precision
from specmargin.prices.kernels.kinds import ModuleTable
from specmargin.prices.work import Module
from specmargin.step import FloatArray

# A module whose smallest time is this many times that of another engine was timed outside a CUDA graph.
LAUNCH_BOUND = 1.4


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
    launch_bound = _fastest(rows) > LAUNCH_BOUND * _fastest_of_any_engine(system, table)
    return ModuleRows(rows=rows, version=f"{engine} {found.version}", launch_bound=launch_bound)


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
        module = Module(attention=_delta_net_attention(*(int(value) for value in key)), projections=())
        yield (
            ModuleShape(module=module, ranks=1, kv=BF16),
            ModuleRows(
                rows=part.with_columns(context=pl.lit(0.0)), version=f"{engine} {table.version}", launch_bound=False
            ),
        )


def _delta_net_attention(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> LinearAttention:
    state = value_heads * key_dim * value_dim
    return LinearAttention(
        kind="gated_delta_net",
        heads=value_heads,
        state_elements=state,
        convolution_elements=features.DELTA_NET_TAPS * (2 * key_heads * key_dim + value_heads * value_dim),
        state_precision=FP32,
        flops_per_position=8.0 * state,
    )
