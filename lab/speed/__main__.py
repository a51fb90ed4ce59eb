"""Speed of this checkout against another commit: both in turns on the same machine, medians and their ratio.

    python -m lab.speed                                   against the commit before the redesign
    python -m lab.speed --base COMMIT --turns 9 --only plan

Command lines: wall time of a fresh process. Prices, controller and simulator: the benchmarks of each commit
(`lab/speed/`, before `benchmarks/`). A ratio below 1 means that this checkout takes less time. The first turn compiles
and is not counted. Under five minutes on an idle machine.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lab import ROOT
from lab.checkouts import PLAN, checkout, python
from lab.terminal import console, note, parser, run, table, tracked
from specmargin.errors import InputError

BASE = "9822380"
Timing = Mapping[str, float]  # seconds by what was timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is timed in each checkout."""

    name: str
    time: Callable[[Path], Timing]


def _command(name: str, *arguments: str) -> Contest:
    def timed(folder: Path) -> Timing:
        started = time.perf_counter()
        python(folder, ["-m", "specmargin", *arguments])
        return {f"specmargin {name}": time.perf_counter() - started}

    return Contest(name=name, time=timed)


def _prices(folder: Path) -> Timing:
    return price_seconds(python(folder, _benchmark(folder, "prices", "main()")))


def price_seconds(text: str) -> Timing:
    """Of one step per call by the printed ratio, which has more digits than its rate."""
    found = re.search(r"([\d.]+) million per second.*ratio: +(\d+)", text, re.DOTALL)
    if found is None or float(found[1]) <= 0.0:
        raise InputError("the benchmark of prices prints no rate")
    of_a_grid = 1e-6 / float(found[1])
    return {"prices, per step of a grid": of_a_grid, "prices, one step per call": of_a_grid * float(found[2])}


def _controller(folder: Path) -> Timing:
    return decision_seconds(python(folder, _benchmark(folder, "policy", "main()")))


def decision_seconds(text: str) -> Timing:
    found = re.findall(r"(\d+) sequences × \d+: median ([\d.]+) µs", text)
    return {f"decision for {batch} sequences": float(micros) * 1e-6 for batch, micros in found}


def _simulator(folder: Path) -> Timing:
    return token_seconds(python(folder, _benchmark(folder, "simulator", "report_large()")))


def token_seconds(text: str) -> Timing:
    found = re.findall(r"^ *(specmargin 40,000 requests|\S+) *.*?([\d.]+) M/s", text, re.MULTILINE)
    # A run that had to compile first prints 0.0: it is the warm-up, which is not counted.
    return {f"simulated token, {_policy(name)}": 1e-6 / float(rate) for name, rate in found if float(rate) > 0.0}


def _policy(name: str) -> str:
    return "no speculation" if name.startswith("specmargin") else name


def _benchmark(folder: Path, name: str, call: str) -> list[str]:
    """Code that runs a part of the commit's own benchmark."""
    if (folder / "lab" / "speed" / f"{name}.py").is_file():
        return ["-c", f"from lab.speed.{name} import *; {call}"]
    return ["-c", f"import sys; sys.path.insert(0, 'benchmarks'); from bench_{name} import *; {call}"]


CONTESTS = (
    _command("--help", "--help"),
    _command("plan", *PLAN),
    Contest(name="prices", time=_prices),
    Contest(name="controller", time=_controller),
    Contest(name="simulator", time=_simulator),
)


def compare(contest: Contest, base: Path, turns: int) -> dict[str, tuple[float, float]]:
    """Median seconds of the base and of this checkout, by what was timed. They take turns; the first is a warm-up."""
    seconds: dict[str, tuple[list[float], list[float]]] = {}
    for turn in tracked(contest.name, range(turns + 1)):
        for side, folder in enumerate((base, ROOT)):
            timing = contest.time(folder)
            if turn > 0:
                for name, value in timing.items():
                    seconds.setdefault(name, ([], []))[side].append(value)
    both = {name: sides for name, sides in seconds.items() if sides[0] and sides[1]}
    return {name: (statistics.median(before), statistics.median(now)) for name, (before, now) in both.items()}


def _show(out: Console, medians: Mapping[str, tuple[float, float]], base: str) -> None:
    shown = table(f"Speed against {base}: medians in milliseconds", ("",), ("before", "now", "ratio"))
    for name, (before, now) in medians.items():
        shown.add_row(name, f"{before * 1e3:,.4g}", f"{now * 1e3:,.4g}", f"{now / before:.2f}")
    out.print(shown)
    note(out, "ratio below 1: this checkout takes less time")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--base", default=BASE, metavar="COMMIT", help=f"default: {BASE}")
    options.add_argument("--turns", type=int, default=5, help="of each side, after a warm-up; default 5")
    options.add_argument("--only", action="append", metavar="NAME", help=", ".join(c.name for c in CONTESTS))
    chosen = options.parse_args()
    if unknown := set(chosen.only or ()) - {contest.name for contest in CONTESTS}:
        raise InputError(f"nothing is named {sorted(unknown)[0]!r}; choose from {', '.join(c.name for c in CONTESTS)}")
    if chosen.turns < 1:
        raise InputError("--turns: at least 1")
    base = checkout(chosen.base)
    medians: dict[str, tuple[float, float]] = {}
    out = console()
    for contest in CONTESTS:
        if chosen.only is None or contest.name in chosen.only:
            try:
                medians |= compare(contest, base, chosen.turns)
            except InputError as error:  # the others are worth showing
                note(out, f"{contest.name} could not be timed: {error}")
    _show(out, medians, chosen.base)


if __name__ == "__main__":
    run(main)
