"""Sums of parts never contradict the measured rows of whole attention modules."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from lab.tables.modules import LAUNCH_BOUND, measured_modules, measured_shapes, measured_times
from lab.validation.modules import SOURCES, TOLERANCE, ModuleLine, module_lines, sum_of_parts

from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.catalog.module_bounds import module_times
from specmargin.catalog.prices import find_prices
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.kernels.bounds import ModuleBounds, signature
from specmargin.prices.kernels.kinds import attention_kind
from specmargin.prices.kernels.model import SiliconPrices
from specmargin.prices.kernels.terms import stages

KINDS = {"mla", "dsa", "csa", "hca", "gdn"}


@cache
def lines_of(gpu: str) -> list[ModuleLine]:
    return list(module_lines((gpu,)))


@pytest.mark.parametrize("gpu", list(store.SYSTEMS))
def test_no_sum_of_parts_exceeds_its_module_row(gpu: str) -> None:
    for line in lines_of(gpu):
        assert line.worst_ratio <= 1.0 + 1e-9, line


@pytest.mark.parametrize("source", SOURCES)
def test_without_its_rows_a_sum_of_parts_exceeds_them(source: str) -> None:
    """DeepSeek-V4-Pro's attention on B200: the bound does something."""
    measured = next(m for m in measured_modules() if m.table.model == "deepseek-v4-pro")
    prices = find_prices(source, bundled_device("b200"), "sglang", RooflineForm.PER_COMPONENT)
    assert isinstance(prices, SiliconPrices)
    shape, rows = next(measured_shapes(store.SYSTEMS["b200"], "sglang", measured))
    assert np.max(sum_of_parts(shape, rows, replace(prices, bounds=None)) / rows.seconds) > 1.0 + TOLERANCE
    assert np.max(sum_of_parts(shape, rows, prices) / rows.seconds) <= 1.0 + 1e-9


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("gpu", ["b200", "h200"])
def test_rows_left_out_are_rarely_exceeded(gpu: str, source: str) -> None:
    """Every other batch size left out of the bounds: between measured sizes they are interpolated."""
    prices = find_prices(source, bundled_device(gpu), "vllm", RooflineForm.PER_COMPONENT)
    assert isinstance(prices, SiliconPrices)
    kept = {
        key: replace(times, batch=times.batch[::2], seconds_by_batch_context=times.seconds_by_batch_context[::2])
        for key, times in measured_times(gpu).items()
    }
    bounded, ratio = replace(prices, bounds=ModuleBounds(load=lambda: kept)), []
    for measured in measured_modules():
        for shape, rows in measured_shapes(store.SYSTEMS[gpu], "vllm", measured):
            left_out = ~np.isin(rows.rows["batch_size"].to_numpy(), kept["vllm", signature(shape)].batch)
            ratio.append((sum_of_parts(shape, rows, bounded) / rows.seconds)[left_out])
    assert 0.0 < np.mean(np.concatenate(ratio) > 1.0 + TOLERANCE) < 0.025  # 1.9% and 1.0%; 20% without bounds


@pytest.mark.parametrize("gpu", ["h200", "a100"])
def test_bundled_times_are_those_of_the_tables(gpu: str) -> None:
    bundled, measured = module_times(gpu), measured_times(gpu)
    assert list(bundled) == list(measured)
    for key, times in measured.items():
        ratio = bundled[key].seconds_by_batch_context / times.seconds_by_batch_context
        known = ~np.isnan(times.seconds_by_batch_context)
        assert np.array_equal(known, ~np.isnan(ratio))
        assert np.all((ratio[known] <= 1.0) & (ratio[known] > 0.995))
        assert bundled[key].version == times.version


def test_a_gpu_without_measured_modules_has_no_bounds() -> None:
    assert module_times("mi355x") == {}


def test_every_kind_of_module_is_held_against_rows() -> None:
    assert {line.kind for line in lines_of("b200")} == KINDS


def test_a_sum_that_exceeds_its_rows_is_seen() -> None:
    """Rows a tenth faster than those that the prices know."""
    measured = next(m for m in measured_modules() if m.table.kind == "csa")
    prices = find_prices("tables", bundled_device("b200"), "vllm", RooflineForm.PER_COMPONENT)
    for shape, rows in measured_shapes(store.SYSTEMS["b200"], "vllm", measured):
        seconds = sum_of_parts(shape, rows, prices)
        assert np.all(seconds <= rows.seconds * (1.0 + 1e-9))
        faster = replace(rows, rows=rows.rows.with_columns(seconds=rows.rows["seconds"] / 1.1))
        assert np.max(sum_of_parts(shape, faster, prices) / faster.seconds) > 1.0 + TOLERANCE


def test_gemms_of_deepseek_v4s_input_run_at_the_same_time() -> None:
    """vLLM 0.32, models/deepseek_v4/attention.py: one main GEMM and three on auxiliary streams, then two queries."""
    module = next(m.module for m in measured_modules() if m.table.kind == "csa")
    assert [len(stage) for stage in stages(module.projections)] == [4, 2, 1, 1]
    never_quantised = {matrix.name for matrix in module.projections if matrix.precision.name == "bf16"}
    assert never_quantised == {
        "attn.compressor.wkv",
        "attn.compressor.wgate",
        "attn.indexer.compressor.wkv",
        "attn.indexer.compressor.wgate",
        "attn.indexer.weights_proj",
    }


def test_hyper_connections_are_outside_of_the_module() -> None:
    layer = bundled_model("deepseek-v4-flash").groups[0].layer
    module = next(m.module for m in measured_modules() if m.table.kind == "hca")
    assert "hc_attn" in {matrix.name for matrix in layer.projections}
    assert "hc_attn" not in {matrix.name for matrix in module.projections}
    assert any("compressor" in matrix.name for matrix in module.projections)  # not the layers with a window alone


def test_a_layer_that_reuses_a_selection_is_not_priced_with_an_indexer() -> None:
    kinds = {
        attention_kind(group.layer.attention) for group in bundled_model("glm-5.2").groups if group.layer.attention
    }
    assert kinds == {"mla", "dsa"}


def test_launch_bound_rows_only_bound_from_above() -> None:
    lines = [line for line in lines_of("h200") if line.kind == "mla" and line.engine == "vllm"]
    assert LAUNCH_BOUND > 1.0
    assert all(line.launch_bound for line in lines)
    assert all(line.median_ratio < 1.0 for line in lines)
