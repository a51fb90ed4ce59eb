"""Weeks of 3 million requests, each in a process of its own: seconds of CPU and the largest memory.

    python -m lab.speed.weeks

Llama-3-70B on an H100-class device, inference-lab's own example: a full batch, few steps. Qwen3-30B-A3B on an H200: a
few sequences at a time, so that the same requests take ten times as many steps; with the rounds of the reference bank
the controller also gates every draft. Percentiles are included, compilation is not: a short run comes first.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lab import REFERENCE_BANK, ROOT
from lab.terminal import console, note, run, table
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.drafters import find_drafter
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices.roofline import Roofline
from specmargin.routing.profile import UNIFORM
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.rounds import drawn_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import LognormalLength, Poisson, Workload
from specmargin.verbs.simulate.request_schema import SimulateRequest, completed
from specmargin.verbs.simulate.serving import serving_of

REQUESTS, QPS, LONGEST_SECONDS, MOST_BYTES = 3_000_000, 5.0, 60.0, 4 * 2**30
FULL, SMALL, GATED = "Llama-3-70B", "Qwen3-30B-A3B", "Qwen3-30B-A3B, captured rounds"
WEEKS = (
    *((FULL, policy) for policy in ("none", "fixed:2", "schedule", "controller")),
    *((SMALL, policy) for policy in ("none", "fixed:2", "schedule", "controller")),
    (GATED, "controller"),
)
KV_BLOCKS = 68_719_476_736 // (2 * 80 * 8 * 128 * 2 * 16)  # the peer's 64 GB of KV, in blocks of 16 tokens
_SHORT = 400  # requests of the run that compiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    load: str
    policy: str
    seconds: float  # of CPU
    peak_bytes: int
    steps: int

    @property
    def in_time(self) -> bool:
        return self.seconds <= LONGEST_SECONDS and self.peak_bytes <= MOST_BYTES


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


def weekly(load: str, requests: int) -> Serving:
    """`requests` at the rate of the week."""
    if load == FULL:
        return same_workload(requests)
    bank = str(REFERENCE_BANK) if load == GATED else None
    asked = SimulateRequest(model="qwen3-30b-a3b", gpu="h200", qps=QPS, requests=requests, bank=bank)
    return serving_of(*completed(asked))


def served(load: str, policy: str, requests: int = REQUESTS) -> Week:
    """In this process, whose largest memory is counted."""
    simulate(replace(weekly(load, _SHORT), policy=policy))
    start = time.process_time()
    summary = simulate(replace(weekly(load, requests), policy=policy)).summary()
    seconds = time.process_time() - start
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Week(load=load, policy=policy, seconds=seconds, peak_bytes=peak, steps=summary["steps"])


def weeks() -> Iterator[Week]:
    for load, policy in WEEKS:
        code = (
            "import json, sys; from dataclasses import asdict; from lab.speed.weeks import served; "
            "print(json.dumps(asdict(served(*sys.argv[1:]))))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, load, policy], cwd=ROOT, check=True, capture_output=True, text=True
        )
        yield Week(**json.loads(done.stdout))


def report(found: Iterable[Week]) -> bool:
    """Whether every week takes at most a minute of CPU and 4 GiB."""
    shown = table(
        f"A week, {REQUESTS:,} requests", ("load", "policy"), ("CPU s", "GiB", "million steps", "ns per step")
    )
    all_in_time = True
    for week in found:
        all_in_time &= week.in_time
        gib, nanoseconds = week.peak_bytes / 2**30, 1e9 * week.seconds / week.steps
        steps = f"{week.steps / 1e6:.1f}"
        shown.add_row(week.load, week.policy, f"{week.seconds:.0f}", f"{gib:.1f}", steps, f"{nanoseconds:,.0f}")
    out = console()
    out.print(shown)
    note(out, f"at most {LONGEST_SECONDS:.0f} s and {MOST_BYTES / 2**30:.0f} GiB: {'yes' if all_in_time else 'no'}")
    return all_in_time


def main() -> None:
    report(weeks())


if __name__ == "__main__":
    run(main, __doc__)
