"""Turns of gates inside one vLLM with adaptive verification, on replayed rounds, for `lab.gpu.swing gates`."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lab.gpu.replay import Bank, Coefficients, estimator_state, fitted, install, is_sound, restart_estimator
from lab.gpu.turns import DEPTH, GRAPH_POSITIONS, LEAST_ROUNDS, PROMPT_TOKENS, Swing

GATE_LEARNING_SECONDS, ESTIMATOR_ROUNDS = 2.5, 300
GATE_TURN_SECONDS = {1: 1.0, 4: 0.9, 16: 0.6}  # by sequences: few of them commit few tokens per round
GATE_LATER_SECONDS = 0.4  # with more of them
GATE_BLOCKS = (3, 20)  # at least and at most
STALL_SECONDS, MOST_REPEATS = 0.12, 2  # of one round over the median of its turn, and how often a turn is repeated
TIED = (1, 3, 5)  # depths that are verified whole beside the gates

Contestant = tuple[str, Callable[[], None]]  # name, and what begins its turn


class GateSwing(Swing):
    """One engine with adaptive verification, in which gates take turns."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        super().__init__(job)
        from lab.gpu.gate import Gates

        self.bank = Bank.load(folder / "bank.npz").cut(DEPTH)
        self.replay = install(self.engine.runner, self.bank)
        self.gates = Gates(self.engine.runner, folder / "swing.policy.json")
        self.steps = self.gates.count_budgets()

    def learn(self, batch: int) -> None:
        """vLLM's estimator, which all gates share, refits every 100 steps."""
        for attempt in ("as vLLM starts it", "from the bank's fit"):
            self._use("vllm", DEPTH)
            if self.engine.requests():
                self.engine.clear()
            self.engine.fill(batch, PROMPT_TOKENS)
            self._use("vllm", DEPTH)
            self.engine.rounds(ESTIMATOR_ROUNDS)
            if self.estimator(f"after learning, {attempt}")[1]:
                return
            restart_estimator(self.engine.runner.speculator.acceptance_estimator, fitted(self.bank))
        raise SystemExit("vLLM's acceptance estimator diverges twice: gates would be compared by nothing")

    def estimator(self, when: str) -> tuple[Coefficients, bool]:
        """Its coefficients, and whether they can be right; printed."""
        state = estimator_state(self.engine.runner)
        sound = is_sound(state)
        said = "" if sound else f"  *** DIVERGED; the bank's fit: {fitted(self.bank)} ***"
        print(f"estimator {when}: slope {state[0]:.3f}, intercepts {state[1]}{said}", flush=True)
        return state, sound

    def play_soundly(self, batch: int, kind: int, seconds: float) -> dict[str, Any]:
        """Again, once, if the estimator diverged meanwhile; the row says so."""
        row = self.play_gates(batch, kind, seconds)
        if not row["estimator_sound"]:
            restart_estimator(self.engine.runner.speculator.acceptance_estimator, fitted(self.bank))
            row = self.play_gates(batch, kind, seconds) | {"played_again": True}
        return row

    def _use(self, gate: str, depth: int | None) -> None:
        """`depth` None: the controller's."""
        self.gates.use(gate)
        if depth is None:
            self.controlled(gated=gate == "specmargin")
        else:
            self.fixed(depth)

    def play_gates(self, batch: int, kind: int, seconds: float) -> dict[str, Any]:
        begun, name = time.perf_counter(), self.bank.names[kind]
        self.replay.kind_of = lambda *_: kind
        named = self.table[min(batch, len(self.table) - 1)]
        contestants = self._contestants(batch, named)
        for gate in ("whole", "specmargin"):
            self._fill_for(batch, gate)
            self.turn(GATE_LEARNING_SECONDS)
        self._fill_for(batch, "whole")
        first = list[dict[str, Any]]()
        for _, begin in contestants:
            begin()
            first.append(self._replayed_turn(batch, 0))
        rounds = _rounds_of(GATE_TURN_SECONDS.get(batch, GATE_LATER_SECONDS), first)
        before, blocks, longest = self.estimator(f"before {batch}, {name}")[0], list[dict[str, Any]](), 0.0
        least, most = GATE_BLOCKS
        while len(blocks) < least or (len(blocks) < most and time.perf_counter() - begun + longest < seconds):
            block_begun, block = time.perf_counter(), len(blocks)
            self._fill_for(batch, "whole")
            turns: dict[str, dict[str, Any]] = {}
            for contestant, begin in _order(contestants, block):
                for repeats in range(1 + MOST_REPEATS):
                    begin()
                    turns[contestant] = self._replayed_turn(batch, block, rounds) | {"repeats": repeats}
                    if turns[contestant]["stall"] < STALL_SECONDS:
                        break
            blocks.append(turns)
            longest = max(longest, time.perf_counter() - block_begun)
        after, sound = self.estimator(f"after {batch}, {name}")
        states = {"before": before, "after": after}
        row = {"batch": batch, "traffic": name, "table_depth": named, "estimator": states, "estimator_sound": sound}
        return row | {"blocks": blocks}

    def _contestants(self, batch: int, named: int) -> list[Contestant]:
        whole = [depth for depth in self.depths if batch * (depth + 1) <= GRAPH_POSITIONS]
        return [
            ("vllm gate", partial(self._use, "vllm", DEPTH)),
            ("specmargin gate", partial(self._use, "specmargin", None)),
            *((f"depth {depth}", partial(self._use, "whole", depth)) for depth in whole if depth in (named, *TIED)),
            ("controller", partial(self._use, "whole", None)),
            ("vllm gate, honest curve", partial(self._use, "vllm honest", DEPTH)),
        ]

    def _fill_for(self, batch: int, gate: str) -> None:
        self.gates.use(gate)
        if self.engine.requests():
            self.engine.clear()
        self.controlled(gated=gate == "specmargin")
        self.engine.fill(batch, PROMPT_TOKENS)
        self.controlled(gated=gate == "specmargin")

    def _replayed_turn(self, batch: int, block: int, rounds: int | None = None) -> dict[str, Any]:
        """All contestants of a block meet the same rounds of the bank, and the same number of them."""
        self.settle()
        self.replay.rewind(block)
        self.steps.clear()
        turn = self.turn(GATE_TURN_SECONDS.get(batch, GATE_LATER_SECONDS), settled=True, rounds=rounds)
        drafts, verified = sum(step[1] for step in self.steps), sum(step[2] for step in self.steps)
        return turn | {"drafts": drafts, "verified": verified, "believed": self._believed(batch)}

    def _believed(self, batch: int) -> list[float] | None:
        """Tokens per second by depth, as the controller expects them of whole drafts; None without it."""
        policy = None if self.scheduler._driver is None else self.scheduler._driver.policy
        return None if policy is None else [round(value, 1) for value in policy.expected_goodput(batch).tolist()]


