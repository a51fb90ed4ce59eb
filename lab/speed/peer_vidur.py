"""Vidur and this simulator on the same recorded traces with the same prices of steps: errors and speed of each.

    python -m lab.speed.peer_vidur

Traces, limits and KV blocks are those of the cells without speculation in lab/data/measurements/served-h200-fourth,
which this simulator was not changed for. Vidur 0.0.26 has no MoE, H200 or profiles of either, so it gets Specmargin's
prices as tables of kernel times, in the keys that it looks up: all but attention by tokens per step, attention by batch
and context, and no times of the host beside launches. What differs is the scheduler and the rest of the server. It is
installed into an environment of its own.
inference-lab takes no traces: it gets the rates and lengths of those of Qwen3-30B-A3B.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lab import DATA, ROOT
from lab.speed import peers
from lab.terminal import console, note, run, table
from lab.validation.cells.observed import Cell, Played, Requests, Steps, figures, read_cells
from lab.validation.cells.predicted import Prices, predict, serving
from specmargin.decisions.pricer import Pricer
from specmargin.errors import InputError
from specmargin.policies.policy import FixedDepth
from specmargin.prices.model import StepPrice
from specmargin.prices.work import Component
from specmargin.simulator.policies import PolicyChoice
from specmargin.simulator.results import Slo
from specmargin.simulator.run import graphs_of, simulate
from specmargin.step import FloatArray, IntArray, Step

PEER = "vidur==0.0.26"
FOLDER = ROOT / ".benchmarks" / "vidur"
RUNNER = Path(__file__).with_name("vidur_runner.py")
CELLS = DATA / "measurements" / "served-h200-fourth"
CALIBRATIONS = DATA / "measurements" / "served-h200-second" / "calibration"
PRICES = (Prices(name="bundled prices"), Prices(name="corrected prices", corrected=CALIBRATIONS))
SHOWN = ("tok/s", "TPOT p50", "TPOT p99", "TTFT p50")
RUNS = 3  # the fastest counts
GRAIN, CHUNK = 64, 32  # context and prompt tokens of a table's rows; the second is Vidur's
ROUNDED = 8  # tokens of a step, up to a multiple of it
TIMEOUT_SECONDS = 1200.0
_DATE = "2026-01-01"  # of every request: Vidur plays one day of a trace
_SLO = Slo()
_QWEN = "qwen3-30b-a3b"
_ITS = {"TPOT p50": "per_token_p50", "TPOT p99": "per_token_p99", "TTFT p50": "ttft_p50"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Figures by cell; seconds (of CPU; inference-lab's of wall time) and output tokens of all cells together."""

    figures: Mapping[str, Mapping[str, float]]
    seconds: float
    tokens: int


# --- what Vidur is given ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Milliseconds of all layers: by tokens from 1 on; by batch from 1 on and context; by context and prompt tokens."""

    tokens: FloatArray
    decode: FloatArray
    prefill: FloatArray


