"""Measured rows of whole attention modules that read prompts, and of GatedDeltaNet's kernels that do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from lab.tables.modules import LAUNCH_BOUND, MeasuredModule, delta_net_attention, in_format, kv_precision
from specmargin.architecture.precision import BF16
from specmargin.prices.kernels import store
from specmargin.prices.kernels.bounds import GEMM_TYPES, ModuleShape
from specmargin.prices.work import Module
from specmargin.step import FloatArray, Step

_SHAPE = ["num_heads", "kv_cache_dtype", "gemm_type"]
_DELTA_NET_SHAPE = ["num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim"]
_POINT = ["batch_size", "isl", "step"]
_MOST_RANKS = 32  # smaller shares of the heads are not served
_FEWEST_TOKENS = 64  # shorter prompts are launches
_ABOVE_LAUNCHES = 3.0  # rows of this many times the shortest are kernels, not launches


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRows:
    """Rows of one shape: prompts, tokens of each, tokens before them, seconds."""

    shape: ModuleShape
    rows: pl.DataFrame
    version: str  # engine and release
    launch_bound: bool  # timed outside a CUDA graph: rows that launches dominate are left out

    @property
    def seconds(self) -> FloatArray:
        return self.rows["seconds"].to_numpy()

    @property
    def step(self) -> Step:
        batch, tokens, context = (self.rows[name].to_numpy().astype(np.float64) for name in _POINT)
        return Step.prompts(count=batch, tokens=tokens, context=context)

    @property
    def fp8_cache(self) -> bool:
        return self.shape.kv is not BF16


def prompt_shapes(system: str, engine: str, measured: MeasuredModule) -> Iterator[PromptRows]:
    """Every shape of a module's prompt table."""
    found = _module_rows(system, engine, measured)
    if found is None:
        return
    version, rows = found
    fastest = min(_shortest(other[1]) for e in store.ENGINES if (other := _module_rows(system, e, measured)))
    launch_bound = _shortest(rows) > LAUNCH_BOUND * fastest
    heads = measured.module.attention.heads
    for (own, kv, gemm_type), part in sorted(rows.partition_by(_SHAPE, as_dict=True).items()):
        if not heads / _MOST_RANKS <= own <= heads or gemm_type not in GEMM_TYPES:
            continue
        module = in_format(measured.module, gemm_type)
        shape = ModuleShape(module=module, ranks=round(heads / own), kv=kv_precision(kv))
        yield _without_launches(PromptRows(shape=shape, rows=part, version=version, launch_bound=launch_bound))


def _module_rows(system: str, engine: str, measured: MeasuredModule) -> tuple[str, pl.DataFrame] | None:
    """Engine and release, and rows in bf16 arithmetic, the engines' default for prompts."""
    table = measured.table
    found = store.load(system, table.operation, engine, table.file.replace("generation", "context"))
    if found is None:
        return None
    rows = found.rows.filter(pl.col("mla_dtype") == "bfloat16")
    if "model" in rows.columns:
        rows = rows.filter(pl.any_horizontal(pl.col("model").str.ends_with(name) for name in table.table_models))
    rows = rows.group_by([*_SHAPE, *_POINT]).agg(pl.col("seconds").min()).sort([*_SHAPE, *_POINT])
    return (f"{engine} {found.version}", rows) if rows.height else None


def _shortest(rows: pl.DataFrame) -> float:
    return float(np.quantile(rows["seconds"].to_numpy(), 0.01))


def _without_launches(part: PromptRows) -> PromptRows:
    rows = part.rows.filter(pl.col("batch_size") * pl.col("isl") >= _FEWEST_TOKENS)
    if part.launch_bound:
        rows = rows.filter(pl.col("seconds") > _ABOVE_LAUNCHES * part.seconds.min())
    return replace(part, rows=rows)


def delta_net_prompts(system: str, engine: str) -> Iterator[PromptRows]:
    table = store.load(system, "linear_attention", engine, "gdn_perf")
    if table is None:
        return
    rows = table.rows.filter((pl.col("phase") == "context") & (pl.col("num_tokens") >= _FEWEST_TOKENS))
    rows = rows.rename({"seq_len": "isl"}).with_columns(step=pl.lit(0))
    kernels = rows.group_by([*_DELTA_NET_SHAPE, *_POINT, "kernel_source"]).agg(pl.col("seconds").min())
    rows = kernels.group_by([*_DELTA_NET_SHAPE, *_POINT]).agg(pl.col("seconds").sum(), pl.len().alias("kernels"))
    rows = rows.filter(pl.col("kernels") >= 2).sort([*_DELTA_NET_SHAPE, *_POINT])
    for key, part in sorted(rows.partition_by(_DELTA_NET_SHAPE, as_dict=True).items()):
        module = Module(attention=delta_net_attention(*(int(value) for value in key)), projections=())
        shape = ModuleShape(module=module, ranks=1, kv=BF16)
        yield PromptRows(shape=shape, rows=part, version=f"{engine} {table.version}", launch_bound=False)
