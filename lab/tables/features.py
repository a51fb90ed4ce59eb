"""From rows of a measured table to the features of a law, where only the fit of the laws needs them."""

from __future__ import annotations

import polars as pl

from specmargin.prices.kernels.checks import FASTEST
from specmargin.prices.kernels.features import column, defaulted
from specmargin.prices.kernels.law import Terms
from specmargin.prices.kernels.store import Table
from specmargin.prices.kernels.terms import gemm_terms
from specmargin.step import IntArray


def gemm_terms_of(rows: pl.DataFrame, dtype: str) -> Terms:
    return gemm_terms(column(rows, "m"), column(rows, "n"), column(rows, "k"), dtype)


def prefill_rows(table: Table) -> pl.DataFrame:
    """Whole prompts without a prefix, in bf16, long enough that attention computes rather than reads."""
    rows = (
        defaulted(defaulted(table.rows, "window_size", 0), "step", 0)
        .filter((pl.col("step") == 0) & (pl.col("window_size") == 0) & (pl.col("kv_cache_dtype") == "bfloat16"))
        .filter(pl.col("isl") >= 64)
    )
    keys = ["num_heads", "num_key_value_heads", "head_dim", "batch_size", "isl"]
    return rows.group_by(keys).agg(pl.col("seconds").min()).sort(keys)


def prefill_terms_of(rows: pl.DataFrame) -> Terms:
    batch, isl, heads = (column(rows, n) for n in ("batch_size", "isl", "num_heads"))
    kv_heads, dim = column(rows, "num_key_value_heads"), column(rows, "head_dim")
    pairs = batch * isl * (isl + 1.0) / 2.0
    return Terms(bytes=batch * isl * (2.0 * kv_heads + 2.0 * heads) * dim * 2.0, operations=pairs * heads * 4.0 * dim)


# --- whole attention modules (MLA, DSA, CSA, HCA), of which the fit subtracts the GEMMs ---


def module_rows(table: Table, table_models: tuple[str, ...]) -> pl.DataFrame:
    """`table_models`: ends of the model's names. Older tables have one model and do not name it."""
    keys = ["num_heads", "kv_cache_dtype", "gemm_type", "batch_size", "context"]
    rows = table.rows
    if "model" in rows.columns:
        rows = rows.filter(pl.any_horizontal(pl.col("model").str.ends_with(name) for name in table_models))
    rows = rows.with_columns(context=(pl.col("isl") + pl.col("step") - 1).cast(pl.Float64))
    return rows.group_by(keys).agg(pl.col("seconds").min()).sort(keys)


# --- GatedDeltaNet: the recurrent update and the convolution before it ---


DELTA_NET_TAPS = 3  # entries that the convolution keeps per channel: a kernel of 4


def delta_net_rows(table: Table, *, bandwidth: float) -> pl.DataFrame:
    """Without rows that move their states faster than memory: small batches whose states stayed in L2 between repeats.

    In a served step the weights of the other layers evict them. Half of the rows on an L40S are of this kind.
    """
    keys = ["num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "batch_size"]
    decode = table.rows.filter((pl.col("phase") == "generation") & (pl.col("seq_len") == 1))
    kernels = decode.group_by([*keys, "kernel_source"]).agg(pl.col("seconds").min())
    return (
        kernels.group_by(keys)
        .agg(pl.col("seconds").sum(), pl.len().alias("kernels"))
        .filter(pl.col("kernels") >= 2)
        .filter(2.0 * _state_bytes() <= FASTEST * bandwidth * pl.col("seconds"))
        .sort(keys)
    )


def _state_bytes() -> pl.Expr:
    """fp32 states of all sequences."""
    return 4.0 * pl.col("batch_size") * pl.col("num_v_heads") * pl.col("head_k_dim") * pl.col("head_v_dim")


def shape_numbers(rows: pl.DataFrame, columns: list[str]) -> IntArray:
    return rows.select(pl.struct(columns).rank("dense").cast(pl.Int64)).to_series().to_numpy()
