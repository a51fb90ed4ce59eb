"""The load swing: concurrency 1 → 4 → 16 → 32 → 8 → 1 on a real vLLM, categories changing, every policy in turn.

    python examples/reference_moe/recipe.py --out reference-moe    the served models, trained in ten minutes on a GPU
    make bench-live            (or: python -m lab.live.swing --minutes 30)

The machine is noisy: its speed changes by up to 2× every few seconds. Therefore contestants take turns of 0.2 seconds,
the controller runs between any two others, and each of them is compared with the controller's turns just before and
after. Every ratio is computed within one block of turns. The benchmark runs until the 95% interval of each ratio is
within ±5% (--within) or the time limit is reached. Contestants that are far behind in a phase play fewer rounds of it.
With few sequences the text matters more than the policy: up to eight, every turn of a round begins with the same
sequences, at random points of their outputs; larger batches continue from turn to turn. Steps that contain prompts are
not counted. Speculation off, every fixed depth, the schedule and the controller run in one engine and differ only in
the policy; no speculation is a separate engine. Schedule and controller come from `specmargin plan`, with prices from
`specmargin measure vllm` and the acceptance and routing of their bank.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from lab.live.cpu import cpu_dtype
from lab.live.measuring import ENVIRONMENT
from lab.live.models import Pair, read_pair
from lab.live.prices import measured_policy
from lab.live.talking import Child

DEEPEST = 7
FIXED = (1, 2, 3, 5, 7)
PHASES = ((1, "cpp"), (4, "python"), (16, "cpp"), (32, "prose"), (8, "python"), (1, "prose"))
TOKENS = {1: 300, 4: 700, 8: 1200, 16: 1800, 32: 2600}  # per phase of the whole swing, by concurrency
ROUNDS = 6  # per block, which is one repeat; a round is a turn of every contestant, the controller's between any two
BLOCKS = 4  # per phase
FAR_BEHIND = 0.9  # of the controller's tokens per second: below it a contestant plays one round in three
SLICE_SECONDS = 0.2
SAME_TEXT = 8  # sequences up to which all turns of a round begin with the same sequences
ANSWER_TOKENS = 96
_ENVIRONMENT = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


Turn = dict[str, Any]  # counters of an engine
Interval = tuple[float, float, float]  # mean, low, high


class Engine:
    """The client of `lab.live.engine`."""

    def __init__(self, pair: Pair, *, speculative: bool, log: Path) -> None:
        arguments: dict[str, Any] = {
            "model": str(pair.target),
            "dtype": cpu_dtype(),
            "max_model_len": 448,
            "max_num_seqs": 32,
            "enforce_eager": True,
            "enable_prefix_caching": False,
        }
        if speculative:
            drafter = {"method": "draft_model", "model": str(pair.draft), "num_speculative_tokens": DEEPEST}
            arguments |= {"speculative_config": drafter}
            arguments |= {"additional_config": {"specmargin": {"mode": "observe"}}}  # until the contestants are added
        job = {"engine": arguments, "depth": DEEPEST}
        self._child = Child("lab.live.engine", job, log=log, environment=_ENVIRONMENT)
        if self._child.read() is None:
            raise SystemExit(f"the engine did not start; its log: {log}")
        self._send = self._child.ask

    def contestant(self, name: str, settings: dict[str, Any]) -> None:
        self._send({"do": "contestant", "name": name, "settings": settings})

    def phase(self, prompts: Sequence[list[int]], concurrency: int) -> None:
        self._send({"do": "phase", "prompts": prompts, "concurrency": concurrency})

    def answers(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        return list(self._send({"do": "answers", "prompts": prompts, "tokens": ANSWER_TOKENS})["answers"])

    def slice(self, name: str, prompts: Sequence[list[int]] | None) -> Turn:
        return self._send({"do": "slice", "name": name, "seconds": SLICE_SECONDS, "prompts": prompts})

    def close(self) -> None:
        self._child.close()


@dataclass
class Swing:
    """Counters by contestant, block of turns and phase; `beside` holds the controller's in the adjacent turns."""

    turns: dict[str, list[list[Turn]]] = field(default_factory=dict)  # contestant → blocks → phases
    clock: str = "wall"

    @property
    def others(self) -> list[str]:
        return [name for name in self.turns if name != "adaptive"]

    @property
    def repeats(self) -> int:
        return min((len(rows) for rows in self.turns.values()), default=0)

    def rate(self, name: str, phase: int) -> list[float]:
        return [self._rate(row[phase]) for row in self.turns[name]]

    def beside(self, name: str, phase: int) -> list[float]:
        """Rates of the controller in the turns adjacent to those of `name`."""
        return [self._rate(row[phase]["beside"]) for row in self.turns[name]]

    def _rate(self, turns: Turn) -> float:
        return float(turns["tokens"] / self.seconds(turns))

    def seconds(self, turns: Turn) -> float:
        return float(turns[f"{self.clock}_seconds"])

    def over(self, name: str, phase: int | None = None) -> Interval:
        """Ratio of the controller to `name`, in one phase or over the whole swing."""
        if phase is not None:
            return interval(self.beside(name, phase), self.rate(name, phase))
        phases = range(len(PHASES))
        return interval(
            whole([self.beside(name, phase) for phase in phases]), whole([self.rate(name, phase) for phase in phases])
        )

    def best_fixed(self, phase: int) -> str:
        return min(("off", *(f"fixed {depth}" for depth in FIXED)), key=lambda name: self.over(name, phase)[0])


