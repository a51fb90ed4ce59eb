"""What Vidur is given of a recorded cell, what is read of its answer, and what is said where it cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.speed import peer_vidur, peers
from lab.speed.peer_vidur import CHUNK, GRAIN, PRICES, Tables, recorded_cells, tables_of
from lab.validation.cells.observed import Cell, figures
from lab.validation.cells.predicted import serving

from specmargin.decisions.pricer import Pricer
from specmargin.simulator.results import Slo
from specmargin.step import Step

SIZES = (0, 1, 2, 4, 4, 6, 6, 8, 8, 12, 12, 12, 12)  # of the CUDA graph, by sequences


@pytest.fixture(scope="module")
def cell() -> Cell:
    return next(one for one in recorded_cells() if one.name == "qwen-code-30-none")


@pytest.fixture(scope="module")
def pricer(cell: Cell) -> Pricer:
    return serving(cell, PRICES[1]).pricer


def _tables(pricer: Pricer, *, every_batch: bool = False) -> Tables:
    return tables_of(pricer, np.array(SIZES), longest=1024, most_tokens=1024, every_batch=every_batch)


def _milliseconds(pricer: Pricer, step: Step) -> float:
    return 1e3 * float(np.ravel(pricer.without_launches().verify(step).total_seconds)[0])


def test_the_parts_of_a_decode_step_add_up_to_its_price(pricer: Pricer) -> None:
    tables = _tables(pricer)
    step = Step.uniform(batch=8, context=640)
    assert tables.tokens[8 - 1] + tables.decode[8 - 1, 640 // GRAIN] == pytest.approx(_milliseconds(pricer, step))


def test_every_batch_has_its_own_price_although_tokens_are_rounded(pricer: Pricer) -> None:
    tables = _tables(pricer, every_batch=True)
    step = Step.uniform(batch=4, context=640 * 3 / 4)  # three sequences in the graph of four
    assert tables.tokens[8 - 1] + tables.decode[3 - 1, 640 // GRAIN] == pytest.approx(_milliseconds(pricer, step))


def test_a_prompt_takes_its_kernels_or_its_launches(pricer: Pricer) -> None:
    tables, time = _tables(pricer), pricer.scenario.engine_time
    found = tables.tokens[1024 - 1] + tables.prefill[0, 1024 // CHUNK - 1]
    beside = Step.uniform(batch=1).joined(Step.prompts(tokens=1024))
    launched = 1e3 * float(time.launch_seconds(beside, pricer.scenario.layer_counts, np.zeros(())))
    kernels = _milliseconds(pricer, Step.prompts(tokens=1024))
    assert found == pytest.approx(max(launched, kernels))


def test_requests_that_were_not_sent_are_no_part_of_the_trace(cell: Cell) -> None:
    sent: list[float | None] = [2.0, None, 1.0]
    requests = {"sent_seconds": sent, "prompt_tokens": [5, 6, 7], "output_tokens": [8, 9, 10]}
    changed = Cell(folder=cell.folder, given={**cell.given, "requests": requests}, played=cell.played)
    assert peer_vidur.trace_rows(changed) == [(1.0, 7, 10), (2.0, 5, 8)]


def test_a_job_has_the_limits_and_blocks_of_the_cell(cell: Cell, tmp_path: Path) -> None:
    job = peer_vidur.job_of(cell, PRICES[0], tmp_path)
    assert job["kv_blocks"] == int(cell.given["cache"]["num_gpu_blocks"])
    assert (job["max_num_seqs"], job["max_num_batched_tokens"]) == (256, 8192)
    lines = (tmp_path / job["trace"]).read_text().splitlines()
    assert lines[0] == "Date,Time,PromptTokenCount,CompletionTokenCount"
    assert len(lines) == 1 + len(job["prompts"])
    table = np.load(tmp_path / job["table"])
    assert table["decode"].shape == (256, job["longest"] // GRAIN + 1)
    assert table["prefill"].shape == (job["longest"] // GRAIN + 1, 8192 // CHUNK)
    assert table["tokens"].shape == (8192,)
    assert all((table[name] > 0.0).all() for name in ("decode", "prefill", "tokens"))


def test_what_ends_after_the_window_did_not_happen() -> None:
    found: dict[str, Any] = {"arrival": [1, 2], "first": [2, 4], "last": [3, 9], "tokens": [5, 6], "window_tokens": 7}
    played = peer_vidur.played(found, (0.0, 4.0))
    assert played.requests.first.tolist() == [2.0, 4.0]
    assert np.isnan(played.requests.last).tolist() == [False, True]
    assert played.tokens == 7.0


def test_where_it_cannot_be_installed_it_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer_vidur, "FOLDER", tmp_path)
    monkeypatch.setattr(peer_vidur, "_failed", lambda _: "no such package")
    assert peer_vidur.environment() == "vidur==0.0.26 cannot be installed (no such package): not measured"


def test_a_run_that_fails_says_why(cell: Cell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer_vidur, "FOLDER", tmp_path)
    monkeypatch.setattr(peer_vidur, "RUNNER", tmp_path / "none.py")
    found = peer_vidur.peer([cell], PRICES[0], Path("false"))
    assert found == "failed: no message"


def test_inference_lab_gets_the_rate_and_the_range_of_lengths(cell: Cell) -> None:
    workload = json.loads(peer_vidur.arrivals(cell))["workload"]
    outputs = [output for _, _, output in peer_vidur.trace_rows(cell)]
    assert workload["arrival_rate"] == cell.given["rate"]
    assert workload["num_requests"] == len(outputs)
    assert workload["output_len_dist"] == {"type": "uniform", "min": min(outputs), "max": max(outputs)}


def test_errors_are_of_what_was_predicted(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = figures(cell.played, cell.window, Slo())
    doubled = {its: 2.0 * measured[own] for own, its in peer_vidur._ITS.items()}
    monkeypatch.setattr(peers, "peer", lambda *_: peers.PeerRun(seconds=0.5, tokens=100, metrics=doubled))
    found = peer_vidur.inference_lab([cell])
    assert isinstance(found, peer_vidur.Simulated)
    errors = peer_vidur.errors([cell], found)
    assert errors["TPOT p50"] == pytest.approx([1.0])
    assert np.isnan(errors["tok/s"]).all()  # it has no window
