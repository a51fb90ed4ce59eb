"""The simulator compared with inference-lab's WebAssembly build on the same workload, then larger workloads.

Llama-3-70B on an H100-class device, Poisson 5/s, lognormal lengths (ln-mean 6.9 and 5.3, sd 0.7 and 0.8): the peer's
own example. Simulated output tokens per wall second, best of several runs after warm-up. The peer needs Node and npm.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace

from lab import REFERENCE_BANK, ROOT
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.drafters import find_drafter
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices.roofline import Roofline
from specmargin.routing.profile import UNIFORM
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.results import Result
from specmargin.simulator.rounds import drawn_rounds
from specmargin.simulator.run import simulate, tables_of
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import LognormalLength, Poisson, Workload
from specmargin.verbs.simulate.request_schema import SimulateRequest, completed
from specmargin.verbs.simulate.serving import serving_of

PEER = "@doublewordai/inference-lab@0.2.1"
FOLDER = ROOT / ".benchmarks" / "inference-lab"
KV_BLOCKS = 68_719_476_736 // (2 * 80 * 8 * 128 * 2 * 16)  # the peer's 64 GB of KV, in blocks of 16 tokens
RUNS = 7
PEER_SCRIPT = """
import { readFileSync } from "node:fs";
import { initSync, run_simulation } from "@doublewordai/inference-lab";
initSync({ module: readFileSync("node_modules/@doublewordai/inference-lab/inference_lab_bg.wasm") });
const config = readFileSync(0, "utf8"), runs = Number(process.argv[2]);
let best = Infinity, tokens = 0;
for (let i = 0; i < runs; i++) {
  const start = performance.now(), out = run_simulation(config);
  best = Math.min(best, (performance.now() - start) / 1e3);
  tokens = out.distributions.output_lengths.reduce((a, b) => a + b, 0);
}
console.log(JSON.stringify({ seconds: best, tokens }));
"""


def peer_config(requests: int) -> str:
    lengths = {"input_len_dist": (6.9, 0.7), "output_len_dist": (5.3, 0.8)}
    return json.dumps(
        {
            "hardware": {
                "name": "H100",
                "compute_flops": 1.513e15,
                "memory_bandwidth": 3.35e12,
                "memory_capacity": 85_899_345_920,
                "kv_cache_capacity": 68_719_476_736,
                "bytes_per_param": 2,
            },
            "model": {
                "name": "Llama-3-70B",
                "num_parameters": 70_000_000_000,
                "num_layers": 80,
                "hidden_dim": 8192,
                "num_heads": 64,
                "num_kv_heads": 8,
                "max_seq_len": 8192,
            },
            "scheduler": {
                "max_num_batched_tokens": 8192,
                "max_num_seqs": 256,
                "policy": "fcfs",
                "enable_chunked_prefill": True,
                "block_size": 16,
            },
            "workload": {
                "arrival_pattern": "poisson",
                "arrival_rate": 5.0,
                "num_requests": requests,
                "seed": 42,
                **{name: {"type": "lognormal", "mean": mu, "std_dev": sd} for name, (mu, sd) in lengths.items()},
            },
            "simulation": {"log_interval": 5},
        }
    )


def peer(requests: int, runs: int, timeout: float) -> tuple[float, int] | str:
    """Seconds and tokens, or the reason why the peer was not measured."""
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
            input=peer_config(requests),
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {timeout:.0f} s"
    if process.returncode:
        return "failed: " + (process.stderr.strip().splitlines() or ["no message"])[-1][:100]
    measured = json.loads(process.stdout)
    return measured["seconds"], measured["tokens"]


def same_workload(requests: int) -> Serving:
    """The peer's workload, shapes and device; memory holds the weights and 64 GB of KV, as the peer assumes."""
    device = replace(find_device("h100-sxm"), memory_bytes=240e9)
    model = find_model("llama-3.1-70b")  # the shapes of Llama-3-70B
    choice = find_drafter("free", model)
    workload = Workload(
        arrivals=Poisson(requests_per_second=5.0, requests=requests),
        prompt=LognormalLength(ln_mean=6.9, ln_sd=0.7, most=100_000),
        output=LognormalLength(ln_mean=5.3, ln_sd=0.8, most=100_000),
    )
    survival = parse_acceptance("0.7")
    scenario = Scenario(
        architecture=model,
        device=device,
        prices=Roofline(device=device),
        routing=UNIFORM,
        drafter=choice.drafter,
        survival=survival,
    )
    bank = drawn_rounds({"all": survival}, 4)
    engine = EngineSettings(kv_blocks=KV_BLOCKS)
    pricer = Pricer(scenario)
    return Serving(pricer=pricer, workload=workload, bank=bank, engine=engine, policy="none", max_depth=4)


