"""The simulator compared with inference-lab's WebAssembly build on the same workload, then larger workloads.

Llama-3-70B on an H100-class device, Poisson 5/s, lognormal lengths (ln-mean 6.9 and 5.3, sd 0.7 and 0.8): the peer's
own example. Simulated output tokens per wall second, best of several runs after warm-up. The peer needs Node and npm.
Then a week of 3 million requests in a process of its own, the errors of both simulators against recorded servers
(`lab/speed/peers.py`), and the speed of the simulator before `BASE` in turns with this one.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace

from lab import REFERENCE_BANK, ROOT
from lab.checkouts import checkout
from lab.speed.__main__ import CONTESTS, compare
from lab.speed.peers import SCHEDULER, peer, report_errors
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

BASE = "f0a75f7c"  # the commit before traffic, windows and prefix caches were simulated
WEEK_REQUESTS, WEEK_SECONDS, WEEK_BYTES = 3_000_000, 60.0, 4 * 2**30
KV_BLOCKS = 68_719_476_736 // (2 * 80 * 8 * 128 * 2 * 16)  # the peer's 64 GB of KV, in blocks of 16 tokens
RUNS = 7


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
            "scheduler": SCHEDULER,
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
    measured = peer(peer_config(400), RUNS, 120.0)
    if isinstance(measured, str):
        print(f"inference-lab: {measured}")
        return None
    print(
        f"inference-lab 400 requests: {measured.tokens:,} tokens in {measured.seconds * 1e3:.1f} ms, "
        f"{measured.speed / 1e6:.2f} M/s"
    )
    print(f"ratio: {speed / measured.speed:.1f} times as many simulated tokens per second")
    large = peer(peer_config(4000), 1, 60.0)
    large_text = large if isinstance(large, str) else f"{large.seconds:.1f} s, {large.speed / 1e6:.2f} M/s"
    print(f"inference-lab 4,000 requests: {large_text}")
    return speed / measured.speed


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


def week() -> None:
    """In a process of its own: its largest memory is counted."""
    start = time.process_time()
    result = simulate(same_workload(WEEK_REQUESTS))
    result.summary()
    seconds = time.process_time() - start
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "bytes": peak, "tokens": result.committed}))


def report_week() -> bool:
    """Whether a week takes at most a minute of CPU and 4 GiB, its percentiles included; compiled code is cached."""
    code = "from lab.speed import simulator as s; s.week()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    took = json.loads(done.stdout)
    seconds, gib = took["seconds"], took["bytes"] / 2**30
    print(
        f"a week, {WEEK_REQUESTS:,} requests, {took['tokens']:,} tokens: {seconds:.0f} s of CPU, {gib:.1f} GiB at most"
    )
    return bool(seconds <= WEEK_SECONDS and took["bytes"] <= WEEK_BYTES)


def report_base() -> None:
    contest = next(each for each in CONTESTS if each.name == "simulator")
    for name, (before, now) in compare(contest, checkout(BASE), 3).items():
        print(f"{name}: {before * 1e9:.1f} ns at {BASE}, {now * 1e9:.1f} ns now, ratio {now / before:.2f}")


def _hourly_tpot(result: Result) -> list[float]:
    return [row["tpot_p50"] for row in result.hourly()]


def main() -> int:
    ratio = report_speed()
    report_large()
    first = report_first_call()
    day = report_day()
    in_time = report_week()
    report_errors()
    report_base()
    missed = [
        name
        for name, bad in (
            ("at least 5 times the peer", ratio is not None and ratio < 5.0),
            ("first call under 3 s", first > 3.0),
            ("a day under a minute", day > 60.0),
            ("a week under a minute and 4 GiB", not in_time),
        )
        if bad
    ]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
