"""Sweeps: two workers, a Ray cluster and one process agree to the byte; killed in the middle, none is run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specmargin.errors import ScenarioError
from specmargin.simulator.sweep import Cell, LocalRunner, RayRunner, make_cells, read_results, sweep
from specmargin.verbs.simulate.request_schema import SimulateRequest, completed
from specmargin.verbs.simulate.serving import run_cell
from specmargin.verbs.sweep import cells_of
from tests.conftest import ROOT

GRID = """
[base]
model = "qwen3.6-35b-a3b"
prices = "datasheet"
depth = 2
requests = 12
isl = 200
osl = 20
[grid]
gpu = ["h200", "b200"]
policy = ["none", "fixed:1", "fixed:2", "schedule", "controller"]
qps = [1, 4, 16, 64, 128]
seed = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""


def grid(folder: Path, text: str = GRID) -> list[Cell]:
    path = folder / "grid.toml"
    path.write_text(text)
    return make_cells(cells_of(str(path)), folder)


def counted(description: dict[str, Any], folder: str) -> dict[str, Any]:
    """A cell that records its run, so that a second run is detected."""
    with (Path(folder) / "ran.txt").open("a") as file:
        file.write(f"{description['policy']} {description['qps']} {description['seed']}\n")
    return {"value": description["seed"]}