def tables_of(pricer: Pricer, padded: IntArray, *, longest: int, most_tokens: int, every_batch: bool = False) -> Tables:
    """`padded`: by decoding sequences, those of the CUDA graph that runs them. `every_batch`: what Vidur adds by
    rounding tokens up to eights is taken off the attention of decoding sequences, which it does not round.

    Steps beyond the largest graph take at least their launches. Attention that these hide is left out of the tokens'
    times, because Vidur adds it.
    """
    engine, counts, bare = pricer.scenario.engine_time, pricer.scenario.layer_counts, pricer.without_launches()
    contexts = np.arange(0.0, longest + GRAIN, GRAIN)
    if (captured := engine.graph_limit) is None:
        raise InputError("an engine without a largest CUDA graph: its steps have no time by tokens")
    every = np.arange(1, most_tokens + 1)
    sizes = np.array([padded[n] if n < padded.size else n for n in every[:captured]], dtype=np.float64)
    small = bare.verify(Step.uniform(batch=sizes))
    large = bare.verify(Step.prompts(tokens=every[captured:].astype(np.float64)))
    beside = Step.uniform(batch=1).joined(Step.prompts(tokens=captured + 1))
    floor = engine.launch_seconds(beside, counts, np.zeros(()))
    tokens = np.concatenate(
        [
            small.total_seconds - _attention(small),
            np.maximum(large.total_seconds, floor) - _attention(large),
        ]
    )
    batches = np.array([padded[n] for n in range(1, padded.size)], dtype=np.float64)
    sequences = np.arange(1.0, padded.size) / batches  # padded rows have no context
    decode = bare.verify(Step.uniform(batch=batches[:, np.newaxis], context=contexts * sequences[:, np.newaxis]))
    attention = _attention(decode)
    if every_batch:
        exact = np.arange(1, padded.size)
        attention = attention + (tokens[exact - 1] - tokens[-(-exact // ROUNDED) * ROUNDED - 1])[:, np.newaxis]
    chunks = np.arange(CHUNK, most_tokens + 1.0, CHUNK)
    prefill = bare.verify(Step.prompts(tokens=chunks, context=contexts[:, np.newaxis]))
    return Tables(tokens=1e3 * tokens, decode=1e3 * attention, prefill=1e3 * _attention(prefill))


def _attention(price: StepPrice) -> FloatArray:
    return np.asarray(sum(line.seconds for line in price.components if line.component is Component.ATTENTION))


def trace_rows(cell: Cell) -> list[tuple[float, int, int]]:
    """Seconds since the start of the trace, prompt tokens and output tokens of each request that was sent."""
    requests = cell.given["requests"]
    columns = (requests[name] for name in ("sent_seconds", "prompt_tokens", "output_tokens"))
    return sorted(row for row in zip(*columns, strict=True) if row[0] is not None)


def job_of(cell: Cell, prices: Prices, folder: Path, *, every_batch: bool = False) -> dict[str, Any]:
    """Writes the cell's trace and table; the rest is returned."""
    served, rows, name = serving(cell, prices), trace_rows(cell), _name(cell)
    longest = -(-max(prompt + output for _, prompt, output in rows) // GRAIN) * GRAIN
    limits = cell.given["limits"]
    graphs = graphs_of(served, _no_speculation())
    most = limits["max_num_batched_tokens"]
    found = tables_of(served.pricer, graphs.positions[:, 0], longest=longest, most_tokens=most, every_batch=every_batch)
    np.savez(folder / f"{name}.npz", tokens=found.tokens, decode=found.decode, prefill=found.prefill)
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as out:
        written = csv.writer(out)
        written.writerow(("Date", "Time", "PromptTokenCount", "CompletionTokenCount"))
        written.writerows((_DATE, *row) for row in rows)
    return {
        "name": name,
        "date": _DATE,
        "trace": f"{name}.csv",
        "table": f"{name}.npz",
        "prompts": [row[1] for row in rows],
        "window": cell.window,
        "longest": longest,
        "grain": GRAIN,
        "chunk": CHUNK,
        "kv_blocks": served.engine.kv_blocks,
        **limits,
    }


def _no_speculation() -> PolicyChoice:
    return PolicyChoice(name="none", policy=FixedDepth(depth=0), held_depth=None)


# --- what it does with it ---


def environment() -> Path | str:
    """The interpreter of Vidur's environment, or the reason why there is none."""
    python = FOLDER / "environment" / "bin" / "python"
    if python.is_file() and not _failed([str(python), "-c", "import vidur.simulator"]):
        return python
    uv = shutil.which("uv")
    create = (
        [uv, "venv", "-q", "--clear", "--python", sys.executable] if uv else [sys.executable, "-m", "venv", "--clear"]
    )
    install = (
        [uv, "pip", "install", "-q", "--python", str(python)] if uv else [str(python), "-m", "pip", "install", "-q"]
    )
    for command in ([*create, str(FOLDER / "environment")], [*install, PEER]):
        if failure := _failed(command):
            return f"{PEER} cannot be installed ({failure}): not measured"
    return python


def _failed(command: Sequence[str]) -> str:
    """The last line of what went wrong; "" if nothing did."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["no message"])[-1][:100] if done.returncode else ""


def peer(cells: Sequence[Cell], prices: Prices, python: Path, *, every_batch: bool = False) -> Simulated | str:
    """All cells in one process, or the reason why there is nothing. Without assertions (`-O`): Vidur 0.0.26 does not
    reset a counter of a preempted request, and asserts that it is small."""
    folder = FOLDER / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [job_of(cell, prices, folder, every_batch=every_batch) for cell in cells]
    (folder / "jobs.json").write_text(json.dumps({"runs": RUNS, "jobs": jobs}))
    try:
        done = subprocess.run(
            [str(python), "-O", str(RUNNER), str(folder)],
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {TIMEOUT_SECONDS:.0f} s"
    if done.returncode:
        return "failed: " + (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
    found = json.loads((folder / "played.json").read_text())
    runs = [found[job["name"]] for job in jobs]
    return Simulated(
        figures={
            job["name"]: figures(played(one, cell.window), cell.window, _SLO)
            for job, one, cell in zip(jobs, runs, cells, strict=True)
        },
        seconds=sum(one["seconds"] for one in runs),
        tokens=sum(sum(one["tokens"]) for one in runs),
    )


def played(found: Mapping[str, Any], window: tuple[float, float]) -> Played:
    """Cut at the end of the window. Of steps, Vidur's times are not read."""
    arrival, first, last = (np.array(found[name], dtype=np.float64) for name in ("arrival", "first", "last"))
    seconds, numbers, end = np.zeros(0), np.zeros(0, dtype=np.int64), window[1]
    return Played(
        requests=Requests(
            sent=arrival,
            first=np.where(first <= end, first, np.nan),
            last=np.where(last <= end, last, np.nan),
            tokens=np.array(found["tokens"], dtype=np.int64),
        ),
        steps=Steps(ended=seconds, seconds=seconds, depth=numbers, decoding=numbers, waiting=numbers),
        tokens=float(found["window_tokens"]),
    )


# --- this simulator, on the same ---


def own(cells: Sequence[Cell], prices: Prices) -> Simulated:
    every = {_name(cell): cell for cell in cells}
    found = {name: predict(cell, prices, _SLO).figures for name, cell in every.items()}
    spent = [_timed(cell, prices) for cell in cells]
    return Simulated(figures=found, seconds=sum(one for one, _ in spent), tokens=sum(count for _, count in spent))


def _timed(cell: Cell, prices: Prices) -> tuple[float, int]:
    """CPU seconds of the fastest run, after one that compiles and prices."""
    served, best, tokens = serving(cell, prices), float("inf"), 0
    simulate(served)
    for _ in range(RUNS):
        start = time.process_time()
        tokens = simulate(served).committed
        best = min(best, time.process_time() - start)
    return best, tokens


# --- inference-lab, on loads like them ---


def arrivals(cell: Cell) -> str:
    """inference-lab takes no traces: Poisson arrivals at the trace's rate, lengths between its shortest and longest."""
    rows = trace_rows(cell)
    _, prompts, outputs = zip(*rows, strict=True)
    workload = {"arrival_pattern": "poisson", "arrival_rate": cell.given["rate"], "num_requests": len(rows)}
    return peers.peer_config(
        int(cell.given["cache"]["num_gpu_blocks"]), workload, (min(prompts), max(prompts)), (min(outputs), max(outputs))
    )


def inference_lab(cells: Sequence[Cell]) -> Simulated | str:
    """Of cells of Qwen3-30B-A3B. It has no window: its figures are of all requests."""
    found = {}
    for cell in cells:
        one = peers.peer(arrivals(cell), RUNS, 60.0)
        if isinstance(one, str):
            return one
        found[_name(cell)] = one
    return Simulated(
        figures={name: {own: one.metrics[its] for own, its in _ITS.items()} for name, one in found.items()},
        seconds=sum(one.seconds for one in found.values()),
        tokens=sum(one.tokens for one in found.values()),
    )


# --- side by side ---


def errors(cells: Sequence[Cell], found: Simulated) -> dict[str, list[float]]:
    """Predicted over measured, less one, by figure."""
    measured = [figures(cell.played, cell.window, _SLO) for cell in cells]
    return {
        figure: [
            found.figures[_name(cell)].get(figure, np.nan) / each[figure] - 1.0
            for cell, each in zip(cells, measured, strict=True)
        ]
        for figure in SHOWN
    }


def recorded_cells() -> list[Cell]:
    """Those without speculation, which Vidur does not have."""
    return [cell for cell in read_cells(CELLS) if cell.given["contestant"] == "none"]


def _name(cell: Cell) -> str:
    return f"{cell.folder.name}-{cell.name}"


def main() -> None:
    cells, out, python = recorded_cells(), console(), environment()
    qwen = [cell for cell in cells if cell.given["model"]["model"] == _QWEN]
    found: dict[str, Simulated | str] = {}
    for prices in PRICES:
        found[f"specmargin, {prices.name}"] = own(cells, prices)
        for every_batch in (False, True):
            name = f"Vidur, {prices.name}{', every batch size' if every_batch else ''}"
            found[name] = python if isinstance(python, str) else peer(cells, prices, python, every_batch=every_batch)
    found["inference-lab 0.2.1, its roofline"] = inference_lab(qwen)
    shown = table("Median absolute error", ["simulator", "cells"], (*SHOWN, "tokens per second"))
    for name, each in found.items():
        if isinstance(each, str):
            note(out, f"{name}: {each}")
            continue
        if len(each.figures) == len(cells):
            _add(shown, name, cells, each)
        _add(shown, name, qwen, each)
    out.print(shown)


def _add(shown: Table, name: str, cells: Sequence[Cell], found: Simulated) -> None:
    medians = (float(np.median(np.abs(values))) for values in errors(cells, found).values())
    texts = ("–" if np.isnan(one) else f"{one:.1%}" for one in medians)
    shown.add_row(name, str(len(cells)), *texts, f"{found.tokens / found.seconds:,.0f}")


if __name__ == "__main__":
    run(main, __doc__)
