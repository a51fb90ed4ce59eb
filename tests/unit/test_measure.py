"""Measuring: points, records that survive an interruption, fits, and price files that every verb takes."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.app.measure_schema import MeasureRequest
from specmargin.app.request_schema import ScenarioRequest
from specmargin.app.scenarios import scenario_of
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import bundled_model, find_device, find_model
from specmargin.catalog.prices import find_prices, measured_names
from specmargin.cli.measure import _interruptible, _speculative
from specmargin.decisions.pricer import Pricer
from specmargin.errors import CatalogError, InputError
from specmargin.measure.fit import fit_drafter, floor_layer_seconds, steps_of
from specmargin.measure.points import (
    Kind,
    Surface,
    drafter_run,
    forced_runs,
    other_scheduling,
    plain_run,
    scheduling_of,
    scheduling_runs,
)
from specmargin.measure.pricing import Fitted, is_noisy, price_file
from specmargin.measure.prompts import read_prompts
from specmargin.measure.records import Records
from specmargin.measure.steps import Order, measure_steps
from specmargin.measure.vllm.forced import WANTED, ForcedDrafts
from specmargin.measure.vllm.versions import check_version
from specmargin.modes import RooflineForm
from specmargin.prices.measured import MeasuredPrices, Rates
from specmargin.prices.measured_schema import as_text, measured_prices
from specmargin.prices.model import EngineTime
from specmargin.sources import assumed
from specmargin.step import Step
from tests.command_line import run

DEVICE = find_device("h200")
MOE = "vllm-0.26-h200-qwen3-30b-a3b"
SURFACE = Surface(batches=(1, 4, 16, 64, 128), depths=(1, 3, 7), contexts=(512, 4096), long_batches=(1, 16))
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


def _row(run_name: str, point: Any, seconds: float, **changes: Any) -> dict[str, Any]:
    return {
        "record": "row",
        "run": run_name,
        "batch": point.batch,
        "depth": point.depth,
        "kind": str(point.kind),
        "context": float(point.context),
        "prompt": point.context,
        "seconds": seconds,
        "low_seconds": seconds,
        "high_seconds": seconds,
        "whole_seconds": seconds,
        "draft_seconds": 0.0,
        "committed": 1.0,
        "steps": 15,
        "graph": "full",
        "distinct": None,
        **changes,
    }


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
            rows.append(_row(engine_run.name, point, 1.0, distinct=distinct))
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


# --- points ---


def test_full_graphs_need_an_engine_per_depth_and_piecewise_graphs_one_for_all() -> None:
    full = forced_runs(SURFACE, full_graphs=True, routes=True)
    assert [engine_run.name for engine_run in full] == ["forced-1", "forced-3", "forced-7", "pieces"]
    assert [engine_run.drafts for engine_run in full] == [1, 3, 7, 7]
    assert [engine_run.counts for engine_run in full] == [False, False, False, True]
    (one,) = forced_runs(SURFACE, full_graphs=False, routes=True)
    assert {point.depth for point in one.points} == {0, 1, 3, 7}
    assert {point.kind for point in one.points} == {Kind.OFF, Kind.RANDOM, Kind.REPEATED}


def test_a_dense_model_needs_no_repeated_drafts_and_no_counting_run() -> None:
    runs = forced_runs(SURFACE, full_graphs=True, routes=False)
    assert [engine_run.name for engine_run in runs] == ["forced-1", "forced-3", "forced-7"]
    assert all(point.kind is not Kind.REPEATED for engine_run in runs for point in engine_run.points)


def test_other_runners_and_schedulings_get_engines_of_their_own() -> None:
    surface = Surface(batches=(1, 2, 4, 8, 16, 32, 64, 128), depths=(1, 3, 7), contexts=(512, 4096))
    runs = scheduling_runs(surface, {"method": "mtp"})
    assert [each.name for each in runs] == [
        f"{kind}-{name}" for name in ("second-async", "async", "second") for kind in ("none", "drafter")
    ]
    for each in runs:
        scheduling = scheduling_of(each.name)
        assert each.engine_args["async_scheduling"] is ("async" in scheduling)
        assert each.environment == {"VLLM_USE_V2_MODEL_RUNNER": "1" if "second" in scheduling else "0"}
        assert {point.batch for point in each.points} >= {1, 64}
        assert {point.context for point in each.points} == {512}
        assert {point.depth for point in each.points} == ({1, 7} if each.kind == "drafter" else {0})
    assert [each.name for each in scheduling_runs(surface, None)] == ["none-second-async", "none-async", "none-second"]
    assert scheduling_of("forced-3") == scheduling_of("none") == scheduling_of("drafter") == ""


@pytest.mark.parametrize(
    ("wanted", "is_async", "runner", "complaint"),
    [
        ("", False, "vllm.v1.worker.gpu_model_runner", ""),
        ("second-async", True, "vllm.v1.worker.gpu.model_runner", ""),
        ("second-async", False, "vllm.v1.worker.gpu.model_runner", "vLLM turned async scheduling off"),
        ("second", True, "vllm.v1.worker.gpu.model_runner", "vLLM turned async scheduling on"),
        ("second-async", True, "vllm.v1.worker.gpu_model_runner", "with vllm.v1.worker.gpu_model_runner"),
        ("async", True, "vllm.v1.worker.gpu.model_runner", "with vllm.v1.worker.gpu.model_runner"),
    ],
)
def test_steps_of_another_scheduling_are_not_taken_for_the_wanted_one(
    wanted: str, is_async: bool, runner: str, complaint: str
) -> None:
    problem = other_scheduling(wanted, is_async=is_async, runner=runner)
    assert complaint in problem
    assert bool(problem) is bool(complaint)


@pytest.mark.parametrize(("gpu", "engines"), [("a GPU", 9), ("", 3)])
def test_schedulings_are_measured_where_vllm_has_them(
    gpu: str, engines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU vLLM has one model runner and no async scheduling. The environment of a run overrides the user's."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "user")
    program = (
        "import json, os, sys; job = json.load(open(sys.argv[1])); out = open(job['out'], 'a');"
        f"engine = {{'record': 'engine', 'run': job['name'], 'graph_mode': 'none', 'gpu': {gpu!r},"
        " 'runner': os.environ['VLLM_USE_V2_MODEL_RUNNER'], 'async': job['engine_args']['async_scheduling']};"
        "out.write(json.dumps(engine) + chr(10))"
    )
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", program])
    records = Records(path=tmp_path / "rows.jsonl")
    surface = Surface(batches=(1, 8), depths=(1,), contexts=(64,))
    order = Order(model="m", surface=surface, engine_args={}, speculative={"method": "mtp"})
    log = tmp_path / "log"
    measure_steps(order, records, deadline=time.time() + 60.0, log=log, watch=lambda *_: None)
    started = {name: (engine["runner"], engine["async"]) for name, engine in records.engines().items()}
    assert len(started) == engines
    assert started["none"] == started["forced"] == started["drafter"] == ("user", False)
    if gpu:
        assert started["drafter-second-async"] == started["none-second-async"] == ("1", True)
        assert started["drafter-async"] == ("0", True)
        assert started["none-second"] == ("1", False)


def test_longer_contexts_get_a_few_batches_and_no_speculation_is_always_measured() -> None:
    assert [pair for pair in SURFACE.batches_and_contexts() if pair[1] == 4096] == [(1, 4096), (16, 4096)]
    assert {point.kind for point in plain_run(SURFACE).points} == {Kind.NONE}
    drafter = drafter_run(SURFACE, {"method": "eagle3"})
    assert drafter.engine_args["speculative_config"] == {"method": "eagle3", "num_speculative_tokens": 7}


@pytest.mark.parametrize("changes", [{"batches": ()}, {"batches": (0,)}, {"depths": (0,)}, {"contexts": ()}])
def test_impossible_grids_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Surface(**({"batches": (1,), "depths": (1,), "contexts": (512,)} | changes))


class _Config:
    class model_config:  # noqa: N801
        @staticmethod
        def get_vocab_size() -> int:
            return 1000


def test_forced_drafts_are_random_or_repeated_tokens_of_the_wanted_depth() -> None:
    drafts = ForcedDrafts(_Config())
    WANTED.depth, WANTED.repeated = 5, True
    assert drafts.propose([[3, 9], []]) == [[9] * 5, []]
    WANTED.repeated = False
    (tokens,) = drafts.propose([[9]])
    assert len(tokens) == 5
    assert len(set(tokens)) > 1
    WANTED.depth = 0
    assert drafts.propose([[9]]) == [[]]


@pytest.mark.parametrize("version", ["0.26.0", "0.28.1", "0.32.0", "0.32.0+cpu"])
def test_supported_versions(version: str) -> None:
    assert check_version(version) == ""


@pytest.mark.parametrize("version", ["0.25.9", "0.33.0", "1.0.0", "dev"])
def test_unsupported_versions_are_refused_by_name(version: str) -> None:
    assert version in check_version(version)


# --- records ---


def test_a_measurement_resumes_after_a_line_that_was_cut_short(tmp_path: Path) -> None:
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.begin({"model": "m"}, fresh=False)
    plain = plain_run(SURFACE)
    records.append(_row("none", plain.points[0], 1e-3))
    with records.path.open("a") as file:
        file.write('{"record": "row", "run": "no')
    records.begin({"model": "m"}, fresh=False)
    assert records.missing(plain) == plain.points[1:]
    records.append(_row("none", plain.points[1], 1e-3))  # not glued to the line that was cut
    assert records.missing(plain) == plain.points[2:]
    with pytest.raises(InputError, match="another model"):
        records.begin({"model": "other"}, fresh=False)
    with pytest.raises(InputError, match="another model"):
        records.begin({}, fresh=False)


def test_other_flags_take_over_where_nothing_was_measured(tmp_path: Path) -> None:
    """An engine that could not start leaves only its failure: the same command with a flag that fixes it continues."""
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.begin({"engine_args": {}}, fresh=False)
    records.append({"record": "failure", "run": "none", "error": "ended by SIGILL", "final": False})
    records.begin({"engine_args": {"dtype": "float32"}}, fresh=False)
    assert list(records.read()) == [{"record": "measurement", "engine_args": {"dtype": "float32"}}]


def test_failures_are_forgotten_once_the_run_is_done(tmp_path: Path) -> None:
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.append({"record": "failure", "run": "pieces", "error": "out of GPU memory", "final": False})
    assert records.failures() == {"pieces": "out of GPU memory"}
    records.append({"record": "done", "run": "pieces"})
    assert records.failures() == {}


def test_an_engine_that_dies_leaves_its_rows_and_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is replaced by one that measures a point and dies, as an engine out of memory does."""
    fake = tmp_path / "specmargin_fake.py"
    fake.write_text(
        "import json, sys\n"
        "job = json.load(open(sys.argv[-1]))\n"
        "row = dict(job['points'][0], record='row', run=job['name'], prompt=job['points'][0]['context'], seconds=1.0)\n"
        "open(job['out'], 'a').write(json.dumps(row) + '\\n')\n"
        "sys.exit(9)\n"
    )
    monkeypatch.setattr("specmargin.measure.steps.find_spec", lambda _: object())
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", f"exec(open({str(fake)!r}).read())"])
    records = Records(path=tmp_path / "x.rows.jsonl")
    order = Order(model="m", surface=SURFACE, engine_args={})
    with pytest.raises(InputError, match="ended with exit code 9"):
        measure_steps(order, records, deadline=time.time() + 60, log=tmp_path / "log", watch=lambda *_: None)
    assert len(records.missing(plain_run(SURFACE))) == len(plain_run(SURFACE).points) - 1
    assert "none" in records.failures()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGILL, "ended by SIGILL: the CPU lacks instructions .* usually bf16; pass --set dtype=float32"),
        (signal.SIGKILL, "ended by SIGKILL: the system most likely ran out of memory"),
        (signal.SIGSEGV, r"ended by SIGSEGV \(run 'none', output in .*log\)"),
    ],
)
def test_an_engine_that_a_signal_ends_names_it_with_its_likely_cause(
    number: signal.Signals, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier run failed for another reason, which the records still hold."""
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    monkeypatch.setattr("specmargin.measure.steps.find_spec", lambda _: object())
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", program])
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.append({"record": "failure", "run": "none", "error": "stopped: the time limit was reached", "final": False})
    order = Order(model="m", surface=SURFACE, engine_args={})
    with pytest.raises(InputError, match=message):
        measure_steps(order, records, deadline=time.time() + 60, log=tmp_path / "log", watch=lambda *_: None)
    assert number.name in records.failures()["none"]


def test_an_interruption_keeps_the_rows_and_ends_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specmargin.measure.steps.find_spec", lambda _: object())
    started = tmp_path / "pid"
    engine = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", engine])

    def interrupt(_: str, __: int, ___: int) -> None:
        if started.exists() and started.read_text():
            raise KeyboardInterrupt

    records = Records(path=tmp_path / "x.rows.jsonl")
    with pytest.raises(InputError, match="interrupted; 0 rows are saved"), _interruptible(records):
        order = Order(model="m", surface=SURFACE, engine_args={})
        measure_steps(order, records, deadline=time.time() + 60, log=tmp_path / "log", watch=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_nothing_is_started_after_the_deadline(tmp_path: Path) -> None:
    records = Records(path=tmp_path / "x.rows.jsonl")
    order = Order(model="m", surface=SURFACE, engine_args={})
    measure_steps(order, records, deadline=time.time() - 1, log=tmp_path / "log", watch=lambda *_: None)
    assert records.rows() == []


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
            row = _row(engine_run.name, point, 1.0)
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


def test_steps_without_a_floor_get_none(model: Architecture, fitted: Fitted) -> None:
    """Steps that take their kernel time have no floor above the shortest step."""
    from specmargin.measure.fit import fit_steps  # noqa: PLC0415

    steps = fitted.steps
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
    assert "torch is not installed; run: pip install 'specmargin[measure-gpu]'" in result.err


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
    assert MeasureRequest(model="m").surface.depths == (1, 3, 7)
    assert MeasureRequest.model_validate({"model": "m", "depths": ""}).surface.depths == ()


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
    assert _speculative(None, with_head) == {"method": "mtp"}
    assert _speculative(None, without) is None
    assert _speculative("none", with_head) is None
    assert _speculative("{'method': 'eagle3', 'model': 'x'}", with_head) == {"method": "eagle3", "model": "x"}
    with pytest.raises(InputError, match="--drafter: 'eagle' is not a JSON object"):
        _speculative("eagle", without)
