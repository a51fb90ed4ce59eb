"""Sums of parts never contradict the measured rows of whole attention modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.catalog.modules import measured_modules
from specmargin.catalog.prices import find_prices
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.kernels.kinds import attention_kind
from specmargin.prices.kernels.modules import LAUNCH_BOUND, measured_shapes
from specmargin.prices.kernels.terms import stages
from specmargin.validation.modules import TOLERANCE, module_lines, sum_of_parts

# Fitted to the 11 rows that are left without those that stayed in L2: 1.08 at the median.
LAWS_ABOVE = {("gdn", "rtx-pro-6000", "trtllm")}
KINDS = {"mla", "dsa", "csa", "hca", "gdn"}


@pytest.mark.parametrize("gpu", list(store.SYSTEMS))
def test_no_sum_of_parts_exceeds_its_module_row(gpu: str) -> None:
    for line in module_lines((gpu,)):
        if line.source == "tables":
            assert line.worst_ratio <= 1.0 + TOLERANCE, line
        elif line.fitted and (line.kind, line.gpu, line.engine) not in LAWS_ABOVE:
            # A law has a few numbers for all rows of a kind: it is above some rows and below others.
            assert line.median_ratio <= 1.0 + TOLERANCE, line


def test_every_kind_of_module_is_held_against_rows() -> None:
    assert {line.kind for line in module_lines(("b200",))} == KINDS


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
    lines = [line for line in module_lines(("h200",)) if line.kind == "mla" and line.engine == "vllm"]
    assert LAUNCH_BOUND > 1.0
    assert all(line.launch_bound for line in lines)
    assert all(line.median_ratio < 1.0 for line in lines)
