"""Ranks that vote against every static depth, and what a vote costs: two ranks with experts spread over both.

    make bench-votes            (or: python -m lab.live.ranks --output votes.json)

Load swings and differs by rank, and so does the acceptance, by the temperature: at 1.5 a few of ten first drafts are
kept, at 0 three of four. Contestants take turns on one server, with the same sequences: the votes play between any two
others, and each of them is compared with the votes' turns just before and after it. All of them change between the same
two steps (`rank_turns.py`). Steps with prompts, steps with fewer sequences than the phase has, and the first two steps
of a turn are not counted.

First, a server of its own measures prices by batch and depth, as `specmargin measure` does for one rank. Last, the
plug-in with all that it does, while the depth stays vLLM's, against vLLM alone: what a vote adds to a step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from lab.live.models import CATEGORIES, Pair, random_pair, read_pair
from lab.live.rank_server import rank_server
from lab.live.rank_turns import FOLDER, PINNED, STATIC, VOTES, StepLine, Turn, prepare
from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import policy_text
from specmargin.policies.kernel.prices import PriceTable
from specmargin.step import FloatArray

RANKS = 2
DEEPEST = 7
STATIC_DEPTHS = (0, 1, 2, 3, 5, 7)
MOST_SEQUENCES = 16  # per rank
CALIBRATED = (1, 2, 4, 8, 16)  # sequences on each rank
TURN_SECONDS = 1.5
SETTLE_STEPS = 2  # after a switch: the first verifies drafts of the previous contestant
LEAST_STEPS = 3  # of a turn that counts
ANSWER_TOKENS = 500
_DRAIN_SECONDS = 180.0
PROMPT_TOKENS = 40
_CONTEXT = 250.0
# A rank's scheduler and its worker in one process: in two, both poll for each other and share this machine's cores.
_ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

Interval = tuple[float, float, float]  # median, low, high
Load = tuple[int, ...]  # sequences by rank


class Phase(NamedTuple):
    load: Load
    tokens: int = 0  # that a whole swing commits in it
    temperature: float = 0.0

    def __str__(self) -> str:
        return f"{' + '.join(map(str, self.load))} | {self.temperature:g}"


PHASES = (
    Phase((1, 0), 300),
    Phase((4, 1), 600, 1.5),
    Phase((12, 4), 1600),
    Phase((16, 16), 1600, 1.5),
    Phase((3, 3), 900),
    Phase((1, 1), 300, 1.5),
)
COSTS_AT = (Phase((1, 1)), Phase((8, 8)))  # where the plug-in's own cost is measured


class Played(NamedTuple):
    """What was counted in a turn."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0  # of all ranks
    depths: int = 0  # sum over steps
    draft_seconds: float = 0.0  # of the first rank
    expert_seconds: float = 0.0

    def plus(self, other: Played) -> Played:
        return Played(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.depths + other.depths,
            self.draft_seconds + other.draft_seconds,
            self.expert_seconds + other.expert_seconds,
        )

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps


# --- clients ---