def test_cells_are_the_same_on_two_workers_and_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cells = grid(tmp_path, GRID.replace("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "[0, 1]"))
    assert len(cells) == 100
    local = sweep(cells, tmp_path / "local.jsonl", LocalRunner(run=run_cell, workers=2), tmp_path)
    assert (local.ran, local.failed) == (100, 0)
    cluster = sweep(cells, tmp_path / "ray.jsonl", RayRunner(run=run_cell, address="local", workers=2), tmp_path)
    assert not ray.is_initialized()
    assert cluster.ran == 100
    assert (tmp_path / "local.jsonl").read_bytes() == (tmp_path / "ray.jsonl").read_bytes()
    # And in this process, whatever it has run before.
    rows = read_results(tmp_path / "local.jsonl")
    for cell in cells[::17]:
        assert run_cell(cell.description, str(tmp_path)) == rows[cell.key]["result"]


KILLED = """
import sys, time
from pathlib import Path
from tests.unit.test_sweep import grid, counted
from specmargin.simulator.sweep import LocalRunner, sweep
def slow(description, folder):
    time.sleep(0.005)
    return counted(description, folder)
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sweep(grid(folder), folder / "out.jsonl", LocalRunner(run=slow, workers=1), folder)
"""


def test_a_killed_sweep_resumes(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    results = tmp_path / "out.jsonl"
    deadline = time.monotonic() + 60.0
    while not (results.exists() and results.read_bytes().count(b"\n") > 60):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with results.open("ab") as file:
        file.write(b'{"schema": "specmargin.sweep-cell/2", "key": "cut sho')  # as if it was killed while writing
    before = read_results(results)
    assert 60 < len(before) < 500
    ran_before = (tmp_path / "ran.txt").read_text().splitlines()
    swept = sweep(grid(tmp_path), results, LocalRunner(run=counted, workers=1), tmp_path)
    assert swept.ran == 500 - len(before)
    ran = (tmp_path / "ran.txt").read_text().splitlines()
    assert len(ran) == len(ran_before) + swept.ran
    after = read_results(results)
    assert len(after) == 500
    assert all(after[key] == row for key, row in before.items())
    # At most the cell that was running when the sweep was killed is run again.
    assert len(ran_before) - len(before) <= 1
    again = sweep(grid(tmp_path), results, LocalRunner(run=counted, workers=1), tmp_path)
    assert again.ran == 0


def test_a_wider_grid_runs_only_what_is_new(tmp_path: Path) -> None:
    results = tmp_path / "out.jsonl"
    runner = LocalRunner(run=counted, workers=1)
    first = sweep(grid(tmp_path, GRID.replace("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "[0]")), results, runner, tmp_path)
    wider = sweep(grid(tmp_path, GRID.replace("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "[1, 0]")), results, runner, tmp_path)
    assert (first.ran, wider.ran) == (50, 50)


def test_a_cell_that_fails_records_its_error_and_the_rest_run(tmp_path: Path) -> None:
    text = GRID.replace('["h200", "b200"]', '["h200", "h2000"]').replace("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "[0]")
    text = text.replace('policy = ["none", "fixed:1", "fixed:2", "schedule", "controller"]', 'policy = ["none"]')
    cells = grid(tmp_path, text)
    swept = sweep(cells, tmp_path / "out.jsonl", LocalRunner(run=run_cell, workers=1), tmp_path)
    assert (swept.ran, swept.failed) == (10, 5)
    errors = {row["error"] for row in read_results(tmp_path / "out.jsonl").values() if "error" in row}
    assert len(errors) == 1
    assert "h2000" in errors.pop()


def test_the_order_of_workers_does_not_matter(tmp_path: Path) -> None:
    cells = grid(tmp_path)[:40]

    def backwards(cells: Sequence[Cell], folder: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
        for cell in reversed(cells):
            yield cell, {"result": counted(cell.description, folder)}

    sweep(cells, tmp_path / "a.jsonl", LocalRunner(run=counted, workers=1), tmp_path)
    sweep(cells, tmp_path / "b.jsonl", backwards, tmp_path)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_file_that_is_not_a_sweep_result_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "notes.jsonl"
    precious.write_text('{"a": 1}\n')
    with pytest.raises(ScenarioError, match="line 1 is not a sweep result"):
        sweep(grid(tmp_path)[:2], precious, LocalRunner(run=counted, workers=1), tmp_path)
    assert json.loads(precious.read_text()) == {"a": 1}


# --- files ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "seed = []"), "grid.seed has no values"),
        (
            ("qps =", "requests_per_second ="),
            "requests_per_second is not a known field; nearest: sessions_per_second",
        ),
        (("isl =", "prompt ="), "prompt is not a known field"),
        (("qps =", "concurency ="), "concurency is not a known field; nearest: concurrency"),
        (("depth = 2", "depth = 0"), "depth must be at least 1, got 0"),
        (("qps = [1, 4, 16, 64, 128]", ""), "give one load"),
        (("[grid]", "[grid"), "not valid TOML"),
    ],
)
def test_invalid_grids_are_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        grid(tmp_path, GRID.replace(*change))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("seed = 1", "a.toml: model is missing"),
        ('[scenario]\nmodel = "a"', "scenario is not a known field"),
        ('model = "a"\nqps = 3', "name a device"),
        ('model = "a"\ngpu = "b"\nconcurrency = 3\ntrace = "x"', "give one load"),
        ('model = "a"\ngpu = "b"\nhours = [0, 1]', "hours and hourly_qps go together"),
        ('model = "a"\ngpu = "b"\nqps = 3\nhourly_qps = [1, 2]', "hours and hourly_qps go together"),
        ('model = "a"\ngpu = "b"\nqps = 3\nisl = {least = 1}', "isl: a length is a number"),
    ],
)
def test_invalid_scenarios_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ScenarioError, match=message):
        completed(SimulateRequest(model=str(tmp_path / "a.toml")))


@pytest.mark.parametrize("field", ["model", "gpu", "prices", "routing", "acceptance"])
def test_a_changed_file_makes_another_cell(tmp_path: Path, field: str) -> None:
    """Results of a cell are not taken for those of the same names with other contents."""
    description = {"model": "m", "gpu": "g", field: "mine.json:chat"}
    (tmp_path / "mine.json").write_text("1")
    before = make_cells([description], tmp_path)[0].key
    (tmp_path / "mine.json").write_text("2")
    assert make_cells([description], tmp_path)[0].key != before


def test_a_bank_in_parts_makes_another_cell_when_a_part_changes(tmp_path: Path) -> None:
    part = tmp_path / "bank/run" / "part-0" / "rounds.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"1")
    description = {"bank": "bank/run"}
    before = make_cells([description], tmp_path)[0].key
    part.write_bytes(b"2")
    assert make_cells([description], tmp_path)[0].key != before