def timed(serving: Serving, runs: int) -> tuple[float, int]:
    best, tokens = float("inf"), 0
    for _ in range(runs):
        start = time.perf_counter()
        tokens = simulate(serving).committed
        best = min(best, time.perf_counter() - start)
    return best, tokens


def report_speed() -> float | None:
    serving = same_workload(400)
    timed(serving, 2)
    seconds, tokens = timed(serving, RUNS)
    speed = tokens / seconds
    print(f"specmargin    400 requests: {tokens:,} tokens in {seconds * 1e3:.1f} ms, {speed / 1e6:.1f} M/s")
    measured = peer(400, RUNS, 120.0)
    if isinstance(measured, str):
        print(f"inference-lab: {measured}")
        return None
    peer_speed = measured[1] / measured[0]
    print(
        f"inference-lab 400 requests: {measured[1]:,} tokens in {measured[0] * 1e3:.1f} ms, {peer_speed / 1e6:.2f} M/s"
    )
    print(f"ratio: {speed / peer_speed:.1f} times as many simulated tokens per second")
    large = peer(4000, 1, 60.0)
    large_text = large if isinstance(large, str) else f"{large[0]:.1f} s, {large[1] / large[0] / 1e6:.2f} M/s"
    print(f"inference-lab 4,000 requests: {large_text}")
    return speed / peer_speed


def report_large() -> None:
    serving = same_workload(40_000)
    tables_of(serving)  # cached, so that no run builds them
    seconds, tokens = timed(serving, 1)
    print(f"specmargin 40,000 requests: {tokens:,} tokens in {seconds:.2f} s, {tokens / seconds / 1e6:.1f} M/s")
    for policy in ("fixed:2", "schedule", "controller"):
        seconds, tokens = timed(replace(serving, policy=policy), 2)
        print(f"  {policy:10} {seconds:.2f} s, {tokens / seconds / 1e6:.1f} M/s")


def report_first_call() -> float:
    """CPU seconds of a fresh process with compiled code from the cache; wall time would include other work."""
    code = "from lab.speed import simulator as s; s.simulate(s.same_workload(400))"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"first call in a fresh process, imports and tables included: {seconds:.2f} s of CPU, {wall:.2f} s of wall time"
    )
    return seconds


def report_day() -> float:
    """The day of examples/day.toml, by hour and policy; with the rounds of the reference bank."""
    path = ROOT / "examples" / "day.toml"
    serving = serving_of(*completed(SimulateRequest(model=str(path), bank=str(REFERENCE_BANK))))
    tables_of(serving)
    start = time.perf_counter()
    controller = simulate(replace(serving, policy="controller"))
    seconds = time.perf_counter() - start
    summary = controller.summary()
    print(f"a day, controller: {summary['requests']:,} requests, {summary['steps']:,} steps in {seconds:.1f} s")
    print(f"  rounds: {serving.bank.source}")
    others = {name: simulate(replace(serving, policy=name)) for name in ("none", *(f"fixed:{k}" for k in range(1, 5)))}
    for name, result in {"controller": controller, **others}.items():
        median = result.summary()["tpot_seconds"]["p50"] * 1e3
        print(f"  {name:10} {result.busy_goodput:,.1f} tokens per busy second, median TPOT {median:.2f} ms")
    best = [min(hours) for hours in zip(*(_hourly_tpot(result) for result in others.values()), strict=True)]
    gains = [other / own - 1.0 for other, own in zip(best, _hourly_tpot(controller), strict=True)]
    print(f"  median TPOT against the best other policy of each hour: {min(gains):+.1%} to {max(gains):+.1%}")
    return seconds


def _hourly_tpot(result: Result) -> list[float]:
    return [row["tpot_p50"] for row in result.hourly()]


def main() -> int:
    ratio = report_speed()
    report_large()
    first = report_first_call()
    day = report_day()
    missed = [
        name
        for name, bad in (
            ("at least 5 times the peer", ratio is not None and ratio < 5.0),
            ("first call under 3 s", first > 3.0),
            ("a day under a minute", day > 60.0),
        )
        if bad
    ]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