class Clients:
    """They keep so many sequences running on each rank."""

    def __init__(self, url: str, prompts: Sequence[list[int]]) -> None:
        self._url, self._prompts, self._random = url, prompts, random.Random(0)
        self._load: Load = (0,) * RANKS
        self._temperature = 0.0
        self._running = [0] * RANKS
        self._lock, self.failures = threading.Lock(), 0

    def set(self, phase: Phase) -> None:
        self._load, self._temperature = phase.load, phase.temperature
        for rank, count in enumerate(phase.load):
            with self._lock:
                missing = count - self._running[rank]
                self._running[rank] += max(missing, 0)
            for _ in range(missing):
                threading.Thread(target=self._client, args=(rank,), daemon=True).start()

    def drain(self) -> None:
        """Until no request of the last phase runs."""
        self._load, end = (0,) * RANKS, time.monotonic() + _DRAIN_SECONDS
        while sum(self._running) and time.monotonic() < end:
            time.sleep(0.1)

    def _client(self, rank: int) -> None:
        while True:
            with self._lock:
                if self._running[rank] > self._load[rank] or self.failures > 20:
                    self._running[rank] -= 1
                    return
            try:
                self._answer(rank, self._random.choice(self._prompts))
            except OSError:
                self.failures += 1

    def _answer(self, rank: int, prompt: list[int]) -> None:
        tokens = self._random.randint(ANSWER_TOKENS // 2, ANSWER_TOKENS)  # so that answers do not end together
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": self._temperature, "ignore_eos": True}
        headers = {"Content-Type": "application/json", "X-data-parallel-rank": str(rank)}
        request = urllib.request.Request(self._url + "/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300.0) as response:
            response.read()


# --- turns ---


@dataclass
class Game:
    """A server, its load, and who plays."""

    folder: Path
    clients: Clients
    _load: Load = (0,) * RANKS
    _loads: dict[int, Load] = field(default_factory=dict)  # by serial of the turn

    def set(self, phase: Phase) -> None:
        """Votes play until all sequences of this phase run."""
        self.play(VOTES)
        self.clients.drain()
        self._load = load = phase.load
        self.clients.set(phase)
        for _ in range(90):
            self.play(VOTES)
            lines = self._lines()
            if lines and tuple(line.sequences for line in lines[-1]) == load:
                return
        raise SystemExit(f"the load {load} was not reached; {self.clients.failures} requests failed")

    def play(self, kind: int, depth: int = 0) -> int:
        """The serial number of the turn."""
        serial = len(self._loads) + 1
        self._loads[serial] = self._load
        new = self.folder / "turn.new"
        new.write_text(" ".join(map(str, Turn(serial, kind, depth))))
        new.rename(self.folder / "turn")
        time.sleep(TURN_SECONDS)
        return serial

    def end(self) -> dict[int, Played]:
        """The last turn is written when the next one begins."""
        self.play(VOTES)
        self.clients.drain()
        return self.counted()

    def counted(self) -> dict[int, Played]:
        """By turn."""
        counted = dict[int, Played]()
        since, last = 0, -1
        for lines in self._lines():
            serial = lines[0].serial
            since, last = (since + 1 if serial == last else 1), serial
            full = tuple(line.sequences for line in lines) == self._loads.get(serial)
            if since <= SETTLE_STEPS or not full or any(line.prompt_tokens for line in lines):
                continue
            first = lines[0]
            step = Played(1, first.seconds, sum(line.tokens for line in lines), first.depth, *first[-2:])
            counted[serial] = counted.get(serial, Played()).plus(step)
        return {serial: one for serial, one in counted.items() if one.steps >= LEAST_STEPS}

    def _lines(self) -> list[tuple[StepLine, ...]]:
        """By step: one of each rank. Ranks step alike, so their lines belong together."""
        texts = [(self.folder / f"steps-{rank}.txt") for rank in range(RANKS)]
        if not all(text.exists() for text in texts):
            return []
        return list(
            zip(*([StepLine.of(line) for line in text.read_text().splitlines()] for text in texts), strict=False)
        )


@contextmanager
def game(pair: Pair, policy: str, folder: Path) -> Iterator[Game]:
    folder.mkdir()
    (folder / "policy.json").write_text(policy)
    prepare(folder, RANKS)
    settings = {"mode": "adaptive", "policy": str(folder / "policy.json"), "slowest_decision_seconds": 20.0}
    drafter = {"method": "draft_model", "model": str(pair.draft), "num_speculative_tokens": DEEPEST}
    arguments = {
        "model": str(pair.target),
        "dtype": "float32",
        "max_model_len": ANSWER_TOKENS + PROMPT_TOKENS + DEEPEST + 1,
        "max_num_seqs": MOST_SEQUENCES,
        "enforce_eager": True,
        "distributed_executor_backend": _ONE_PROCESS,
        "speculative_config": drafter,
        "additional_config": {"specmargin": settings},
    }
    environment = {FOLDER: str(folder)}
    with rank_server(
        arguments, ranks=RANKS, helper="lab.live.rank_turns", folder=folder, environment=environment
    ) as server:
        prompts = [prompt[:PROMPT_TOKENS] for name in CATEGORIES for prompt in pair.prompts[name]]
        yield Game(folder=folder, clients=Clients(server.url, prompts))
        if "data-parallel ranks vote on the depth" not in server.log.read_text():
            raise SystemExit(f"the ranks did not vote; their log: {server.log}")


# --- prices ---


def calibrated_policy(pair: Pair, folder: Path, *, turns: int) -> str:
    """From rounds with equal loads, at every depth."""
    from lab.live.policies import small_policy  # noqa: PLC0415 (compiled)

    serials: dict[tuple[int, int], list[int]] = {}
    shuffled = random.Random(1)
    with game(pair, small_policy(DEEPEST, ranks=RANKS), folder) as playing:
        for batch in CALIBRATED:
            playing.set(Phase((batch,) * RANKS))
            for _ in range(turns):
                for depth in shuffled.sample(STATIC_DEPTHS, len(STATIC_DEPTHS)):
                    serials.setdefault((batch, depth), []).append(playing.play(STATIC, depth))
        counted = playing.end()
    seen = {}
    for cell, numbers in serials.items():
        seen[cell] = Played()
        for one in (counted[number] for number in numbers if number in counted):
            seen[cell] = seen[cell].plus(one)
        if not seen[cell].steps:
            raise SystemExit(f"no steps of {cell[0]} sequences at depth {cell[1]} were counted; take more turns")
    return policy_of(seen)


def policy_of(seen: dict[tuple[int, int], Played]) -> str:
    """`seen`: by sequences per rank and depth."""
    table, survival = price_table(seen), survival_of(seen)
    file = make_policy(
        table=table,
        survival=survival,
        schedule=[(1, MOST_SEQUENCES, DEEPEST)],
        model="test",
        drafter="draft_model",
        device="cpu",
        context=_CONTEXT,
        sources={"prices": "measured on this server"},
        ranks=RANKS,
    )
    return policy_text(file)


def price_table(seen: dict[tuple[int, int], Played]) -> PriceTable:
    """Linear between measured cells, over batch and depth; experts over positions of one rank."""
    by_positions: dict[int, list[float]] = {}
    for (batch, depth), one in seen.items():
        by_positions.setdefault(batch * (depth + 1), []).append(one.expert_seconds / one.steps)
    known = sorted(by_positions)
    positions = np.arange(MOST_SEQUENCES * (DEEPEST + 1.0) + 2.0)
    experts = np.interp(positions, [0, *known], [0.0, *(statistics.fmean(by_positions[one]) for one in known)])
    drafting = _grid(seen, lambda one: one.draft_seconds / one.steps)
    whole = _grid(seen, lambda one: one.step_seconds)
    deep = np.arange(DEEPEST + 1.0)
    verified = np.outer(np.arange(MOST_SEQUENCES + 1), deep + 1.0).astype(np.int64)
    return PriceTable.of(
        rest_seconds=np.maximum(whole - drafting - experts[verified], 1e-4),
        draft_seconds=drafting,
        expert_seconds=experts,
        effective_by_depth=deep + 1.0,
    )


def _grid(seen: dict[tuple[int, int], Played], of: Callable[[Played], float]) -> FloatArray:
    """(batch, depth). No sequences: as one."""
    cells = np.array([[of(seen[batch, depth]) for depth in STATIC_DEPTHS] for batch in CALIBRATED])
    between = RegularGridInterpolator((np.array(CALIBRATED, float), np.array(STATIC_DEPTHS, float)), cells)
    batch, depth = np.meshgrid(
        np.maximum(np.arange(MOST_SEQUENCES + 1.0), 1.0), np.arange(DEEPEST + 1.0), indexing="ij"
    )
    return np.asarray(between((batch, depth)))


def survival_of(seen: dict[tuple[int, int], Played]) -> FloatArray:
    """How many more tokens a round commits per draft token, over all batches."""
    rounds = {depth: sum(RANKS * batch * seen[batch, depth].steps for batch in CALIBRATED) for depth in STATIC_DEPTHS}
    tokens = [sum(seen[batch, depth].tokens for batch in CALIBRATED) / rounds[depth] for depth in STATIC_DEPTHS]
    committed = np.interp(np.arange(DEEPEST + 1.0), STATIC_DEPTHS, tokens)
    return np.asarray(np.clip(np.diff(committed), 0.0, 1.0))


# --- the swing ---


class Pairing(NamedTuple):
    """A turn of a contestant, and the votes' turns beside it."""

    own: Played
    votes: Played


Results = list[dict[str, list[Pairing]]]  # by phase and contestant; costs follow the phases


def played_swing(pair: Pair, policy: str, folder: Path, *, rounds: int) -> Results:
    shuffled = random.Random(2)
    planned: list[dict[str, list[tuple[int, int, int]]]] = []  # serial numbers: before, own, after
    with game(pair, policy, folder) as playing:
        for number, phase in enumerate((*PHASES, *COSTS_AT)):
            costs = number >= len(PHASES)
            others = {"alone": (STATIC, DEEPEST)} if costs else {f"static {d}": (STATIC, d) for d in STATIC_DEPTHS}
            middle = (PINNED, 0) if costs else (VOTES, 0)
            found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in others}
            playing.set(phase)
            before = playing.play(*middle)
            for _ in range(rounds * len(STATIC_DEPTHS) // len(others)):
                for name in shuffled.sample(list(others), len(others)):
                    own = playing.play(*others[name])
                    after = playing.play(*middle)
                    found[name].append((before, own, after))
                    before = after
            planned.append(found)
            print(f"{phase.load}: played", flush=True)
        counted = playing.end()
    results: Results = [
        {
            name: [
                Pairing(counted[own], counted[before].plus(counted[after]))
                for before, own, after in serials
                if {before, own, after} <= set(counted)
            ]
            for name, serials in found.items()
        }
        for found in planned
    ]
    for phase, pairs in zip((*PHASES, *COSTS_AT), results, strict=True):
        for name, one in pairs.items():
            if not one:
                raise SystemExit(f"{name} was never counted with {phase.load}; take more rounds")
    return results


def median(ratios: Sequence[float]) -> Interval:
    """With its 90% interval, by resampling."""
    if not ratios:
        return math.nan, math.nan, math.nan
    drawn = np.random.default_rng(0).choice(np.array(ratios), (4000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.05, 0.95])
    return statistics.median(ratios), float(low), float(high)


def over(results: Results, name: str, phase: int) -> Interval:
    """Tokens per second of votes over those of the contestant."""
    return median([one.votes.rate / one.own.rate for one in results[phase][name]])


def over_swing(results: Results, name: str) -> Interval:
    """The same for a whole swing, in which every phase commits its tokens; the n-th turn of every phase makes one."""
    swings = zip(*(results[phase][name] for phase in range(len(PHASES))), strict=False)

    def seconds(rates: Iterator[float]) -> float:
        return sum(phase.tokens / rate for phase, rate in zip(PHASES, rates, strict=True))

    return median([seconds(p.own.rate for p in swing) / seconds(p.votes.rate for p in swing) for swing in swings])


def report(results: Results) -> str:
    """Markdown, as in docs/results/votes.md."""
    names = [f"static {depth}" for depth in STATIC_DEPTHS]
    lines = [f"| sequences by rank | temperature | {' | '.join(names)} | votes | their depth | best | votes over it |"]
    lines += ["| --- | ---: |" + " ---: |" * (len(names) + 2) + " --- | ---: |"]
    for phase, played in enumerate(PHASES):
        pairs = results[phase]
        rates = [statistics.median(one.own.rate for one in pairs[name]) for name in names]
        votes = [one.votes for name in names for one in pairs[name]]
        depth = sum(one.depths for one in votes) / sum(one.steps for one in votes)
        best = min(names, key=lambda name: over(results, name, phase)[0])
        cells = [f"{rate:,.0f}" for rate in (*rates, statistics.median(one.rate for one in votes))]
        ratio = _text(over(results, best, phase))
        lines += [f"| {played} | " + " | ".join(cells) + f" | {depth:.1f} | {best} | {ratio} |"]
    lines += ["", "| votes over | whole swing |", "| --- | ---: |"]
    lines += [f"| {name} | {_text(over_swing(results, name))} |" for name in names]
    lines += ["", "| sequences by rank | ms per step | the plug-in and its votes add | in ms |"]
    lines += ["| --- | ---: | ---: | ---: |"]
    for phase, played in enumerate(COSTS_AT, len(PHASES)):
        alone = results[phase]["alone"]
        more = median([one.votes.step_seconds / one.own.step_seconds - 1.0 for one in alone])
        added = median([1e3 * (one.votes.step_seconds - one.own.step_seconds) for one in alone])
        step = 1e3 * statistics.median(one.own.step_seconds for one in alone)
        cost = "{:+.1%} ({:+.1%} to {:+.1%}) | {:+.2f} ({:+.2f} to {:+.2f})".format(*more, *added)
        lines += [f"| {' + '.join(map(str, played.load))} | {step:.1f} | {cost} |"]
    return "\n".join(lines)


def _text(interval: Interval) -> str:
    middle, low, high = interval
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="a trained pair; default: one with random weights")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each contestant per phase")
    parser.add_argument("--turns", type=int, default=3, help="turns per measured price")
    parser.add_argument("--output", type=Path, help="write what was counted to this file, as JSON")
    parser.add_argument("--read", type=Path, help="only print the tables of such a file")
    options = parser.parse_args()
    if options.read is None:
        scratch, started = Path(tempfile.mkdtemp(prefix="ranks-")), time.monotonic()
        pair = random_pair(scratch / "pair") if options.reference is None else read_pair(options.reference)
        print("Measuring prices by batch and depth …", flush=True)
        policy = calibrated_policy(pair, scratch / "prices", turns=options.turns)
        print("Playing the swing …", flush=True)
        results = played_swing(pair, policy, scratch / "swing", rounds=options.rounds)
        if options.output is not None:
            options.output.write_text(json.dumps(results))
        print(f"{(time.monotonic() - started) / 60.0:.0f} minutes.\n")
    else:
        given = json.loads(options.read.read_text())
        results = [
            {name: [Pairing(Played(*own), Played(*votes)) for own, votes in pairs] for name, pairs in phase.items()}
            for phase in given
        ]
    print(report(results))


if __name__ == "__main__":
    main()
