"""Ranks that vote against every static depth, and what a vote costs: two ranks with experts spread over both.

    make bench-votes            (or: python -m lab.live.ranks --output swing.json)

Load swings and differs by rank, and so does the acceptance, by the temperature: at 1.5 a few of ten first drafts are
kept, at 0 three of four. Contestants take turns of five steps on one server, with the same sequences: the votes play
between any two others, and each of them is compared with the votes' turns just before and after it. All of them change
between the same two steps (`rank_turns.py`). Steps with prompts, steps with fewer sequences than the phase has, and the
first step of a turn are not counted.

First, a server of its own measures prices by batch and depth, as `specmargin measure` does for one rank. Last, the
plug-in with all that it does, while the depth stays vLLM's, against vLLM alone: what a vote adds to a step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from lab.live.models import CATEGORIES, Pair, random_pair, read_pair
from lab.live.rank_results import (
    COSTS_AT,
    PHASES,
    RANKS,
    STATIC_DEPTHS,
    Load,
    Pairing,
    Phase,
    Played,
    Results,
    over,
    report,
    write,
)
from lab.live.rank_server import rank_server
from lab.live.rank_turns import FOLDER, PINNED, STATIC, VOTES, StepLine, Turn, prepare, write_turns
from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import policy_text
from specmargin.policies.kernel.prices import PriceTable
from specmargin.step import FloatArray

DEEPEST = 7
MOST_SEQUENCES = 16  # per rank
CALIBRATED = (1, 2, 4, 8, 16)  # sequences on each rank
SETTLE_STEPS = 1  # after a switch: it verifies drafts of the previous contestant
LEAST_STEPS = 2  # of a turn that counts
ANSWER_TOKENS = 500
_PATIENCE = 180.0  # seconds
_NOTHING = (0, 0.0, 0, 0, 0, 0, 0.0, 0.0)  # of a rank that has not stepped yet
PROMPT_TOKENS = 40
_CONTEXT = 250.0
_CYCLES = 8  # that are planned at once
_EQUAL_SHARE = 0.15  # of a phase, in which all play equally often
_BEHIND = ((1.15, 1), (1.05, 3))  # votes over a contestant, and in how many of these cycles it plays from then on
# A rank's scheduler and its worker in one process: in two, both poll for each other and share this machine's cores.
_ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

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
        self._load, end = (0,) * RANKS, time.monotonic() + _PATIENCE
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
        self.play([])
        self.clients.drain()
        self._load = load = phase.load
        self.clients.set(phase)
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            self.play([(VOTES, 0)])
            if all(self._last(rank).sequences == load[rank] for rank in range(RANKS)):
                return
        raise SystemExit(f"the load {load} was not reached; {self.clients.failures} requests failed")

    def play(self, turns: Sequence[tuple[int, int]]) -> list[int]:
        """Their serial numbers, once all have been played. Then votes go on."""
        first = len(self._loads) + 1
        numbered = [Turn(number, *turn) for number, turn in enumerate([*turns, (VOTES, 0)], first)]
        self._loads |= dict.fromkeys((turn.serial for turn in numbered), self._load)
        write_turns(self.folder, numbered)
        serials = [turn.serial for turn in numbered[:-1]]
        end = time.monotonic() + _PATIENCE
        while serials and self._last(0).serial < serials[-1]:
            if time.monotonic() > end:
                raise SystemExit(f"ranks stand still; {self.clients.failures} requests failed")
            time.sleep(0.1)
        return serials

    def _last(self, rank: int) -> StepLine:
        """Lines are written when a turn ends."""
        path = self.folder / f"steps-{rank}.txt"
        if not path.exists():
            return StepLine(*_NOTHING)
        with path.open("rb") as lines:
            lines.seek(max(path.stat().st_size - 1000, 0))
            whole = lines.read().decode().rpartition("\n")[0]  # the last line may still be written
        return StepLine.of(whole.splitlines()[-1]) if whole else StepLine(*_NOTHING)

    def end(self) -> dict[int, Played]:
        self.play([(VOTES, 0)])
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
            counted[serial] = counted.get(serial, Played()).plus(_step(lines))
        return {serial: one for serial, one in counted.items() if one.steps >= LEAST_STEPS}

    def _lines(self) -> list[tuple[StepLine, ...]]:
        """By step: one of each rank. Ranks step alike, so their lines belong together."""
        texts = [(self.folder / f"steps-{rank}.txt") for rank in range(RANKS)]
        if not all(text.exists() for text in texts):
            return []
        return list(
            zip(*([StepLine.of(line) for line in text.read_text().splitlines()] for text in texts), strict=False)
        )


def _step(lines: Sequence[StepLine]) -> Played:
    """Of all ranks."""
    first = lines[0]
    tokens, spent = sum(line.tokens for line in lines), (first.draft_seconds, first.expert_seconds)
    step = Played(1, first.seconds, tokens, first.depth, *spent)
    for line in lines:
        step = step.plus(Played(drafts=line.drafts, kept=line.kept))
    return step


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
            depths = [depth for _ in range(turns) for depth in shuffled.sample(STATIC_DEPTHS, len(STATIC_DEPTHS))]
            for depth, serial in zip(depths, playing.play([(STATIC, depth) for depth in depths]), strict=True):
                serials.setdefault((batch, depth), []).append(serial)
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


def played_swing(pair: Pair, policy: str, folder: Path, *, minutes: float) -> Results:
    """`minutes`: of each phase."""
    planned: list[dict[str, list[tuple[int, int, int]]]] = []  # serial numbers: before, own, after
    static = {f"static {depth}": (STATIC, depth) for depth in STATIC_DEPTHS}
    with game(pair, policy, folder) as playing:
        for phase in PHASES:
            planned.append(_phase(playing, phase, static, (VOTES, 0), minutes * phase.share))
        for phase in COSTS_AT:
            planned.append(_phase(playing, phase, {"alone": (STATIC, DEEPEST)}, (PINNED, 0), minutes * phase.share))
        counted = playing.end()
    results = [{name: _pairings(counted, serials) for name, serials in found.items()} for found in planned]
    for phase, pairs in zip((*PHASES, *COSTS_AT), results, strict=True):
        for name, one in pairs.items():
            if len(one) < 2:
                raise SystemExit(f"{name} was hardly ever counted with {phase.title}; take more minutes")
    return results


def _phase(
    playing: Game, phase: Phase, others: dict[str, tuple[int, int]], middle: tuple[int, int], minutes: float
) -> dict[str, list[tuple[int, int, int]]]:
    """Who is behind after a while plays less often from then on."""
    shuffled, found = random.Random(2), {name: list[tuple[int, int, int]]() for name in others}
    playing.set(phase)
    begun, often = time.monotonic(), dict[str, int]()  # in how many of `_CYCLES`
    while (spent := time.monotonic() - begun) < 60.0 * minutes:
        if not often and spent > 60.0 * minutes * _EQUAL_SHARE:
            often = _how_often(playing.counted(), found)
            found = {name: [] for name in others}  # who played badly by chance must not be judged by the same turns
        order = list[str]()
        for cycle in range(_CYCLES):
            names = [name for name in others if cycle < often.get(name, _CYCLES)]
            order += shuffled.sample(names, len(names))
        turns = [turn for name in order for turn in (middle, others[name])]
        played = playing.play([*turns, middle])
        for number, name in enumerate(order):
            found[name].append((played[2 * number], played[2 * number + 1], played[2 * number + 2]))
    print(f"{phase.title}: {sum(map(len, found.values()))} turns", flush=True)
    return found


def _how_often(counted: dict[int, Played], found: dict[str, list[tuple[int, int, int]]]) -> dict[str, int]:
    pairs = {name: _pairings(counted, serials) for name, serials in found.items()}
    ahead = {name: float(over(pairs, name)[0]) if pairs[name] else 1.0 for name in pairs}
    return {name: next((cycles for far, cycles in _BEHIND if ahead[name] > far), _CYCLES) for name in pairs}


def _pairings(counted: dict[int, Played], serials: Sequence[tuple[int, int, int]]) -> list[Pairing]:
    return [
        Pairing(counted[own], counted[before], counted[after])
        for before, own, after in serials
        if {before, own, after} <= counted.keys()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="a trained pair; default: one with random weights")
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="of each of the six phases, in the mean; costs take as long as one"
    )
    parser.add_argument("--turns", type=int, default=20, help="turns per measured price")
    parser.add_argument("--output", type=Path, help="write what was counted to this file, as JSON")
    options = parser.parse_args()
    scratch, started = Path(tempfile.mkdtemp(prefix="ranks-")), time.monotonic()
    pair = random_pair(scratch / "pair") if options.reference is None else read_pair(options.reference)
    print("Measuring prices by batch and depth …", flush=True)
    policy = calibrated_policy(pair, scratch / "prices", turns=options.turns)
    print("Playing the swing …", flush=True)
    results = played_swing(pair, policy, scratch / "swing", minutes=options.minutes)
    if options.output is not None:
        recorded = f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores"
        write(results, options.output, recorded=recorded)
    print(f"{(time.monotonic() - started) / 60.0:.0f} minutes.\n")
    print(report(results))


if __name__ == "__main__":
    main()
