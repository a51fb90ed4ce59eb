"""Rows of the measured collectives: all-reduce by message size, and the all-to-all of routed positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from specmargin.prices.kernels import store


def all_reduce_rows(table: store.Table) -> pl.DataFrame:
    """Inside a CUDA graph where the table has both; `bytes` is the message of one rank."""
    rows = table.rows
    if "backend" in rows.columns:
        rows = rows.filter(pl.col("backend").str.ends_with("graph"))
    elements = pl.when(pl.col("allreduce_dtype").is_in(["bfloat16", "float16", "half"])).then(2.0).otherwise(1.0)
    return (
        rows.with_columns(bytes=pl.col("message_size") * elements)
        .group_by(["num_gpus", "bytes"])
        .agg(pl.col("seconds").min())
        .sort(["num_gpus", "bytes"])
    )


def all_to_all_rows(system: str, engine: str) -> tuple[str, pl.DataFrame] | None:
    """Engine version, and the seconds of a dispatch or a combine (their mean), by the faster of DeepEP's two modes.

    `bytes` is what a rank sends: its positions times the ranks that hold their k experts.
    """
    parts = [part for file, read in _ALL_TO_ALL for part in _all_to_all_part(system, engine, file, read)]
    if not parts:
        return None
    version = parts[0][0]
    rows = pl.concat([rows for part_version, rows in parts if part_version == version])
    keys = ["ranks", "hidden_size", "topk", "num_experts", "num_tokens"]
    touched = pl.col("ranks") * (1.0 - (1.0 - 1.0 / pl.col("ranks")).pow(pl.col("topk")))
    best = rows.group_by(keys).agg(pl.col("seconds").min())
    return version, best.with_columns(bytes=pl.col("num_tokens") * touched * pl.col("hidden_size") * 2.0).sort("bytes")


def _all_to_all_part(
    system: str, engine: str, file: str, read: Callable[[pl.DataFrame], pl.DataFrame]
) -> Iterator[tuple[str, pl.DataFrame]]:
    for path in store.versions(system, "comm", engine, file)[:1]:
        per_node = 4 if system.startswith("gb") else 8  # Grace trays hold four
        rows = read(store.read(path, latency=None).with_columns(gpus_per_node=pl.lit(per_node)))
        columns = ["ranks", "hidden_size", "topk", "num_experts", "num_tokens", "seconds"]
        yield path.parent.name, rows.select(pl.col(name).cast(pl.Float64) for name in columns)


def _moe_a2a(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per phase; times in microseconds."""
    keys = ["comm_backend", "ep_size", "hidden_size", "topk", "num_experts", "num_tokens"]
    return (
        rows.filter(pl.col("comm_dtype").is_in(["default", "bfloat16"]))
        .group_by([*keys, "phase"])
        .agg(seconds=(pl.col("transmit_us") + pl.col("notify_us")).min() * 1e-6)
        .group_by(keys)
        .agg(pl.col("seconds").mean(), pl.len().alias("phases"))
        .filter(pl.col("phases") == 2)
        .rename({"ep_size": "ranks"})
    )


def _deepep(dispatch: str, combine: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Both phases in one row; the number of GPUs per node is not in it."""

    def read(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(
            ranks=pl.col("node_num") * pl.col("gpus_per_node"),
            topk="num_topk",
            num_tokens="num_token",
            seconds=(pl.col(dispatch) + pl.col(combine)) * 0.5e-6,
        )

    return read


_ALL_TO_ALL = (
    ("moe_a2a_perf", _moe_a2a),
    ("wideep_deepep_ll_perf", _deepep("dispatch_avg_t_us", "combine_avg_t_us")),
    ("wideep_deepep_normal_perf", _deepep("dispatch_transmit_us", "combine_transmit_us")),
)
