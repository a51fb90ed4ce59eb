"""Rows of kernel tables that cannot be true, or that no engine runs, price nothing, and are dropped by name."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from specmargin.architecture.precision import PRECISIONS
from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.lookup import find_device, find_model
from specmargin.catalog.prices import find_prices
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import features
from specmargin.prices.kernels.checks import Peaks
from specmargin.prices.kernels.store import Table
from specmargin.prices.work import Component
from specmargin.step import Step
from tests.scenarios import pricer

PEAKS = Peaks(bytes_per_second=1e12, operations_per_second=1e15)
TOKENS = (1, 2, 4, 8, 16, 32, 64)
HIDDEN, INTER, EXPERTS, TOPK = 4096, 1024, 64, 4
EXPERT_BYTES = 3.0 * HIDDEN * INTER  # in fp8


def _experts(share: float, kernel: str = "kernel", **changes: float) -> pl.DataFrame:
    """Rows that read at this share of the bandwidth; `changes`: factors on the time, by number of tokens."""
    rows = []
    for tokens in TOKENS:
        distinct, _ = features.expert_load(tokens, EXPERTS, TOPK, 1)
        seconds = 20e-6 + distinct * EXPERT_BYTES / (share * PEAKS.bytes_per_second)
        rows.append(seconds * changes.get(f"t{tokens}", 1.0))
    return pl.DataFrame(
        {
            "moe_dtype": "fp8",
            "distribution": "balanced",
            "num_tokens": TOKENS,
            "hidden_size": HIDDEN,
            "inter_size": INTER,
            "topk": TOPK,
            "num_experts": EXPERTS,
            "moe_tp_size": 1,
            "moe_ep_size": 1,
            "kernel_source": kernel,
            "seconds": rows,
        }
    )


def _checked(rows: pl.DataFrame, peaks: Peaks = PEAKS) -> features.CheckedRows:
    checked = features.expert_rows(Table(system="s", engine="e", version="1", rows=rows), "fp8", peaks)
    assert checked is not None
    return checked


def test_good_rows_stay() -> None:
    checked = _checked(_experts(0.9))
    assert checked.rows.height == len(TOKENS)
    assert checked.dropped == ()


def test_a_kernel_that_reads_at_a_fraction_of_the_bandwidth_is_dropped_by_name() -> None:
    checked = _checked(_experts(0.15, kernel="slow_kernel"))
    assert checked.rows.height == 0
    (dropped,) = checked.dropped
    assert (dropped.kernel, dropped.rows) == ("slow_kernel", len(TOKENS))
    assert "% of the memory bandwidth" in dropped.reason


def test_rows_faster_than_memory_are_dropped_with_their_shape() -> None:
    checked = _checked(_experts(0.9, t64=0.5))
    assert checked.rows.height == 0
    assert "faster than 1.03 times the memory bandwidth" in checked.dropped[0].reason


def test_reads_that_a_large_cache_served_are_dropped_alone() -> None:
    """The 4 experts of one token fit into 1.5 times a cache of 64 MB, the 8 of two do not."""
    checked = _checked(_experts(0.9), Peaks(bytes_per_second=1e12, operations_per_second=1e15, cache_bytes=64e6))
    assert sorted(checked.rows["num_tokens"]) == list(TOKENS[1:])
    assert "level-2 cache" in checked.dropped[0].reason


def test_a_row_faster_than_both_neighbours_is_dropped() -> None:
    checked = _checked(_experts(0.45, t8=0.47))
    assert 8 not in checked.rows["num_tokens"]
    assert checked.rows.height == len(TOKENS) - 1
    assert checked.dropped[0].reason == "half of the time of both neighbours"


def _gemms(seconds: float, count: int = 40) -> Table:
    shapes: dict[str, Any] = {
        "gemm_dtype": "fp8",
        "m": [1] * count,
        "n": 4096,
        "k": [4096 + 128 * i for i in range(count)],
    }
    return Table(system="s", engine="e", version="1", rows=pl.DataFrame({**shapes, "seconds": seconds}))


def test_gemms_timed_outside_a_graph_or_with_a_warm_cache_are_dropped_as_a_table() -> None:
    launch_bound = features.gemm_rows(_gemms(60e-6), "fp8", PEAKS)
    assert launch_bound is not None
    assert launch_bound.rows.height == 0
    assert "outside a CUDA graph" in launch_bound.dropped[0].reason
    warm = features.gemm_rows(_gemms(6e-6), "fp8", Peaks(bytes_per_second=0.5e12))
    assert warm is not None
    assert warm.rows.height == 0
    assert "warm cache" in warm.dropped[0].reason
    eager = features.gemm_rows(_gemms(60e-6), "fp8", Peaks(bytes_per_second=1e12, graphs=False))
    assert eager is not None
    assert eager.rows.height == 40


def test_what_was_dropped_is_in_the_catalog_with_the_reason() -> None:
    dropped = read_bundled("laws.json")["dropped"]
    slow = [
        e for e in dropped if (e["gpu"], e["engine"], e["operation"], e["dtype"]) == ("h200", "vllm", "experts", "fp8")
    ]
    assert any("of the memory bandwidth" in entry["reason"] for entry in slow)
    assert any((e["gpu"], e["operation"]) == ("rtx-pro-6000", "csa") for e in dropped)


@pytest.mark.parametrize("prices", ["tables", "laws"])
def test_a_price_names_the_dropped_table_that_it_does_without(prices: str) -> None:
    architecture = find_model("qwen3-30b-a3b", weights=PRECISIONS["fp8"])
    priced = pricer(
        "qwen3-30b-a3b",
        prices=find_prices(prices, find_device("h200"), "vllm", RooflineForm.PER_COMPONENT),
        architecture=architecture,
    ).verify(Step.uniform(batch=8))
    (experts,) = (line for line in priced.components if line.component is Component.ROUTED_EXPERTS)
    assert "in place of the table of vllm 0.24.0 fp8" in experts.source.detail
    assert "of the memory bandwidth" in experts.source.detail


def test_rows_that_no_measured_step_has_seen_are_marked() -> None:
    assert "unverified" not in _experts_source("h200", "fp8-block")
    assert "unverified: no measured step" in _experts_source("rtx-pro-6000", "nvfp4")


def _experts_source(gpu: str, weights: str) -> str:
    priced = pricer(
        "qwen3-30b-a3b",
        gpu=gpu,
        prices=find_prices(None, find_device(gpu), "vllm", RooflineForm.PER_COMPONENT),
        architecture=find_model("qwen3-30b-a3b", weights=PRECISIONS[weights]),
    ).verify(Step.uniform(batch=8))
    return next(line for line in priced.components if line.component is Component.ROUTED_EXPERTS).source.detail
