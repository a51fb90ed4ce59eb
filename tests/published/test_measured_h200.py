"""The measurements on an H200, with their conditions: results computed from their rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from specmargin.catalog.lookup import find_model
from specmargin.catalog.prices import measured_file
from specmargin.errors import InputError
from specmargin.measure.fit import fit_steps, judge
from specmargin.measure.gpu.laws import KernelReport, kernel_report
from specmargin.measure.gpu.shapes import shapes_of
from specmargin.prices.measured_schema import PriceFile
from specmargin.validation.sources import measured_rows
from tests.conftest import ROOT

MOE, DENSE = "vllm-0.26-h200-qwen3-30b-a3b", "vllm-0.26-h200-qwen3-4b"


def _file(name: str) -> PriceFile:
    file = measured_file(name)
    assert file is not None
    return file


def _recorded(name: str) -> dict[str, Any]:
    text = (ROOT / "lab" / "data" / "measurements" / f"{name}.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


# --- steps of vLLM ---


def test_conditions_are_written_down() -> None:
    for name in (MOE, DENSE):
        conditions = _file(name).conditions
        assert "vLLM 0.26.0" in conditions["engine"]
        assert "NVIDIA H200, driver 580" in conditions["machine"]
        assert "MHz" in conditions["clocks"]
        assert conditions["date"] == "2026-11-15"


@pytest.mark.parametrize("name", [MOE, DENSE])
def test_the_surface_is_wide(name: str) -> None:
    rows = [row for row in _file(name).rows if row.kind in ("none", "strangers") and row.run != "pieces"]
    assert len({row.batch for row in rows}) >= 6
    assert len({row.depth for row in rows}) >= 4
    assert len({row.prompt for row in rows}) >= 2


def test_half_of_the_points_predict_the_other_half() -> None:
    """Median ≤ 5%, worst ≤ 12%, for random and for repeated drafts."""
    rows, steps = measured_rows(_file(MOE), find_model("qwen3-30b-a3b"))
    errors = judge(steps, fit_steps(steps)).held_out_errors
    kinds = np.array([row["kind"] for row in rows])
    for kind in ("none", "strangers", "alike"):
        assert np.median(errors[kinds == kind]) <= 0.05
        assert errors[kinds == kind].max() <= 0.12


def test_same_positions_fewer_experts_less_time() -> None:
    """Eight positions of one sequence: random tokens touch 54 experts per layer, repeated ones 8."""
    rows = {(r.batch, r.depth, r.kind): r for r in _file(MOE).rows if r.run == "forced-7" and r.prompt == 512}
    counted = {(r.batch, r.depth, r.kind): r.distinct for r in _file(MOE).rows if r.run == "pieces" and r.prompt == 512}
    assert counted[1, 7, "alike"] == 8.0
    assert counted[1, 7, "strangers"] == pytest.approx(128 * (1 - (1 - 8 / 128) ** 8), rel=0.1)
    assert rows[1, 7, "alike"].seconds < 0.6 * rows[1, 7, "strangers"].seconds


def test_the_earlier_measurement_agrees_up_to_the_host() -> None:
    """Of 46 points within the graph limit, 42 agree within 10%; a host that is faster by 0.3 ms per step and 15 µs per
    sequence explains the other four. Beyond the graph limit the host dominates."""
    fresh = {
        (row.batch, row.depth, row.kind): row.whole_seconds * 1e3
        for row in _file(MOE).rows
        if row.prompt == 512 and row.graph == "full"
    }
    pairs = []
    for row in _recorded("vllm-h200-qwen3-30b-a3b")["rows"]:
        key = row["batch"], row["draft_depth"], "strangers" if row["draft_depth"] else "none"
        if key in fresh:
            pairs.append((row["batch"], row["step_ms"], fresh[key]))
    for row in _recorded("vllm-h200-qwen3-30b-a3b-alike")["rows"]:
        for kind in ("strangers", "alike"):
            pairs.append((row["batch"], row[f"{kind}_ms"], fresh[row["batch"], row["draft_depth"], kind]))
    batch, before, now = (np.array(column) for column in zip(*pairs, strict=True))
    errors = np.abs(now / before - 1.0)
    assert errors.size == 46
    assert int((errors <= 0.1).sum()) == 42
    features = np.stack([np.ones_like(before), batch], axis=1) / before[:, np.newaxis]
    (step, sequence), *_ = np.linalg.lstsq(features, (before - now) / before, rcond=None)
    assert 0.1 < step < 0.6  # ms
    assert 0.005 < sequence < 0.03
    assert np.max(np.abs((now + step + sequence * batch) / before - 1.0)) <= 0.1


def test_steps_beyond_the_graph_limit_run_without_graphs() -> None:
    file = _file(MOE)
    assert file.modes["full"].graph_limit == 512
    for row in file.rows:
        inside = row.batch * (row.depth + 1) <= 512
        assert (row.graph != "none") == inside
    assert file.modes["full"].eager_layer_seconds * file.model.layers > 10e-3


def test_batch_and_depth_cost_more_for_an_moe_than_for_a_dense_model() -> None:
    """Similar active size: from 1 to 16 sequences the MoE's step grows 2.8 times, the dense one's by 15%."""
    growth = {}
    for name in (MOE, DENSE):
        rows = {(r.batch, r.depth): r for r in _file(name).rows if r.kind in ("none", "strangers") and r.prompt == 512}
        plain = {r.batch: r.seconds for r in _file(name).rows if r.kind == "none" and r.prompt == 512}
        growth[name] = plain[16] / plain[1], rows[1, 7].seconds / plain[1]
    assert growth[MOE][0] > 2.5
    assert growth[DENSE][0] < 1.25
    assert growth[MOE][1] > 2.0
    assert growth[DENSE][1] < 1.1


# --- kernels ---


@pytest.fixture(scope="module")
def kernels() -> KernelReport:
    values = _recorded("kernels-h200")
    records = [{"record": "gpu", **values["conditions"]}, *({"record": "row", **row} for row in values["rows"])]
    return kernel_report(records, shapes_of(find_model("qwen3-30b-a3b")), "h200")


def test_the_shipped_laws_are_those_of_the_rows(kernels: KernelReport) -> None:
    shipped = {law["operation"]: law for law in _recorded("kernels-h200")["laws"]}
    for law in kernels.file["laws"]:
        assert law["bytes_per_second"] == pytest.approx(shipped[law["operation"]]["bytes_per_second"], rel=0.02)


def test_a_report_needs_a_finished_measurement() -> None:
    values = _recorded("kernels-h200")
    few = [{"record": "row", **row} for row in values["rows"] if row.get("when") != "after"]
    with pytest.raises(InputError, match="run the same command again to continue"):
        kernel_report([{"record": "gpu", **values["conditions"]}, *few], shapes_of(find_model("qwen3-30b-a3b")), "h200")
