"""Measuring: fits, price files that every verb takes, and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import bundled_model, find_device, find_model
from specmargin.catalog.prices import find_prices, measured_names
from specmargin.decisions.pricer import Pricer
from specmargin.errors import CatalogError, InputError
from specmargin.measure.fit import fit_drafter, fit_steps, floor_layer_seconds, steps_of
from specmargin.measure.points import (
    Kind,
    drafter_run,
    forced_runs,
    plain_run,
    scheduling_of,
    scheduling_runs,
)
from specmargin.measure.price_file import Fitted, fitted_rows, is_noisy, price_file
from specmargin.measure.prompts import read_prompts
from specmargin.measure.records import Records
from specmargin.measure.steps import Order
from specmargin.modes import RooflineForm
from specmargin.prices.measured import MeasuredPrices, Rates
from specmargin.prices.measured_schema import as_text, measured_prices
from specmargin.prices.model import EngineTime
from specmargin.sources import assumed
from specmargin.step import Step
from specmargin.verbs.measure_vllm import MeasureVllmRequest, speculative
from tests.command_line import run
from tests.unit.measured_rows import SURFACE, measured_row

DEVICE = find_device("h200")
MOE = "vllm-0.26-h200-qwen3-30b-a3b"
TRUE_RATES = Rates(
    weight_bytes_per_second=4e12,
    operations_per_second=4e14,
    kv_bytes_per_second=3e12,
    attention_operations_per_second=2e14,
)
TRUE_TIME = EngineTime(
    step_seconds=3e-3,
    sequence_seconds=2e-5,
    position_seconds=8e-6,
    verify_step_seconds=8e-4,
    source=assumed("test"),
)
ENGINE = {
    "vllm": "0.26.0",
    "torch": "2.11.0",
    "python": "3.12",
    "graph_mode": "full_and_piecewise",
    "capture_sizes": [1, 2, 512],
    "async_scheduling": False,
    "attention": "FLASH_ATTN",
    "weights": "dummy",
    "dtype": "bf16",
    "host": "a host",
    "date": "2026-11-15",
    "gpu": "a GPU",
    "driver": "1",
    "cuda": "13",
}


@pytest.fixture(scope="module")
def model() -> Architecture:
    return find_model("qwen3-30b-a3b")


def _alike_distinct(batch: int) -> float:
    return 128.0 * (1.0 - (1.0 - 8.0 / 128.0) ** batch)


def _rows(model: Architecture, noise: float = 0.0) -> list[dict[str, Any]]:
    """Rows of an engine with known prices: graphs up to 512 positions, 20 ms more beyond."""
    random = np.random.default_rng(0)
    rows = []
    runs = [plain_run(SURFACE), *forced_runs(SURFACE, full_graphs=True, routes=True)]
    for engine_run in runs:
        for point in engine_run.points:
            distinct = _alike_distinct(point.batch) if point.kind is Kind.REPEATED else None
            rows.append(measured_row(engine_run.name, point, 1.0, distinct=distinct))
    steps = steps_of(rows, {}, model)
    step = Step.uniform(batch=steps.batch, depth=steps.depth, context=steps.context)
    exact = TRUE_RATES.seconds(steps.works) + TRUE_TIME.seconds(step)
    for row, seconds in zip(rows, exact, strict=True):
        measured = float(seconds) * float(np.exp(noise * random.standard_normal()))
        graph = "full" if row["run"] != "pieces" and row["kind"] != "off" else "piecewise"
        if row["batch"] * (row["depth"] + 1) > 512:
            graph, measured = "none", measured + 20e-3
        elif graph == "piecewise":
            measured = max(measured, 11e-3)
        row["graph"] = graph
        row.update(dict.fromkeys(("seconds", "low_seconds", "high_seconds", "whole_seconds"), measured))
    return rows


@pytest.fixture(scope="module")
def fitted(model: Architecture) -> Fitted:
    return price_file(_rows(model, noise=0.01), {"none": ENGINE}, model)


# --- fit ---


def test_the_fit_recovers_the_prices_of_the_steps(fitted: Fitted) -> None:
    rates, engine_time = fitted.file.rates, fitted.file.modes["full"]
    assert rates.weight_bytes_per_second == pytest.approx(TRUE_RATES.weight_bytes_per_second, rel=0.05)
    assert rates.kv_bytes_per_second == pytest.approx(TRUE_RATES.kv_bytes_per_second, rel=0.3)
    assert engine_time.step_seconds == pytest.approx(TRUE_TIME.step_seconds, rel=0.1)
    assert engine_time.verify_step_seconds == pytest.approx(TRUE_TIME.verify_step_seconds, rel=0.25)
    assert fitted.file.evidence.held_out_median_error < 0.02
    low, high = fitted.file.ranges["weight_bytes_per_second"]
    assert 0.98 * low < TRUE_RATES.weight_bytes_per_second < 1.02 * high


def test_the_fit_recovers_eager_piecewise_and_off_times(fitted: Fitted, model: Architecture) -> None:
    full, pieces = fitted.file.modes["full"], fitted.file.modes["piecewise"]
    assert full.graph_limit == 512
    assert full.eager_layer_seconds * model.layers == pytest.approx(20e-3, rel=0.1)
    assert full.off_floor_layer_seconds * model.layers == pytest.approx(11e-3, rel=0.05)
    assert pieces.floor_layer_seconds * model.layers == pytest.approx(11e-3, rel=0.05)


@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_off_with_a_drafter_costs_its_passes_even_if_the_machine_ran_faster(model: Architecture, speed: float) -> None:
    """Off is priced by the run with the drafter, in which the machine may be faster or slower than before."""
    plain = [row for row in _rows(model) if row["run"] == "none"]
    off = [
        row
        | {"run": "drafter", "kind": "off", "draft_seconds": 2e-3, "low_draft_seconds": 2e-3}
        | dict.fromkeys(("seconds", "low_seconds", "high_seconds", "whole_seconds"), row["seconds"] / speed + 2e-3)
        for row in plain
    ]
    engine_time = price_file([*_rows(model), *off], {"none": ENGINE}, model).file.modes["full"]
    assert engine_time.off_step_seconds == pytest.approx(2e-3, rel=0.1)


def test_repeated_tokens_are_not_fitted_unless_experts_were_counted(model: Architecture) -> None:
    rows = [row | {"distinct": None} for row in _rows(model)]
    assert {row["kind"] for row in price_file(rows, {"none": ENGINE}, model).rows} == {"none", "strangers"}


def test_on_a_noisy_machine_the_fastest_steps_are_fitted(model: Architecture, fitted: Fitted) -> None:
    rows = _rows(model)
    noisy_rows = [row | {"seconds": row["low_seconds"] * 1.4, "high_seconds": row["low_seconds"] * 1.8} for row in rows]
    assert is_noisy(noisy_rows)
    assert not is_noisy(rows)
    file = price_file(noisy_rows, {"none": ENGINE}, model).file
    assert file.evidence.noisy
    assert file.modes["full"].step_seconds == pytest.approx(TRUE_TIME.step_seconds, rel=0.1)


def test_the_fit_recovers_what_a_scheduling_takes_beside_the_kernels(model: Architecture) -> None:
    """Async scheduling on the second runner leaves 0.4 ms per step and 2 µs per sequence, and 0.1 ms per round."""
    rows = _rows(model)
    runs = [drafter_run(SURFACE, {"method": "mtp"}), *scheduling_runs(SURFACE, {"method": "mtp"})[:2]]
    hidden = EngineTime(step_seconds=4e-4, sequence_seconds=2e-6, verify_step_seconds=1e-4)
    times = {"": TRUE_TIME, "second-async": replace(hidden, position_seconds=TRUE_TIME.position_seconds)}
    for engine_run in runs:
        for point in engine_run.points:
            row = measured_row(engine_run.name, point, 1.0)
            step = Step.uniform(batch=point.batch, depth=point.depth, context=point.context)
            time = times[scheduling_of(engine_run.name)]
            kernels = float(TRUE_RATES.seconds(steps_of([row], {}, model).works)[0]) + float(time.seconds(step))
            passes = (1e-3 + 2e-4 * (point.depth - 1)) * (point.depth > 0)
            seconds = dict.fromkeys(("seconds", "low_seconds", "high_seconds", "whole_seconds"), kernels + passes)
            rows.append(row | seconds | {"draft_seconds": 0.0 if scheduling_of(engine_run.name) else passes})
    file = price_file(rows, {"none": ENGINE}, model, drafter_method="mtp").file
    assert list(file.modes) == ["full", "piecewise", "second-async"]
    found = file.modes["second-async"]
    assert found.step_seconds == pytest.approx(4e-4, rel=0.15)
    assert found.sequence_seconds == pytest.approx(2e-6, abs=1e-6)
    assert found.verify_step_seconds == pytest.approx(1e-4, abs=5e-5)
    assert file.modes["full"].step_seconds == pytest.approx(TRUE_TIME.step_seconds, rel=0.05)  # as without those rows
    prices = measured_prices(file, "mine", "second-async")
    assert "full graphs, second model runner, async scheduling" in prices.source.detail
    with pytest.raises(CatalogError, match="no steps were measured in mode 'async'"):
        measured_prices(file, "mine", "async")


def test_first_and_later_passes_of_a_drafter_are_fitted_separately() -> None:
    rows = [
        {"batch": b, "depth": d, "draft_seconds": 2e-3 + 1e-5 * b + (d - 1) * (1e-3 + 2e-5 * b)}
        for b in (1, 4, 16)
        for d in (1, 2, 4)
    ]
    draft_time = fit_drafter(rows, "draft_model")
    assert draft_time.later_seconds == pytest.approx(1e-3)
    assert draft_time.later_sequence_seconds == pytest.approx(2e-5)
    assert draft_time.seconds(np.array([4.0]), np.array([0.0])).tolist() == [0.0]


def test_too_few_points_are_refused(model: Architecture) -> None:
    with pytest.raises(InputError, match="measure more"):
        price_file(_rows(model)[:3], {"none": ENGINE}, model)
    with pytest.raises(InputError, match="nothing was measured"):
        price_file([], {"none": ENGINE}, model)


def test_steps_without_a_floor_get_none(model: Architecture) -> None:
    """Steps that take their kernel time have no floor above the shortest step."""
    _, steps = fitted_rows(_rows(model), model, "full")
    fit = fit_steps(steps)
    assert floor_layer_seconds(fit, steps, model.layers) * model.layers <= float(steps.seconds.min()) * 1.1


# --- price files ---


def _written(fitted: Fitted, tmp_path: Path) -> Path:
    path = tmp_path / "prices.json"
    path.write_text(as_text(fitted.file))
    return path


def test_a_price_file_prices_what_it_was_fitted_to(fitted: Fitted, tmp_path: Path) -> None:
    options = ScenarioRequest(
        model="qwen3-30b-a3b", gpu="h200", prices=str(_written(fitted, tmp_path)), routing="uniform", drafter="free"
    )
    _, scenario = scenario_of(options)
    assert isinstance(scenario.prices, MeasuredPrices)
    assert scenario.engine_time.graph_limit == 512
    pricer = Pricer(scenario)
    assert pricer.verify(Step.uniform(batch=1, depth=0, context=512)).total_seconds == pytest.approx(4.9e-3, rel=0.2)
    assert {str(line.source.kind) for line in pricer.verify(Step.uniform(batch=1)).components} == {"measured"}


def test_a_graph_mode_of_a_price_file_is_chosen_by_name(fitted: Fitted, tmp_path: Path) -> None:
    path = _written(fitted, tmp_path)
    shared = ScenarioRequest(model="qwen3-30b-a3b", gpu="h200", prices=f"{path}:piecewise", drafter="free")
    step = Step.uniform(batch=1, depth=0, context=512)
    assert Pricer(scenario_of(shared)[1]).verify(step).total_seconds == pytest.approx(11e-3, rel=0.05)
    with pytest.raises(CatalogError, match="there are: full, piecewise"):
        find_prices(f"{path}:eager", DEVICE, "vllm", RooflineForm.PER_COMPONENT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "qwen3-4b"}, "was measured with qwen3-30b-a3b"),
        ({"gpus": 2}, "on one GPU"),
        ({"weights": "fp8"}, "GB"),
    ],
)
def test_what_was_not_measured_is_refused(changes: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "h200", "prices": MOE, "drafter": "free"}
    with pytest.raises(CatalogError, match=words):
        scenario_of(ScenarioRequest(**(options | changes)))


def test_a_price_file_with_an_unknown_field_is_refused_by_name(fitted: Fitted, tmp_path: Path) -> None:
    path = _written(fitted, tmp_path)
    values = json.loads(path.read_text())
    values["rates"]["warp_speed"] = 9
    path.write_text(json.dumps(values))
    with pytest.raises(CatalogError, match="warp_speed"):
        find_prices(str(path), DEVICE, "vllm", RooflineForm.PER_COMPONENT)


def test_prompts_are_texts_or_tokens(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"a": [[1, 2, 3]], "b": [[4, 5]]}')
    assert read_prompts(path, "m") == ((1, 2, 3), (4, 5))
    path.write_text("[]")
    with pytest.raises(InputError, match="holds no prompts"):
        read_prompts(path, "m")


# --- engine time ---


def test_verifying_adds_once_per_step_and_off_adds_up_to_its_floor() -> None:
    engine_time = EngineTime(verify_step_seconds=1e-3, off_floor_layer_seconds=1e-3, source=assumed("test"))
    step = Step.uniform(batch=4, depth=np.array([0, 1, 5]))
    assert engine_time.seconds(step).tolist() == [0.0, 1e-3, 1e-3]
    plain = Step.uniform(batch=np.array([1.0, 1.0]))
    assert engine_time.off_seconds(plain, 10, np.array([4e-3, 20e-3])).tolist() == pytest.approx([6e-3, 0.0])


# --- command line ---


def test_without_vllm_one_sentence(tmp_path: Path) -> None:
    result = run("measure", "vllm", "qwen3-30b-a3b", "-o", str(tmp_path / "x.json"), code=2)
    assert "vLLM is not installed" in result.err
    assert result.err.count("\n") == 1


def test_without_torch_one_sentence(tmp_path: Path) -> None:
    result = run("measure", "gpu", "-o", str(tmp_path / "x.json"), code=2)
    assert "torch is not installed; run: pip install torch triton" in result.err


def test_rows_of_another_machine_are_fitted_without_an_engine(model: Architecture, tmp_path: Path) -> None:
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.begin(Order(model="qwen3-30b-a3b", surface=SURFACE, engine_args={}).header(), fresh=True)
    records.append({"record": "engine", "run": "none", **ENGINE})
    for row in _rows(model):
        records.append(row)
    target = tmp_path / "x.json"
    fitted_output = run("measure", "vllm", "qwen3-30b-a3b", "-o", str(target), "--fit-only", "--json")
    assert json.loads(fitted_output.out)["errors"]["all"]["held_out_median_error"] < 0.01
    planned = run("plan", "qwen3-30b-a3b", "--gpu", "h200", "--prices", str(target), "--batch", "1", "--json")
    assert any("x.json" in text for text in json.loads(planned.out)["sources"].values())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--batches", "x", "--batches: 'x' is neither a number nor a range"),
        ("--batches", "0", "batch"),
        ("--minutes", "0", "--minutes must be at least 0.1"),
        ("--steps", "0", "--steps must be at least 1"),
        ("--drafter", "eagle", "--drafter: 'eagle' is not a JSON object"),
    ],
)
def test_options_are_checked_before_an_engine_is_started(option: str, value: str, message: str, tmp_path: Path) -> None:
    result = run("measure", "vllm", "qwen3-30b-a3b", "-o", str(tmp_path / "x.json"), option, value, code=2)
    assert message in result.err
    assert not list(tmp_path.iterdir())


def test_a_grid_may_have_no_depths() -> None:
    assert MeasureVllmRequest(model="m").surface.depths == (1, 3, 7)
    assert MeasureVllmRequest.model_validate({"model": "m", "depths": ""}).surface.depths == ()


@pytest.mark.parametrize("flag", ["nonsense", "a b=1"])
def test_flags_are_names_and_values(flag: str, tmp_path: Path) -> None:
    result = run("measure", "vllm", "qwen3-30b-a3b", "-o", str(tmp_path / "x.json"), "--set", flag, code=2)
    assert "give NAME=VALUE" in result.err


def test_two_price_sources_are_compared() -> None:
    comparison = json.loads(run("validate", MOE, "laws", "--json").out)
    lines = {(line["kind"], line["source"]): line for line in comparison["steps"][MOE]}
    assert lines["all", MOE]["median_error"] < lines["all", "laws"]["median_error"] < 0.2
    assert lines["all", "datasheet"]["median_error"] > 0.35
    assert set(comparison["best_depth"]) == {MOE, "laws", "datasheet"}


def test_comparing_needs_a_model_or_a_measurement() -> None:
    assert "give --model" in run("validate", "laws", "datasheet", code=2).err


def test_every_bundled_measurement_can_be_read() -> None:
    assert MOE in measured_names()
    for name in measured_names():
        prices = find_prices(name, DEVICE, "vllm", RooflineForm.PER_COMPONENT)
        assert isinstance(prices, MeasuredPrices)


def test_a_model_with_a_head_of_its_own_is_measured_with_it() -> None:
    with_head, without = bundled_model("glm-4.5-air"), bundled_model("qwen3-30b-a3b")
    assert speculative(None, with_head) == {"method": "mtp"}
    assert speculative(None, without) is None
    assert speculative("none", with_head) is None
    assert speculative("{'method': 'eagle3', 'model': 'x'}", with_head) == {"method": "eagle3", "model": "x"}
    with pytest.raises(InputError, match="--drafter: 'eagle' is not a JSON object"):
        speculative("eagle", without)
