"""Fixed depths, the plan's table and the controller take turns inside one vLLM on a GPU, over a swing of load.

    specmargin plan qwen3-30b-a3b … --policy POLICY.json       its options: docs/results/vllm-h200.md
    python -m lab.gpu.swing make FOLDER POLICY.json [BANK.npz]    model folders, policy and the jobs
    python -m lab.gpu.swing run FOLDER                  FOLDER/swing.json
    python -m lab.gpu.swing gates FOLDER [SECONDS]      FOLDER/gates.json: an engine with adaptive verification,
                                                               which measures once there is no FOLDER/wait
    python -m lab.gpu.swing plain FOLDER                FOLDER/plain.json: an engine without speculation

One engine under vLLM's defaults (second model runner, async scheduling, full graphs), dummy weights, synthetic
acceptance of two kinds of traffic, random drafts. The plug-in itself asks for the graphs of every depth. At each load
and traffic the controller learns first; then contestants take turns: each depth without the plug-in, the controller,
and the controller with the table's depth as its only candidate. The table is the depth that it names at that load,
without the plug-in. Overhead is the difference of whole rounds with and without the plug-in at the same depth.

`gates` has vLLM's adaptive verification enabled and replays a bank (`lab/gpu/replay.py`), one kind of traffic at
a time: vLLM's gate as shipped and with an honest curve, Specmargin's gate with its controller, the controller alone,
and fixed depths verified whole, which tie this engine to the first. All gates share vLLM's acceptance estimator; where
it has diverged, it is restarted and the load is played again. Before the first block of a load every contestant plays
one turn that is not counted, and a turn in which a round takes much longer than the others is played again: kernels are
compiled when they first meet a shape, once in the life of a server. The result says how many were.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from lab.gpu.gate_turns import GateSwing, show
from lab.gpu.jobs import VOCABULARY, head_folder, model_folder
from lab.gpu.report import constant, phase_of
from lab.gpu.rounds import Engine
from lab.gpu.turns import DEPTH, PROMPT_TOKENS, TRAFFIC, Swing

MODEL = "qwen3-30b-a3b"
LOADS = [1, 4, 16, 64, 128, 256]
SURVIVAL = [round(sum(rate**depth for rate in TRAFFIC.values()) / 2, 4) for depth in range(1, DEPTH + 1)]  # planned for
GATE_SECONDS = 860.0
GATE_WEIGHT = {1: 2.0, 4: 1.4, 16: 1.4}  # of a load's share of the time; 1 for the others


def make(folder: Path, policy: Path, bank: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "swing.policy.json").write_text(policy.read_text())
    engine = {
        "model": model_folder(folder / "models", MODEL, None),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 32_768,  # one sequence generates thousands of tokens while the controller learns
        "max_num_seqs": max(LOADS),
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.05,
        "kv_cache_memory_bytes": 45 * 10**9,
        "disable_log_stats": True,
    }
    speculative = {
        "method": "eagle3",
        "model": head_folder(folder / "models", MODEL, None),
        "num_speculative_tokens": DEPTH,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": SURVIVAL,
    }
    settings = {"mode": "adaptive", "policy": str(folder / "swing.policy.json"), "log_seconds": 15.0}
    replayed = speculative | {"synthetic_acceptance_rates": [1.0] * DEPTH, "enable_adaptive_verification": True}
    jobs = {
        "swing": (speculative, settings | {"gate": "off"}),
        "gates": (replayed, settings | {"gate": "on"}),
        "plain": (None, None),
    }
    if bank is not None:
        shutil.copy(bank, folder / "bank.npz")
    for name, (config, own) in jobs.items():
        added = {} if config is None else {"speculative_config": config, "additional_config": {"specmargin": own}}
        job = {"name": name, "engine": engine | added, "speculative": config is not None}
        (folder / f"{name}.job.json").write_text(json.dumps(job | {"vocabulary": VOCABULARY[MODEL]}, indent=1))


def run(folder: Path) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    swing = Swing(json.loads((folder / "swing.job.json").read_text()))
    result: dict[str, Any] = {
        "what": __doc__,
        "engine": swing.engine.description(),
        "acceptance": TRAFFIC,
        "table": _ranges(swing.table),
        "rows": [],
    }
    print("depths with graphs:", swing.depths, "plug-in:", swing.driver is not None, flush=True)
    for batch in LOADS:
        for traffic, rate in TRAFFIC.items():
            try:
                row = swing.play(batch, traffic)
            except Exception as error:  # other loads stay
                print(f"batch {batch}: {type(error).__name__}: {error}", flush=True)
                continue
            result["rows"].append(row)
            phase = phase_of(row, traffic, constant(rate))
            print(phase.name, {name: round(phase.speed(name)) for name in phase.seconds}, flush=True)
            result["faults"] = dict(swing.driver.guard.faults)
            (folder / "swing.json").write_text(json.dumps(result))
    print("DONE swing", flush=True)
    os._exit(0)  # skips the engine's shutdown


def run_gates(folder: Path, seconds: float = GATE_SECONDS) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    swing = GateSwing(json.loads((folder / "gates.job.json").read_text()), folder)
    bank = {name: swing.bank.survival(kind) for kind, name in enumerate(swing.bank.names)}
    result: dict[str, Any] = {
        "what": __doc__,
        "engine": swing.engine.description(),
        "bank": {"label": swing.bank.label, "survival": bank},
        "table": _ranges(swing.table),
        "curves": swing.gates.curves(),
        "rows": [],
    }
    print("depths with graphs:", swing.depths, "curves:", result["curves"], flush=True)
    while (folder / "wait").exists():  # for what shares the machine until then
        time.sleep(0.5)
    begun = time.perf_counter()
    swing.learn(16)
    phases = [(batch, kind) for batch in LOADS for kind in range(len(swing.bank.names))]
    weights = [GATE_WEIGHT.get(batch, 1.0) for batch, _ in phases]
    for number, (batch, kind) in enumerate(phases):
        share = weights[number] / sum(weights[number:])
        left = seconds - (time.perf_counter() - begun)
        try:
            result["rows"].append(swing.play_soundly(batch, kind, left * share))
        except Exception:  # other loads stay
            traceback.print_exc()
            continue
        show(result["rows"][-1])
        result["faults"] = {"driver": dict(swing.driver.guard.faults), "gate": dict(swing.gates.guard.faults)}
        result["seconds"] = round(time.perf_counter() - begun, 1)
        (folder / "gates.json").write_text(json.dumps(result))
    print("DONE gates", result.get("faults"), flush=True)
    os._exit(0)


def run_plain(folder: Path) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    engine = Engine(json.loads((folder / "plain.job.json").read_text()))
    result: dict[str, Any] = {"engine": engine.description(), "rows": []}
    for batch in LOADS:
        result["rows"] += engine.measure(batch, [0], PROMPT_TOKENS)
        (folder / "plain.json").write_text(json.dumps(result, indent=1))
    print("DONE plain", [(row["batch"], row["round_ms"]) for row in result["rows"]], flush=True)
    os._exit(0)


def _ranges(table: list[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for batch, depth in enumerate(table[1:], start=1):
        if ranges and ranges[-1][2] == depth:
            ranges[-1][1] = batch
        else:
            ranges.append([batch, batch, depth])
    return ranges


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "make":
        make(folder, *map(Path, sys.argv[3:]))
    else:
        {"run": run, "gates": run_gates, "plain": run_plain}[sys.argv[1]](folder, *map(float, sys.argv[3:]))
