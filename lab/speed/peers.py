"""Simulators against recorded servers: errors of this one and of inference-lab on the same seventeen loads.

    python -m lab.speed.peers

The loads of `lab/validation/recorded_servers.py`: clients in a closed loop on vLLM with Qwen3-30B-A3B and an EAGLE-3
head. inference-lab's npm build (0.2.1) gets the shapes, the datasheet of the H200, clients, lengths, KV cache and
limits. It has no speculation, measured kernels or engine time: its errors are those of a roofline without drafts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab import ROOT
from lab.terminal import console, note, run, table
from lab.validation.recorded_servers import LAUNCHES, METRICS, RECORDINGS, Recorded, errors, recorded
from specmargin.architecture.precision import Arithmetic
from specmargin.catalog.lookup import find_device, find_model

PEER = "@doublewordai/inference-lab@0.2.1"
FOLDER = ROOT / ".benchmarks" / "inference-lab"
PEER_SCRIPT = """
import { readFileSync } from "node:fs";
import { initSync, run_simulation } from "@doublewordai/inference-lab";
initSync({ module: readFileSync("node_modules/@doublewordai/inference-lab/inference_lab_bg.wasm") });
const config = readFileSync(0, "utf8"), runs = Number(process.argv[2]);
let best = Infinity, tokens = 0, metrics = {};
for (let i = 0; i < runs; i++) {
  const start = performance.now(), out = run_simulation(config);
  best = Math.min(best, (performance.now() - start) / 1e3);
  tokens = out.distributions.output_lengths.reduce((a, b) => a + b, 0);
  metrics = out.metrics;
}
console.log(JSON.stringify({ seconds: best, tokens, metrics }));
"""
PEER_METRICS = {"tok/s": "output_tokens_per_sec", "TTFT": "ttft_mean", "TPOT": "per_token_mean"}
_MODEL, _GPU = "qwen3-30b-a3b", "h200"
_TOKEN_BYTES = 2 * 48 * 4 * 128 * 2  # keys and values of 48 layers with 4 heads of 128, in bf16


#: The peer's own scheduler, in speed and error alike.
SCHEDULER = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "policy": "fcfs",
    "enable_chunked_prefill": True,
    "block_size": 16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """The best of several runs; `metrics` as the peer names them, times in milliseconds."""

    seconds: float
    tokens: int
    metrics: dict[str, float]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def peer(config: str, runs: int, timeout: float) -> PeerRun | str:
    """One run of the peer, or the reason why there is none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not installed: the peer is not measured"
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not (FOLDER / "node_modules").is_dir():
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", PEER]
        if subprocess.run(install, cwd=FOLDER, check=False, capture_output=True).returncode:
            return f"npm cannot install {PEER}: the peer is not measured"
    (FOLDER / "run.mjs").write_text(PEER_SCRIPT)
    try:
        process = subprocess.run(
            ["node", "run.mjs", str(runs)],
            cwd=FOLDER,
            input=config,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {timeout:.0f} s"
    if process.returncode:
        return "failed: " + (process.stderr.strip().splitlines() or ["no message"])[-1][:100]
    return PeerRun(**json.loads(process.stdout))


def peer_load(server: Recorded) -> str:
    """The load as inference-lab takes it."""
    workload: dict[str, str | float] = {
        "arrival_pattern": "closed_loop",
        "arrival_rate": 1.0,
        "num_concurrent_users": server.clients,
        "num_requests": max(20 * server.clients, 200),
    }
    return peer_config(server.kv_blocks, workload, server.prompt_tokens, server.output_tokens)


def peer_config(
    kv_blocks: int, workload: Mapping[str, str | float], prompt_tokens: tuple[int, int], output_tokens: tuple[int, int]
) -> str:
    """Qwen3-30B-A3B in bf16 on an H200, with lengths spread evenly between two."""
    device = find_device(_GPU)
    lengths = {"input_len_dist": prompt_tokens, "output_len_dist": output_tokens}
    return json.dumps(
        {
            "hardware": {
                "name": device.title,
                "compute_flops": device.operations_per_second[Arithmetic.BF16],
                "memory_bandwidth": device.bandwidth_bytes_per_second,
                "memory_capacity": int(device.memory_bytes),
                "kv_cache_capacity": int(kv_blocks * 16 * _TOKEN_BYTES),
                "bytes_per_param": 2,
            },
            "model": _shapes(),
            "scheduler": SCHEDULER,
            "workload": {
                **workload,
                "seed": 42,
                **{name: {"type": "uniform", "min": low, "max": high} for name, (low, high) in lengths.items()},
            },
            "simulation": {"log_interval": 5},
        }
    )


def _shapes() -> dict[str, str | int]:
    model = find_model(_MODEL)
    return {
        "name": model.name,
        "num_parameters": model.parameters,
        "num_active_parameters": model.active_parameters(count_embedding=False),
        "num_layers": model.layers,
        "hidden_dim": model.hidden,
        "num_heads": model.attention_heads,
        "num_kv_heads": 4,
        "max_seq_len": 40_960,
    }


def peer_errors(server: Recorded) -> dict[str, float] | str:
    """Predicted over measured, less one, by metric; or why there is none."""
    found = peer(peer_load(server), 1, 60.0)
    if isinstance(found, str):
        return found
    return {name: found.metrics[theirs] / server.measured[name] - 1.0 for name, theirs in PEER_METRICS.items()}


def report_errors() -> None:
    servers = [recorded(path) for path in RECORDINGS]
    theirs = [peer_errors(server) for server in servers]
    out = console()
    shown = table(f"Median absolute error of means, {len(servers)} recorded loads", ["simulator"], METRICS)
    for launch in (LAUNCHES[0], LAUNCHES[-1]):
        own = [errors(server, launch) for server in servers]
        shown.add_row(f"specmargin, {launch:g} µs per kernel launch", *_medians(own))
    told = [found for found in theirs if not isinstance(found, str)]
    if len(told) == len(servers):
        shown.add_row("inference-lab 0.2.1, without speculation", *_medians(told))
    out.print(shown)
    if missing := [found for found in theirs if isinstance(found, str)]:
        note(out, f"inference-lab: {missing[0]}")


def _medians(found: Sequence[Mapping[str, float]]) -> list[str]:
    return [f"{np.median([abs(error[name]) for error in found]):.0%}" for name in METRICS]


def main() -> None:
    report_errors()


if __name__ == "__main__":
    run(main, __doc__)
