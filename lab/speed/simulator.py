"""All speeds of the simulator in one run, beside those of inference-lab's WebAssembly build.

    python -m lab.speed.simulator

Llama-3-70B on an H100-class device, Poisson 5/s, lognormal lengths (ln-mean 6.9 and 5.3, sd 0.7 and 0.8): the peer's
own example. Simulated output tokens per wall second, best of several runs after warm-up. The peer needs Node and npm.
Then a day, weeks of 3 million requests (`lab/speed/weeks.py`), the errors of both simulators against recorded servers
(`lab/speed/peers.py`), those of Vidur on recorded traces (`lab/speed/peer_vidur.py`), and CPU time in turns with the
simulator of an earlier commit (`lab/speed/turns.py`).
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace

from lab import REFERENCE_BANK, ROOT
from lab.speed import peer_vidur, turns, weeks
from lab.speed.peers import SCHEDULER, peer, report_errors
from lab.speed.weeks import same_workload
from lab.terminal import console, note, table
from specmargin.simulator.results import Result
from specmargin.simulator.run import simulate, tables_of
from specmargin.simulator.serving import Serving
from specmargin.verbs.simulate.request_schema import SimulateRequest, completed
from specmargin.verbs.simulate.serving import serving_of

MOST_RATIO = 1.1  # of CPU time to that of the earlier commit
RUNS = 7
SIZES = ((400, RUNS, 120.0), (4_000, 1, 60.0))  # requests; runs of the peer, and the most seconds that they may take


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


def timed(serving: Serving, runs: int) -> tuple[float, int]:
    best, tokens = float("inf"), 0
    for _ in range(runs):
        start = time.perf_counter()
        tokens = simulate(serving).committed
        best = min(best, time.perf_counter() - start)
    return best, tokens


def report_speed() -> float | None:
    """Both simulators in one table; returns how many times as fast as the peer this one is at the fewest requests."""
    shown = table(
        "Simulated output tokens per second, in millions", ("requests",), ("specmargin", "inference-lab 0.2.1", "times")
    )
    timed(same_workload(SIZES[0][0]), 2)  # compiles
    ratios, missing = [], []
    for requests, peer_runs, most_seconds in SIZES:
        seconds, tokens = timed(same_workload(requests), RUNS)
        measured = peer(peer_config(requests), peer_runs, most_seconds)
        if isinstance(measured, str):
            missing.append(f"inference-lab, {requests:,} requests: {measured}")
            theirs = times = "–"
        else:
            ratios.append(tokens / seconds / measured.speed)
            theirs, times = f"{measured.speed / 1e6:.2f}", f"{ratios[-1]:.0f}"
        shown.add_row(f"{requests:,}", f"{tokens / seconds / 1e6:.1f}", theirs, times)
    out = console()
    out.print(shown)
    for line in missing:
        note(out, line)
    return ratios[0] if ratios else None


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
    start = time.process_time()
    controller = simulate(replace(serving, policy="controller"))
    seconds = time.process_time() - start
    summary = controller.summary()
    print(f"a day, controller: {summary['requests']:,} requests, {summary['steps']:,} steps in {seconds:.1f} s of CPU")
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
    in_time = weeks.report(weeks.weeks())
    report_errors()
    peer_vidur.main()
    against_base = turns.ratios(turns.BASE, turns.TURNS)
    turns.report(against_base, turns.BASE)
    missed = [
        name
        for name, bad in (
            ("at least 5 times the peer", ratio is not None and ratio < 5.0),
            ("first call under 3 s", first > 3.0),
            ("a day under a minute", day > 60.0),
            ("every week under a minute of CPU and 4 GiB", not in_time),
            (f"at most {MOST_RATIO} × {turns.BASE}", max(one.median for one in against_base.values()) > MOST_RATIO),
        )
        if bad
    ]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
