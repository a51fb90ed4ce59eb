"""Verify attention against vLLM's kernels measured on an H200 (lab/data/measurements/vllm-0.32-h200-kernels.json)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from specmargin.architecture.precision import BF16
from specmargin.architecture.types import GroupedAttention, LatentAttention
from specmargin.catalog.lookup import bundled_device
from specmargin.prices.attention_kernels import Queries, attention_kernel
from specmargin.prices.kernels.terms import gemm_terms
from specmargin.prices.kernels.weight_only import weight_only_book
from specmargin.prices.triton_mla import triton_mla_price
from specmargin.step import Step

MEASURED = Path(__file__).resolve().parents[2] / "lab/data/measurements/vllm-0.32-h200-kernels.json"
Row = dict[str, float]


@cache
def rows(kernel: str) -> list[Row]:
    tables = [table for table in json.loads(MEASURED.read_text())["kernels"] if table["kernel"] == kernel]
    return [dict(zip(table["columns"], row, strict=True)) for table in tables for row in table["rows"]]


def by_queries(kernel: str) -> list[dict[float, float]]:
    """Microseconds by queries, of each shape, batch and context."""
    found: dict[tuple[float, ...], dict[float, float]] = {}
    for row in rows(kernel):
        key = tuple(value for name, value in row.items() if name not in ("queries", "us"))
        found.setdefault(key, {})[row["queries"]] = row["us"]
    return list(found.values())


def test_triton_mla_by_its_grid() -> None:
    errors = []
    for row in rows("Triton MLA"):
        attention = LatentAttention(heads=int(row["heads"]), latent_dim=512, rope_dim=64)
        step = Step.uniform(batch=row["batch"], depth=row["queries"] - 1, context=row["context"])
        price = triton_mla_price(bundled_device("h200"), attention, step, kv=BF16, ranks=1)
        errors.append(float(price.seconds) * 1e6 / row["us"] - 1.0)
    assert len(errors) > 200
    assert np.median(np.abs(errors)) < 0.09
    assert np.quantile(np.abs(errors), 0.9) < 0.25


def test_triton_mla_takes_a_query_as_a_sequence() -> None:
    times = {(r["heads"], r["batch"], r["context"], r["queries"]): r["us"] for r in rows("Triton MLA")}
    ratios = [
        us / times[heads, batch * queries, context, 1.0]
        for (heads, batch, context, queries), us in times.items()
        if queries > 1 and (heads, batch * queries, context, 1.0) in times
    ]
    assert len(ratios) > 50
    assert 0.9 < np.median(ratios) < 1.0
    assert 0.75 < min(ratios) < max(ratios) < 1.15  # least where the queries' cache fits in L2


def test_flash_attention_3_reads_once() -> None:
    assert max(times[8] / times[1] for times in by_queries("FlashAttention 3")) < 1.25


@pytest.mark.parametrize(("kernel", "least"), [("FlashAttention 2", 10.0), ("Triton unified attention", 7.0)])
def test_others_lose_their_splits_with_the_second_query(kernel: str, least: float) -> None:
    longest = [row for row in by_queries(kernel) if row[1] > 0]
    assert max(times[2] / times[1] for times in longest) > least
    assert np.median([times[8] / times[2] for times in longest]) < 1.05


def test_triton_walks() -> None:
    """Where fewer blocks than multiprocessors walk a cache that is not in L2: batch 1, from 32k tokens on."""
    for row in rows("Triton unified attention"):
        if row["batch"] > 1 or row["queries"] == 1 or row["context"] < 32_768:
            continue
        heads, kv_heads, dim = (int(row[name]) for name in ("heads", "kv_heads", "dim"))
        attention = GroupedAttention(heads=heads, kv_heads=kv_heads, key_dim=dim, value_dim=dim, sinks=True)
        chosen = attention_kernel("vllm", "sm_120", attention, BF16)
        assert chosen.queries is Queries.UNSPLIT
        assert chosen.walk is not None
        assert chosen.walk.seconds(2 * row["dim"]) * row["context"] * 1e6 == pytest.approx(row["us"], rel=0.1)


def test_marlin_on_hopper_is_as_measured() -> None:
    """Dense int4 matrices, 1 to 512 positions."""
    entry = weight_only_book(bundled_device("h200")).gemm("vllm", "int4-g128")
    assert entry is not None
    errors = []
    for row in rows("Marlin int4 g128"):
        terms = gemm_terms(np.array([row["positions"]]), row["outputs"], row["inputs"], "int4_wo")
        errors.append(float(entry.law.seconds(terms)[0]) * 1e6 / row["us"] - 1.0)
    assert np.median(np.abs(errors)) <= 0.08
    assert np.quantile(np.abs(errors), 0.9) <= 0.2
