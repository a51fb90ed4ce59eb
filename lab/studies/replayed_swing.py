"""The load swing of `lab.live.swing` replayed in half a minute: the driver is real, the engine is a price table.

    python -m lab.studies.replayed_swing swing.policy.json --jumps 0.2

The policy file is that of a real swing (`plan --policy`), or any other of at least 32 sequences and depth 7. Texts come
from the reference bank: a token is accepted where the drafter of the bank was right. The machine's speed jumps between
turns and is noisy within them. With up to eight sequences every turn of a cycle begins with the same texts, as in
the real swing. Prints the controller's tokens per second over those of each fixed depth on the same texts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from lab import REFERENCE_BANK
from lab.live.models import CATEGORIES
from lab.live.swing import FIXED, PHASES, SAME_TEXT, SLICE_SECONDS
from specmargin.live.driver import Driver
from specmargin.live.driver_builder import build_driver
from specmargin.live.policy_schema import read_policy
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import read_settings
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.tuning import Tuning
from specmargin.step import FloatArray, IntArray

DEEPEST = 7
CYCLES = 24  # per phase
SETTLE_STEPS, LEAST_STEPS = 2, 5  # per turn: not counted; at least
LONGEST_RUN = 8  # draft tokens per round of the bank
LAST_TOKENS = 30  # of a text: a sequence that comes so far goes on with another text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", type=Path, help="a policy file (plan --policy)")
    parser.add_argument("--seeds", type=int, default=8, help="swings")
    parser.add_argument("--noise", type=float, default=0.03, help="of the logarithm of a step's seconds")
    parser.add_argument("--jumps", type=float, default=0.05, help="of the machine's speed between turns, likewise")
    parser.add_argument("--turns", type=int, default=9, help="of the controller per cycle; fewer: a shorter swing")
    parser.add_argument("--stalls", type=float, default=0.0, help="share of steps that take twice as long")
    parser.add_argument("--shortest", type=int, default=120, help="tokens of a text; short texts accept fewer")
    options = parser.parse_args()
    swing = Swing(
        policy=options.policy,
        texts={category: texts_of(category, options.shortest) for category in CATEGORIES},
        noise=options.noise,
        jumps=options.jumps,
        turns=options.turns,
        stalls=options.stalls,
    )
    depths = (0, *FIXED)
    logs = np.array([_logs(swing, depths, seed) for seed in range(options.seeds)])  # (seeds, phases, depths)
    columns = ["phase", "best depth", "controller over it", "lowest", *(f"over depth {depth}" for depth in depths)]
    print("| " + " | ".join(columns) + " |")
    print("| --- | ---: | ---: | ---: |" + " ---: |" * len(depths))
    for (batch, category), ratios in zip(PHASES, logs.swapaxes(0, 1), strict=True):
        mean = ratios.mean(axis=0)
        best = int(mean.argmin())
        error = ratios[:, best].std() / math.sqrt(options.seeds)
        cells = " | ".join(f"{value:.3f}" for value in np.exp(mean))
        over = f"{math.exp(mean[best]):.3f} ± {error:.3f} | {math.exp(ratios[:, best].min()):.3f}"
        print(f"| {batch}, {category} | {depths[best]} | {over} | {cells} |")


def _logs(swing: Swing, depths: Sequence[int], seed: int) -> FloatArray:
    """By phase and fixed depth: ln of the controller's tokens per second over those of the depth."""
    fixed = np.array([swing.fixed_rates(seed, depth) for depth in depths])
    return np.asarray(np.log(np.array(swing.controller_rates(seed)) / fixed).T)


def texts_of(category: str, shortest: int) -> list[IntArray]:
    """By text and token: how many of the following tokens the drafter gets right."""
    bank = pl.read_parquet(REFERENCE_BANK / "acceptance.parquet").filter(pl.col("category") == category)
    texts = []
    for _, rounds in bank.sort("round_idx").group_by("prompt_idx", "turn", maintain_order=True):
        right: list[int] = []
        for accepted in rounds["accept"]:
            right += [1] * accepted + [0] * (accepted < LONGEST_RUN)
        runs = np.zeros(len(right) + LAST_TOKENS, dtype=np.int64)
        for place in range(len(right) - 1, -1, -1):
            runs[place] = runs[place + 1] + 1 if right[place] else 0
        if len(right) > shortest:
            texts.append(runs)
    return texts


@dataclass
class Sequences:
    """A batch, each at a place of a text."""

    texts: list[IntArray]
    random: np.random.Generator
    at: list[tuple[int, int]] = field(default_factory=list)  # text, place

    @classmethod
    def of(cls, texts: list[IntArray], batch: int, random: np.random.Generator) -> Sequences:
        made = cls(texts, random)
        made.at = [made._anywhere() for _ in range(batch)]
        return made

    def copy(self, random: np.random.Generator) -> Sequences:
        return Sequences(self.texts, random, list(self.at))

    def _anywhere(self) -> tuple[int, int]:
        text = int(self.random.integers(len(self.texts)))
        return text, int(self.random.integers(max(self.texts[text].size - 3 * LAST_TOKENS, 1)))

    def step(self, depth: int) -> IntArray:
        """Tokens accepted of drafts of this depth."""
        accepted = np.zeros(len(self.at), dtype=np.int64)
        for i, there in enumerate(self.at):
            text, place = self._anywhere() if there[1] >= self.texts[there[0]].size - LAST_TOKENS else there
            accepted[i] = min(int(self.texts[text][place]), depth)
            self.at[i] = text, place + int(accepted[i]) + 1
        return accepted


