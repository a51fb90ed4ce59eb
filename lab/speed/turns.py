"""The simulator in turns with that of another commit: CPU time of each run, ratios of neighbouring runs.

    python -m lab.speed.turns --base COMMIT --turns 15

One process per commit stays alive, so that neither imports nor compilation are timed, and both meet the same other work
on the machine. 40,000 requests of `lab/speed/simulator.py` under each policy; the first run of each is not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from types import TracebackType
from typing import Self

from lab import ROOT
from lab.checkouts import checkout
from lab.terminal import console, note, parser, run, table, tracked
from specmargin.errors import InputError

BASE = "f0a75f7c"  # the commit before traffic, windows and prefix caches were simulated
POLICIES = ("none", "fixed:2", "schedule", "controller")
TURNS = 15
FEWEST_TURNS = 6  # with which the interval of a median covers 95%
_WORKER = """
import sys, time
from dataclasses import replace
from lab.speed.simulator import same_workload
from specmargin.simulator.run import simulate
serving = same_workload(40_000)
for policy in sys.stdin:
    start = time.process_time()
    simulate(replace(serving, policy=policy.strip()))
    print(time.process_time() - start, flush=True)
"""


class Side:
    """The simulator of one checkout, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OPENBLAS_NUM_THREADS": "1"}
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(BrokenPipeError):  # it ended before
            self._process.__exit__(kind, error, at)

    def seconds(self, policy: str) -> float:
        """Of CPU, for one run."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{policy}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise InputError(f"{self._folder.name}: the simulator ended under the policy {policy}")
        return float(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """CPU time over that of the base, of runs that follow each other."""

    base_seconds: float  # medians
    seconds: float
    median: float
    low: float  # 95% interval of the median
    high: float


def ratio_of(before: Sequence[float], now: Sequence[float]) -> Ratio:
    ratios = [own / other for other, own in zip(before, now, strict=True)]
    low, high = median_interval(ratios)
    return Ratio(
        base_seconds=statistics.median(before),
        seconds=statistics.median(now),
        median=statistics.median(ratios),
        low=low,
        high=high,
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """At least 95%, by ranks: no assumption about the noise. Under six values: all of them."""
    count, ordered = len(values), sorted(values)
    rank = 0  # values that may lie outside on each side
    while sum(comb(count, below) for below in range(rank + 1)) * 2 <= 0.05 * 2**count:
        rank += 1
    outside = max(rank - 1, 0)
    return ordered[outside], ordered[count - 1 - outside]


def ratios(base: str, turns: int, policies: Sequence[str] = POLICIES) -> dict[str, Ratio]:
    """By policy. The side that begins alternates."""
    found: dict[str, Ratio] = {}
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(folder)) for folder in (checkout(base), ROOT)]
        for policy in policies:
            seconds: tuple[list[float], list[float]] = ([], [])
            for turn in tracked(policy, range(turns + 1)):
                for side in (0, 1) if turn % 2 else (1, 0):
                    took = sides[side].seconds(policy)
                    if turn > 0:
                        seconds[side].append(took)
            found[policy] = ratio_of(*seconds)
    return found


def report(found: Mapping[str, Ratio], base: str) -> None:
    out = console()
    shown = table(
        f"40,000 requests against {base}: seconds of CPU", ("policy",), ("before", "now", "ratio", "95% interval")
    )
    for policy, one in found.items():
        interval = f"{one.low:.2f} to {one.high:.2f}"
        shown.add_row(policy, f"{one.base_seconds:.3f}", f"{one.seconds:.3f}", f"{one.median:.2f}", interval)
    out.print(shown)
    note(out, "medians; ratio below 1: this checkout takes less time")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--base", default=BASE, metavar="COMMIT", help=f"default: {BASE}")
    options.add_argument("--turns", type=int, default=TURNS, help=f"of each side, after a warm-up; default {TURNS}")
    chosen = options.parse_args()
    if chosen.turns < FEWEST_TURNS:
        raise InputError(f"--turns: at least {FEWEST_TURNS}")
    report(ratios(chosen.base, chosen.turns), chosen.base)


if __name__ == "__main__":
    run(main)
