"""From rows of a measured table to the features of a law: one function per operation.

The interpolation of the tables and the fit of the laws (`lab/fits/laws.py`) both use these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import polars as pl

from specmargin.prices.kernels.checks import (
    FASTEST,
    FEW_POSITIONS,
    WARM,
    Dropped,
    Peaks,
    read_share,
    strays,
    too_slow,
    without,
)
from specmargin.prices.kernels.law import Terms
from specmargin.prices.kernels.store import Table
from specmargin.prices.kernels.terms import BYTES, attention_terms, expert_terms
from specmargin.step import FloatArray, IntArray

MODEL_SHAPE = ["hidden_size", "inter_size", "topk", "num_experts"]
EXPERT_SHAPE = [*MODEL_SHAPE, "moe_tp_size", "moe_ep_size"]
# Squared-ReLU experts (Nemotron) have two matrices, not three; the tables do not say so, their sizes do.
PLAIN_EXPERTS = {(2688, 1856), (1024, 2688), (2048, 5120), (4096, 2688), (8192, 5120)}

_GROUPS = 8  # of experts, in DeepSeek's routing; a position chooses from the best half of them


def _balanced_choice(positions: int, experts: int, topk: int) -> IntArray:
    """The collectors' 'balanced' routing: position i takes the experts i, i + s, i + 2s, … with s = ⌈n/k⌉, spaced out
    while there are fewer positions than s."""
    stride = -(-experts // topk)
    token = np.arange(positions)[:, np.newaxis]
    start = token if positions >= stride else token * stride / positions
    return np.asarray(np.floor(start + np.arange(topk) * stride).astype(np.int64) % experts)


def _group_limited_choice(positions: int, experts: int, topk: int) -> IntArray:
    """The same under DeepSeek's routing: the best 4 of 8 groups, then their best experts; ties go to the first."""
    choices = np.zeros((positions, experts))
    np.put_along_axis(choices, _balanced_choice(positions, experts, topk), 1.0, axis=1)
    size = experts // _GROUPS
    score = np.sort(choices.reshape(positions, _GROUPS, size), axis=2)[:, :, -2:].sum(axis=2)
    allowed = np.zeros((positions, _GROUPS), dtype=bool)
    np.put_along_axis(allowed, np.argsort(-score, axis=1, kind="stable")[:, : _GROUPS // 2], True, axis=1)
    masked = np.where(np.repeat(allowed, size, axis=1), choices, -1.0)
    return np.asarray(np.argsort(-masked, axis=1, kind="stable")[:, :topk])


@lru_cache(maxsize=100_000)
def expert_load(positions: int, experts: int, topk: int, ranks: int, *, by_groups: bool = False) -> tuple[int, int]:
    """Distinct experts and (position, expert) pairs on the first of `ranks`, as the collectors route."""
    # Position i + n chooses as position i does, so one period of n positions is enough; tables go to 65,536.
    chosen = _choice(min(positions, experts), experts, topk, by_groups)
    is_local = chosen < experts // ranks
    pairs_by_position = is_local.sum(axis=1)
    periods, rest = divmod(positions, len(chosen))
    pairs = periods * pairs_by_position.sum() + pairs_by_position[:rest].sum()
    return int(np.count_nonzero(np.bincount(chosen[is_local]))), int(pairs)


@lru_cache(maxsize=256)
def _choice(positions: int, experts: int, topk: int, by_groups: bool) -> IntArray:
    choice = _group_limited_choice if by_groups else _balanced_choice
    return choice(positions, experts, topk)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRows:
    """Rows of a table in one dtype, one latency per shape and size, without those that `checks.py` drops.

    Rows of experts have columns kernel (at decode), distinct, pairs, parameters (of a rank's share of an expert).
    """

    rows: pl.DataFrame
    dropped: tuple[Dropped, ...] = ()

    @property
    def dropped_rows(self) -> int:
        return sum(part.rows for part in self.dropped)


Load = Callable[[int, int, int, int], tuple[float, float]]  # distinct experts and pairs: as `expert_load`
BALANCED = "balanced"


def expert_rows(
    table: Table, dtype: str, peaks: Peaks, *, routing: str = BALANCED, load: Load | None = None
) -> CheckedRows | None:
    """`routing`: of the rows; `load` counts experts where it is not balanced."""
    chosen = table.rows.filter((pl.col("moe_dtype") == dtype) & (pl.col("distribution") == routing)).filter(
        pl.col("num_experts") // pl.col("moe_ep_size") >= 8  # smaller shares are not used in practice
    )
    if chosen.height == 0:
        return None
    rows = (
        chosen.sort("seconds")
        .group_by([*EXPERT_SHAPE, "num_tokens"], maintain_order=True)
        .agg(pl.col("seconds").first(), pl.col("kernel_source").first())
        .sort([*EXPERT_SHAPE, "num_tokens"])
    )
    usual = pl.col("kernel_source").mode().sort().first()
    kernels = rows.filter(pl.col("num_tokens") <= 16).group_by(MODEL_SHAPE).agg(usual)
    rows = rows.drop("kernel_source").join(kernels.rename({"kernel_source": "kernel"}), on=MODEL_SHAPE, how="left")
    parameters = matrices_expression() * pl.col("hidden_size") * pl.col("inter_size") / pl.col("moe_tp_size")
    rows = _counted(rows.with_columns(parameters=parameters), load or expert_load)
    cached = peaks.cached(_expert_bytes(rows, dtype))  # first: their speed says nothing about groups
    rows, dropped = without(rows, cached, "", "weights were in the level-2 cache between repeats")
    seconds_per_parameter = BYTES[dtype] / peaks.bytes_per_second
    grouped = _routes_by_groups(seconds_per_parameter) if load is None else pl.lit(False)
    by_groups = rows.filter(grouped).select(MODEL_SHAPE).unique()
    recounted = _counted(rows.join(by_groups, on=MODEL_SHAPE), partial(expert_load, by_groups=True))
    rows = pl.concat([rows.join(by_groups, on=MODEL_SHAPE, how="anti"), recounted])
    checked = _checked_experts(rows.sort([*EXPERT_SHAPE, "num_tokens"]), dtype, peaks)
    return CheckedRows(rows=checked.rows, dropped=(*dropped, *checked.dropped))


def _checked_experts(rows: pl.DataFrame, dtype: str, peaks: Peaks) -> CheckedRows:
    dropped = []
    impossible = rows.filter(_too_fast(BYTES[dtype] / peaks.bytes_per_second)).select(MODEL_SHAPE).unique()
    possible = rows.join(impossible, on=MODEL_SHAPE, how="anti", maintain_order="left")
    if possible.height < rows.height:
        reason = f"shapes with rows faster than {FASTEST:g} times the memory bandwidth"
        dropped.append(Dropped(kernel="", rows=rows.height - possible.height, reason=reason))
    rate = 2.0 * column(possible, "pairs") * column(possible, "parameters") / column(possible, "seconds")
    reason = f"faster than {FASTEST:g} times the peak of the matrix units"
    rows, parts = without(possible, rate > FASTEST * peaks.operations_per_second, "", reason)
    dropped += parts
    rows, parts = without(rows, strays(rows, EXPERT_SHAPE, "num_tokens"), "", "half of the time of both neighbours")
    dropped += parts
    rows, parts = _without_slow_kernels(rows, dtype, peaks.bytes_per_second)
    return CheckedRows(rows=rows, dropped=(*dropped, *parts))


def _without_slow_kernels(rows: pl.DataFrame, dtype: str, bandwidth: float) -> tuple[pl.DataFrame, list[Dropped]]:
    dropped, plain = [], (matrices_expression() == 2.0).alias("plain")
    for key, part in sorted(rows.with_columns(plain).partition_by(["kernel", "plain"], as_dict=True).items()):
        share = read_share(_expert_bytes(part, dtype), column(part, "seconds"), column(part, "num_tokens"), bandwidth)
        if share is not None and (reason := too_slow(share)):
            mask = rows.select((pl.col("kernel") == key[0]) & (plain == key[1])).to_series().to_numpy()
            rows, parts = without(rows, mask, str(key[0]), reason)
            dropped += parts
    return rows, dropped


def _expert_bytes(rows: pl.DataFrame, dtype: str) -> FloatArray:
    return column(rows, "distinct") * column(rows, "parameters") * BYTES[dtype]


def _counted(rows: pl.DataFrame, load: Load) -> pl.DataFrame:
    keys = rows.select("num_tokens", "num_experts", "topk", "moe_ep_size").rows()
    loads = [load(*key) for key in keys]
    return rows.with_columns(
        distinct=pl.Series([float(distinct) for distinct, _ in loads], dtype=pl.Float64),
        pairs=pl.Series([float(pairs) for _, pairs in loads], dtype=pl.Float64),
    )


def _too_fast(seconds_per_parameter: float) -> pl.Expr:
    return pl.col("distinct") * pl.col("parameters") * seconds_per_parameter > FASTEST * pl.col("seconds")


def _routes_by_groups(seconds_per_parameter: float) -> pl.Expr:
    """Rows whose kernel routed by groups although the table says 'balanced': half of the experts are never read.

    They seem to read at up to 1.8 times the memory bandwidth; counted by groups, they agree with all others. The newest
    vLLM and SGLang do it for DeepSeek's shape, TensorRT-LLM's min_latency kernel for all pools of up to 256 experts.
    """
    fits = (pl.col("topk") == 8) & pl.col("num_experts").is_between(64, 256) & (pl.col("num_experts") % _GROUPS == 0)
    return fits & (_too_fast(seconds_per_parameter) | pl.col("kernel").str.contains("min_latency"))


def matrices_expression() -> pl.Expr:
    """Three matrices per expert; two where the activation is a squared ReLU."""
    plain = pl.lit(False)
    for hidden, inter in sorted(PLAIN_EXPERTS):
        plain = plain | ((pl.col("hidden_size") == hidden) & (pl.col("inter_size") == inter))
    return pl.when(plain).then(2.0).otherwise(3.0)


def expert_terms_of(rows: pl.DataFrame, dtype: str) -> Terms:
    return expert_terms(
        distinct=column(rows, "distinct"),
        pairs=column(rows, "pairs"),
        positions=column(rows, "num_tokens"),
        parameters=column(rows, "parameters"),
        residents=column(rows, "num_experts") / column(rows, "moe_ep_size"),
        hidden=column(rows, "hidden_size"),
        dtype=dtype,
    )


# --- GEMMs: m positions times an n × k matrix ---

GEMM_SHAPE = ["n", "k"]
# A GEMM of a few kilobytes takes 3 to 6 µs inside a graph. A table whose smallest entry is far above that was timed
# outside one, launches included (vLLM 0.24's fp8_block rows: 60 to 300 µs), and says nothing about a served step.
LAUNCH_BOUND_SECONDS = 20e-6


def gemm_rows(table: Table, dtype: str, peaks: Peaks) -> CheckedRows | None:
    rows = table.rows.filter((pl.col("gemm_dtype") == dtype) & (pl.col("n") >= 128) & (pl.col("k") >= 128))
    if rows.height == 0:
        return None
    rows = rows.group_by(["m", "n", "k"]).agg(pl.col("seconds").min()).sort([*GEMM_SHAPE, "m"])
    if peaks.graphs and float(np.quantile(rows["seconds"].to_numpy(), 0.01)) > LAUNCH_BOUND_SECONDS:
        reason = f"timed outside a CUDA graph: no row is shorter than {LAUNCH_BOUND_SECONDS * 1e6:g} µs"
        return CheckedRows(rows=rows.clear(), dropped=(Dropped(kernel="", rows=rows.height, reason=reason),))
    return _checked_gemms(rows, dtype, peaks)


def _checked_gemms(rows: pl.DataFrame, dtype: str, peaks: Peaks) -> CheckedRows:
    weights, seconds, m = column(rows, "n") * column(rows, "k"), column(rows, "seconds"), column(rows, "m")
    fast = weights * BYTES[dtype] > FASTEST * peaks.bytes_per_second * seconds
    only_reads = (weights * BYTES[dtype] >= peaks.bytes_per_second * LAUNCH_BOUND_SECONDS) & (m <= FEW_POSITIONS)
    if only_reads.any() and float(np.mean(fast[only_reads])) > WARM:
        reason = f"{np.mean(fast[only_reads]):.0%} of its rows are faster than memory: timed with a warm cache"
        return CheckedRows(rows=rows.clear(), dropped=(Dropped(kernel="", rows=rows.height, reason=reason),))
    fast |= 2.0 * weights * m > FASTEST * peaks.operations_per_second * seconds
    reason = f"faster than {FASTEST:g} times the memory bandwidth or the matrix units"
    rows, dropped = without(rows, fast, "", reason)
    read_bytes = column(rows, "n") * column(rows, "k") * BYTES[dtype]
    share = read_share(read_bytes, column(rows, "seconds"), column(rows, "m"), peaks.bytes_per_second)
    if share is not None and (reason := too_slow(share)):
        rows, parts = without(rows, np.ones(rows.height, dtype=bool), "", reason)
        dropped += parts
    return CheckedRows(rows=rows, dropped=tuple(dropped))


# --- attention: one query per sequence, by heads of one rank ---

ATTENTION_SHAPE = ["num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype"]
AttentionShape = tuple[int, int, int, int, str]  # values of ATTENTION_SHAPE


def attention_rows(table: Table, shape: AttentionShape | None = None) -> pl.DataFrame:
    """Decode rows, of one shape or of all; context is isl + step tokens. Older tables have no window."""
    rows = defaulted(table.rows, "window_size", 0)
    if shape is not None:
        rows = rows.filter(*(pl.col(name) == value for name, value in zip(ATTENTION_SHAPE, shape, strict=True)))
    rows = rows.with_columns(context=(pl.col("isl") + pl.col("step") - 1).cast(pl.Float64))
    return (
        rows.group_by([*ATTENTION_SHAPE, "batch_size", "context"])
        .agg(pl.col("seconds").min())
        .sort([*ATTENTION_SHAPE, "batch_size", "context"])
    )


def attention_terms_of(rows: pl.DataFrame) -> Terms:
    batch, context, window = (column(rows, n) for n in ("batch_size", "context", "window_size"))
    attended = np.where(window > 0, np.minimum(context + 1.0, window), context + 1.0)
    kv_bytes = np.where(rows["kv_cache_dtype"].to_numpy() == "fp8", 1.0, 2.0)
    heads, kv_heads, dim = (column(rows, n) for n in ("num_heads", "num_key_value_heads", "head_dim"))
    return attention_terms(
        sequences=batch,
        tokens=batch * attended,
        pairs=batch * attended,
        longest=attended,
        heads=heads,
        kv_heads=kv_heads,
        dims=2.0 * dim,
        kv_bytes=kv_bytes,
    )


def defaulted(rows: pl.DataFrame, name: str, value: int) -> pl.DataFrame:
    return rows if name in rows.columns else rows.with_columns(pl.lit(value).alias(name))


def column(rows: pl.DataFrame, name: str) -> FloatArray:
    return rows[name].to_numpy().astype(np.float64)