@dataclass
class Engine:
    """Seconds of a step that verifies one depth and drafts another, at one batch."""

    verify: FloatArray
    draft: FloatArray

    @classmethod
    def of(cls, table: PriceTable, batch: int) -> Engine:
        verify = table.equal_seconds(batch)
        return cls(verify=verify, draft=table.round_seconds(batch) - verify)

    def seconds(self, verified: int, drafted: int) -> float:
        return float(self.verify[verified] + self.draft[drafted])


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One engine and its traffic; each seed is a swing."""

    policy: Path
    texts: dict[str, list[IntArray]]
    noise: float = 0.03
    jumps: float = 0.05
    turns: int = 9
    stalls: float = 0.0
    cycles: int = CYCLES
    tuning: Tuning | None = None

    def controller_rates(self, seed: int) -> list[float]:
        """Tokens per second by phase."""
        settings = {"mode": "adaptive", "policy": str(self.policy), "slowest_decision_seconds": 60.0}
        driver = build_driver(
            read_settings(settings, "replay"),
            max_depth=DEEPEST,
            candidates=None,
            engine="0",
            log=lambda _: None,
            tuning=self.tuning,
        )
        speed, rates, table = np.random.default_rng([seed, 0]), [], read_policy(self.policy).table.table
        for phase, (batch, _) in enumerate(PHASES):
            engine, request_ids, made = Engine.of(table, batch), [f"{phase} {i}" for i in range(batch)], np.zeros(2)
            for request_id in request_ids:
                driver.add(request_id, None)
            for there in self._starts(seed, phase):
                made += _turn(driver, request_ids, engine, there, speed, self)
            for request_id in request_ids:
                driver.drop(request_id)
            rates.append(made[0] / made[1])
        return rates

    def fixed_rates(self, seed: int, depth: int) -> list[float]:
        """The same of a fixed depth, on the same texts."""
        rates, table = [], read_policy(self.policy).table.table
        for phase, (batch, _) in enumerate(PHASES):
            engine, made = Engine.of(table, batch), np.zeros(2)
            for there in self._starts(seed, phase):
                made += _fixed_turn(engine, there, depth)
            rates.append(made[0] / made[1])
        return rates

    def _starts(self, seed: int, phase: int) -> Iterator[Sequences]:
        """Where every turn of a phase begins: small batches with the same texts in every turn of a cycle, larger ones
        where the turn before has ended."""
        batch, texts = PHASES[phase][0], self.texts[PHASES[phase][1]]
        going = Sequences.of(texts, batch, np.random.default_rng([seed, 1, phase]))
        for cycle in range(self.cycles):
            start = Sequences.of(texts, batch, np.random.default_rng([seed, 2, phase, cycle]))
            for turn in range(self.turns):
                random = np.random.default_rng([seed, 3, phase, cycle, turn])
                yield start.copy(random) if batch <= SAME_TEXT else going


def _fixed_turn(engine: Engine, there: Sequences, depth: int) -> FloatArray:
    """Tokens and seconds."""
    exact = engine.seconds(depth, depth)
    steps = max(round(SLICE_SECONDS / exact), LEAST_STEPS - SETTLE_STEPS)
    tokens = sum(len(there.at) + int(there.step(depth).sum()) for _ in range(steps))
    return np.array([tokens, steps * exact])


def _turn(
    driver: Driver,
    request_ids: list[str],
    engine: Engine,
    there: Sequences,
    speed: np.random.Generator,
    swing: Swing,
) -> FloatArray:
    """Tokens, and seconds without noise."""
    batch, level = len(request_ids), speed.normal(0.0, swing.jumps)
    made, elapsed, steps, held = np.zeros(2), 0.0, 0, 0
    while elapsed < SLICE_SECONDS or steps < LEAST_STEPS:
        depth = driver.draft_depth(request_ids) or 0
        accepted, exact = there.step(held), engine.seconds(held, depth)
        seconds = exact * math.exp(level + speed.normal(0.0, swing.noise)) * (1.0 + (speed.random() < swing.stalls))
        timed = math.nan if steps == 0 else seconds
        step = StepDone.of(np.full(batch, held), accepted, request_ids=request_ids, prompt_tokens=0, seconds=timed)
        driver.done(step, depth)
        if steps >= SETTLE_STEPS:
            made += batch + int(accepted.sum()), exact
            elapsed += seconds
        held, steps = depth, steps + 1
    return made


if __name__ == "__main__":
    main()