def whole(by_phase: Sequence[Sequence[float]]) -> list[float]:
    """Tokens per second over a swing in which every phase generates `TOKENS`, by block."""
    tokens = [TOKENS[concurrency] for concurrency, _ in PHASES]
    swings = zip(*by_phase, strict=True)
    return [sum(tokens) / sum(count / rate for count, rate in zip(tokens, rates, strict=True)) for rates in swings]


def interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Mean ratio and its 95% interval, from the log ratios of paired blocks."""
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> None:
    options = _options()
    if options.read is not None:
        print(report(Swing(turns=json.loads(options.read.read_text()), clock=options.clock)))
        return
    pair = read_pair(options.reference)
    scratch = Path(tempfile.mkdtemp(prefix="swing-"))
    started = time.monotonic()
    policy = options.policy or measured_policy(pair.folder, scratch, deepest=DEEPEST)
    engines = {True: Engine(pair, speculative=True, log=scratch / "speculative.log")}
    engines[False] = Engine(pair, speculative=False, log=scratch / "plain.log")
    try:
        swing = _swing(engines, pair, policy, options, until=started + 60.0 * options.minutes)
    finally:
        for engine in engines.values():
            engine.close()
    print(f"{(time.monotonic() - started) / 60.0:.0f} minutes, {cpu_dtype()}.\n\n{report(swing)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, default=Path("reference-moe"), help="the trained pair and its bank")
    parser.add_argument("--minutes", type=float, default=30.0, help="time after which no new swing starts")
    parser.add_argument("--within", type=float, default=0.05, help="target half-width of the intervals")
    parser.add_argument("--policy", type=Path, help="a policy file (plan --policy); default: measure one first")
    parser.add_argument("--output", type=Path, help="write all measurements to this file, as JSON")
    parser.add_argument("--read", type=Path, help="only print the tables of a file written by --output")
    parser.add_argument(
        "--clock", choices=("wall", "processor"), default="wall", help="processor: for a machine with other load"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _swing(
    engines: dict[bool, Engine], pair: Pair, policy: Path, options: argparse.Namespace, *, until: float
) -> Swing:
    settings: dict[str, dict[str, Any]] = {"off": {"mode": "schedule", "schedule": [[1, 32, 0]]}}
    settings |= {f"fixed {depth}": {"mode": "schedule", "schedule": [[1, 32, depth]]} for depth in FIXED}
    settings |= {"schedule": {"mode": "schedule", "policy": str(policy)}}
    settings |= {"adaptive": {"mode": "adaptive", "policy": str(policy)}}
    swing = Swing(turns={name: [] for name in ("none", *settings)}, clock=options.clock)
    shuffled, swings = random.Random(options.seed), 0
    for name, values in settings.items():
        engines[True].contestant(name, values)
    while not swings or (time.monotonic() < until and not _is_precise(swing, options.within)):
        blocks: list[dict[str, list[Turn]]] = [{name: [] for name in swing.turns} for _ in range(BLOCKS)]
        for phase, (concurrency, category) in enumerate(PHASES):
            prompts = [shuffled.choice(pair.prompts[category]) for _ in range(64)]
            answers = engines[False].answers(prompts[:32])
            for engine in engines.values():
                engine.phase(prompts, concurrency)
            behind = [name for name in swing.others if swings and swing.over(name, phase)[0] > 1.0 / FAR_BEHIND]
            for block in blocks:
                turns: dict[str, list[Turn]] = {name: [] for name in swing.turns}
                for number in range(ROUNDS):
                    begin = (
                        _partial_outputs(prompts, answers, concurrency, shuffled) if concurrency <= SAME_TEXT else None
                    )
                    players = [name for name in swing.others if number % 3 == 0 or name not in behind]
                    for name, turn in _round(engines, shuffled.sample(players, len(players)), begin):
                        turns[name].append(turn)
                for name, own_turns in turns.items():
                    block[name].append(_total(own_turns))
        for block in blocks:
            for name, row in block.items():
                swing.turns[name].append(row)
        swings += 1
        if options.output is not None:  # after each swing: nothing is lost if the benchmark is stopped
            options.output.write_text(json.dumps(swing.turns))
        print(f"{swings} swings, {max(until - time.monotonic(), 0.0) / 60.0:.0f} minutes left", flush=True)
    return swing


def _round(
    engines: dict[bool, Engine], players: Sequence[str], begin: list[list[int]] | None
) -> Iterator[tuple[str, Turn]]:
    """Turns of the players, with turns of the controller between them, whose adjacent counters are in `beside`."""
    before = engines[True].slice("adaptive", begin)
    yield "adaptive", before
    for name in players:
        own = engines[name != "none"].slice(name, begin)
        after = engines[True].slice("adaptive", begin)
        yield name, own | {"beside": _total([before, after])}
        yield "adaptive", after
        before = after


def _total(turns: Sequence[Turn]) -> Turn:
    """Sums of the counters."""
    total: Turn = {key: sum(turn[key] for turn in turns) for key in turns[0] if key != "beside"}
    if "beside" in turns[0]:
        total["beside"] = _total([turn["beside"] for turn in turns])
    return total


def _partial_outputs(
    prompts: Sequence[list[int]], answers: Sequence[list[int]], count: int, shuffled: random.Random
) -> list[list[int]]:
    """`count` random sequences, each cut at a random point of its output."""
    chosen = [shuffled.randrange(len(answers)) for _ in range(count)]
    return [prompts[i] + answers[i][: shuffled.randrange(ANSWER_TOKENS)] for i in chosen]


def _is_precise(swing: Swing, within: float) -> bool:
    """Whether the half-widths of all intervals are below `within`."""
    if swing.repeats < 3:
        return False
    intervals = [swing.over(swing.best_fixed(phase), phase) for phase in range(len(PHASES))]
    intervals += [swing.over(name) for name in swing.others]
    return all(high / low <= (1.0 + within) ** 2 for _, low, high in intervals)


def report(swing: Swing) -> str:
    """Markdown, as in docs/results/vllm-cpu.md."""
    names = list(swing.turns)
    units = f"tokens per second by the {swing.clock} clock, ratios with 95% intervals"
    lines = [f"{swing.repeats} blocks of {ROUNDS} turns of {SLICE_SECONDS} s per phase; {units}.", ""]
    lines += ["| phase | " + " | ".join(names) + " | best K | adaptive over it |"]
    lines += ["| --- |" + " ---: |" * len(names) + " --- | ---: |"]
    for phase, (concurrency, category) in enumerate(PHASES):
        best = swing.best_fixed(phase)
        rates = " | ".join(f"{statistics.fmean(swing.rate(name, phase)):,.0f}" for name in names)
        ratio = _interval_text(swing.over(best, phase))
        lines += [f"| {concurrency}, {category} | {rates} | {best} | {ratio} |"]
    by_name = {name: whole([swing.rate(name, phase) for phase in range(len(PHASES))]) for name in names}
    rates = " | ".join(f"{statistics.fmean(by_name[name]):,.0f}" for name in names)
    lines += [f"| whole swing | {rates} | | |", ""]
    lines += ["| adaptive over | whole swing | its positions per token | adaptive |", "| --- | ---: | ---: | ---: |"]
    for name in swing.others:
        positions = f"{_positions(swing, name):.2f} | {_positions(swing, 'adaptive'):.2f}"
        lines += [f"| {name} | {_interval_text(swing.over(name))} | {positions} |"]
    lines += ["", *_steps_table(swing)]
    phases = [p for row in swing.turns["adaptive"] for p in row]
    for concurrency in (1, 32):
        own = [p for row in swing.turns["adaptive"] for p, (c, _) in zip(row, PHASES, strict=True) if c == concurrency]
        share = sum(p["counted_decision_seconds"] for p in own) / sum(p["counted_step_seconds"] for p in own)
        lines += ["", f"Decisions take {share:.2%} of the step time at concurrency {concurrency}."]
    lines += ["", f"Faults: {sum(p['faults'] for p in phases):.0f}."]
    return "\n".join(lines)


def _steps_table(swing: Swing) -> list[str]:
    """Milliseconds per step of an engine without speculation, with speculation off, of the best fixed depth and of the
    controller; tokens per step; verified positions per token, and those of fixed depths with as many steps."""
    columns = [
        "none, ms per step",
        "off, ms",
        "best K, ms",
        "adaptive, ms",
        "best K, tokens per step",
        "adaptive, tokens",
    ]
    columns += ["adaptive, positions per token", "fixed depths, at as many steps"]
    lines = ["| phase | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for phase, (concurrency, category) in enumerate(PHASES):
        best = swing.best_fixed(phase)
        cells = [f"{_milliseconds(swing, name, phase):.1f}" for name in ("none", "off", best, "adaptive")]
        cells += [f"{_tokens(swing, name, phase):.2f}" for name in (best, "adaptive")]
        cells += [f"{_positions(swing, 'adaptive', phase):.2f}", f"{_fixed_positions(swing, phase):.2f}"]
        lines += [f"| {concurrency}, {category} | " + " | ".join(cells) + " |"]
    return lines


def _tokens(swing: Swing, name: str, phase: int) -> float:
    rows = [row[phase] for row in swing.turns[name]]
    return float(sum(row["tokens"] for row in rows) / sum(row["steps"] for row in rows))


def _fixed_positions(swing: Swing, phase: int) -> float:
    """Positions per token of fixed depths, interpolated at the tokens per step of the controller."""
    fixed = [("off", 0), *((f"fixed {depth}", depth) for depth in FIXED)]
    points = sorted((_tokens(swing, name, phase), _positions(swing, name, phase)) for name, _ in fixed)
    tokens, positions = np.array(points).T
    return float(np.interp(_tokens(swing, "adaptive", phase), tokens, positions))


def _milliseconds(swing: Swing, name: str, phase: int) -> float:
    rows = [row[phase] for row in swing.turns[name]]
    return float(1e3 * sum(map(swing.seconds, rows)) / sum(row["steps"] for row in rows))


def _positions(swing: Swing, name: str, phase: int | None = None) -> float:
    """Verified positions per committed token, in one phase or in all."""
    rows = [one for row in swing.turns[name] for one in (row if phase is None else [row[phase]])]
    if "counted_verify_positions" not in rows[0]:
        return 1.0
    return float(
        sum(row["counted_verify_positions"] for row in rows) / sum(row["counted_committed_tokens"] for row in rows)
    )


def _interval_text(interval: Interval) -> str:
    mean, low, high = interval
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