def _rounds_of(seconds: float, turns: list[dict[str, Any]]) -> int:
    """Of a turn that takes so long with the contestant in the middle."""
    per_round = statistics.median(float(turn["seconds"]) / int(turn["rounds"]) for turn in turns)
    return max(round(seconds / per_round), LEAST_ROUNDS)


def _order(contestants: list[Contestant], block: int) -> list[Contestant]:
    """Forwards and backwards by turns, each pair of blocks with another one first: no contestant is always early in a
    block, when contexts are short and the GPU's clock is high, and each follows both of its neighbours."""
    first = block // 2 * 2 % len(contestants)
    rotated = contestants[first:] + contestants[:first]
    return rotated if block % 2 == 0 else rotated[::-1]


def show(row: dict[str, Any]) -> None:
    """Tokens per second, milliseconds per round, and verified of drafted tokens."""
    for name in sorted(row["blocks"][0]):
        turns = [block[name] for block in row["blocks"]]
        total = {key: sum(turn[key] for turn in turns) for key in ("seconds", "rounds", "tokens", "drafts", "verified")}
        speed, round_ms = total["tokens"] / total["seconds"], total["seconds"] / total["rounds"] * 1e3
        share = total["verified"] / max(total["drafts"], 1)
        asked = dict(sum((Counter(turn["depths"]) for turn in turns), Counter[str]()))
        where = f"{row['batch']:4} {row['traffic']}"
        print(f"{where} {name:24} {speed:9.1f} {round_ms:8.3f} ms {share:.2f} {asked}", flush=True)
