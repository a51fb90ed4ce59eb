"""The gate in the workers replayed on rounds that were measured on an H200, by load: no GPU is needed.

    python -m lab.studies.replayed_gate --seeds 8

Driver, orders, budgets from confidences that are two steps old, the split by the newest ones, what comes back, and
learning are the real ones; only the engine is replaced. Its seconds are fitted to `two-decisions.json` and
`swing.json` of `lab/results/vllm-0.32-h200`, and its drafts come from a synthetic bank, by seed. Loads and traffics
follow each other in one server. Prints tokens per second over those of the best fixed depth on the same rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.gpu.replay import Bank, fitted, synthetic_bank
from specmargin.live.driver import Driver
from specmargin.live.driver_builder import build_driver
from specmargin.live.gate_messages import Returned, expectation
from specmargin.live.gate_prices import GatePrices, StepDrafts, gate_prices
from specmargin.live.policy_schema import PolicyFile
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import read_settings
from specmargin.policies.kernel.budget import ranking_confidences
from specmargin.policies.kernel.tuning import Tuning
from specmargin.step import FloatArray, IntArray

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "lab/results/vllm-0.32-h200"
CATALOG = ROOT / "src/specmargin/catalog"
LOADS = (1, 4, 16, 64, 128, 256)
DEPTH, GRAPHS = 5, [1, 2, 4, 8, *range(16, 513, 8)]
WITHOUT_GRAPH = 2.0  # a round beyond the largest graph takes so many times as long (256 sequences: 50 to 59 ms, not 25)
NOISE = 0.01
LEARNING_ROUNDS, TURNS, ROUNDS = 150, 4, 80


@cache
def milliseconds(batch: int) -> FloatArray:
    """Of a round: constant, per depth drafted, per token verified and its square, by least absolute deviations."""
    rounds = np.array(list(_measured(batch)))
    drafted, verified, seconds = rounds[rounds[:, 1] + 1.0 <= max(GRAPHS) / batch + 1e-6].T
    terms = np.stack([np.ones_like(drafted), drafted, verified, verified**2], axis=1)
    found: FloatArray = np.zeros(terms.shape[1])
    for _ in range(30):
        weight = 1.0 / np.sqrt(np.abs(seconds - terms @ found) + 1e-5)
        found = np.asarray(np.linalg.lstsq(terms * weight[:, np.newaxis], seconds * weight)[0], dtype=np.float64)
    return np.asarray(found * 1e3)


def _measured(batch: int) -> Iterator[tuple[float, float, float]]:
    """Of turns at one depth: tokens drafted and verified per sequence, and seconds, per round."""
    for name in ("two-decisions.json", "swing.json"):
        rows = [row for row in json.loads((MEASURED / name).read_text())["rows"] if row["batch"] == batch]
        for turn in (turn for row in rows for block in row["blocks"] for turn in block.values()):
            if len(turn["depths"]) == 1:
                depth = int(*turn["depths"])
                verified = turn["verified"] / turn["rounds"] / batch if "verified" in turn else depth
                yield depth, verified, turn["seconds"] / turn["rounds"]


def round_seconds(batch: int, drafted: int, verified: int) -> float:
    depth = verified / batch
    seconds = float(milliseconds(batch) @ np.array([1.0, drafted, depth, depth**2])) * 1e-3
    return seconds * (WITHOUT_GRAPH if batch + verified > max(GRAPHS) else 1.0)


def plan_policy(path: Path, *, depth: int = DEPTH, max_batch: int = 256) -> None:
    """The policy of the H200 runs (docs/live.md), with the calibrated confidences of the reference MoE."""
    head = ROOT / "lab/data/measurements/eagle3-qwen3-30b-a3b.json"
    acceptance = CATALOG / "acceptance/reference-moe.acceptance.json"
    where = [
        "--gpu",
        "h200",
        "--engine",
        "vllm",
        "--routing",
        "uniform",
        "--context",
        "512",
        "--max-batch",
        str(max_batch),
    ]
    draft = ["--drafter", f"eagle:{head}", "--depth", str(depth), "--acceptance", str(acceptance)]
    plan = [sys.executable, "-m", "specmargin", "plan", "qwen3-30b-a3b"]
    subprocess.run([*plan, *where, *draft, "--policy", str(path)], check=True, stdout=subprocess.DEVNULL)


@dataclass(kw_only=True)
class Server:
    """With a driver it decides by Specmargin; without one it drafts and verifies `depth` tokens."""

    bank: Bank
    expected: FloatArray  # by round of the bank and depth: conditional acceptance, as a calibrated estimator has it
    prices: GatePrices
    driver: Driver | None = None
    depth: int = 0
    noise: float = NOISE
    seed: int = 5
    depths: dict[int, int] = field(default_factory=dict)  # rounds by depth drafted
    _noise: Any = field(init=False)

    def __post_init__(self) -> None:
        self._noise = np.random.default_rng(self.seed)

    def play(self, batch: int, kind: int, turn: int, rounds: int) -> float:
        """Tokens per second."""
        ids = [str(i) for i in range(batch)]
        first, count = int(self.bank.first[kind]), int(self.bank.count[kind])
        place = (np.arange(1, batch + 1) * 7919 + turn * 104_729) % count
        recent = np.tile(self.prices.prior, (self.prices.tuning.recent_rounds, batch, 1))
        held, newest, seconds, tokens = 0, 0, 0.0, 0
        unseen: deque[tuple[StepDone, int]] = deque()
        for number in range(rounds):
            rows = first + (place + number) % count
            now = self.expected[rows]
            depth, budget = self._decide(ids, held, recent, newest)
            verified = self._split(now, held, budget)
            accepted = np.minimum(self.bank.accepted[rows], verified)
            exact = round_seconds(batch, depth, int(verified.sum()))
            took = exact * float(np.exp(self._noise.normal(0.0, self.noise)))
            seconds, tokens = seconds + took, tokens + batch + int(accepted.sum())
            self.depths[depth] = self.depths.get(depth, 0) + 1
            if self.driver is not None:
                unseen.append((self._done(now, held, verified, accepted, took), depth))
                if len(unseen) > 1:  # async scheduling: an outcome is known one step later
                    self.driver.done(*unseen.popleft())
            newest = (newest + 1) % len(recent)
            recent[newest] = now if held else recent[newest - 1]
            held = depth
        return tokens / seconds

    def _decide(self, ids: list[str], held: int, recent: FloatArray, newest: int) -> tuple[int, int]:
        """The depth to draft, and how many tokens are verified."""
        batch = len(ids)
        if self.driver is None:
            return self.depth, held * batch
        depth = self.driver.draft_depth(ids) or 0
        order = self.driver.gate_order(batch, depth)
        if not (order.gated and self.driver.device_gate) or held == 0:
            return depth, held * batch
        drafts = StepDrafts(
            confidence=recent[(newest - np.arange(self.prices.rounds_for(batch))) % len(recent)],
            drafted=np.full(batch, held),
            other_tokens=np.ones(batch, dtype=np.int64),
            sampling=batch,
            most=1 << 30,
        )
        return depth, self.prices.budget(drafts, order) or 0

    def _split(self, now: FloatArray, held: int, budget: int) -> IntArray:
        batch = now.shape[0]
        if budget >= held * batch:
            return np.full(batch, held)
        weights = self.prices.weights[min(batch, self.prices.weights.shape[0] - 1), :held]
        keys = np.cumprod(ranking_confidences(now[:, :held], weights), axis=1)
        kept = np.zeros(keys.size, dtype=np.bool_)
        kept[np.argsort(-keys.ravel(), kind="stable")[:budget]] = True
        return np.asarray(kept.reshape(keys.shape).sum(axis=1))

    def _done(self, now: FloatArray, held: int, verified: IntArray, accepted: IntArray, seconds: float) -> StepDone:
        assert self.driver is not None
        step = StepDone.of(verified, accepted, prompt_tokens=0, seconds=seconds)
        if held and self.driver.device_gate:
            back = Returned(verified.astype(np.int32), now.astype(np.float32))
            step.expected = expectation(back, np.full(verified.size, held), verified, self.driver.learned_depth)
        return step


def make_servers(
    policy: Path,
    seed: int = 0,
    noise: float = NOISE,
    *,
    controllers: Sequence[str] = ("controller", "gate"),
    fixed: Sequence[int] = range(DEPTH + 1),
    tuning: Tuning | None = None,
) -> dict[str, Server]:
    """The gate with its controller, the controller alone, and every fixed depth, or some of these."""
    bank = synthetic_bank(DEPTH, rounds=4096, seed=seed)
    slope, intercepts = fitted(bank)
    confidence = np.clip(bank.confidence.astype(np.float64), 1e-4, 1.0 - 1e-4)
    odds = slope * np.log(confidence / (1.0 - confidence)) + np.array(intercepts)
    prices = gate_prices(PolicyFile.model_validate_json(policy.read_text()), DEPTH, tuning)
    prices.set_graphs(GRAPHS)
    shared: Any = {"bank": bank, "expected": 1.0 / (1.0 + np.exp(-odds)), "prices": prices, "noise": noise}
    made = {f"depth {depth}": Server(**shared, depth=depth) for depth in fixed}
    for name in controllers:
        patient = {"mode": "adaptive", "policy": str(policy), "slowest_decision_seconds": 60.0}
        driver = build_driver(
            read_settings(patient, "replay"),
            max_depth=DEPTH,
            candidates=tuple(range(DEPTH + 1)),
            engine="0",
            log=print,
            device_gate=name == "gate",
            graph_positions=max(GRAPHS),
            tuning=tuning,
        )
        made[name] = Server(**shared, driver=driver, seed=5 + seed)
    return made


def play_load(servers: dict[str, Server], batch: int, kind: int) -> dict[str, float]:
    """Tokens per second over those of the best fixed depth, by contestant."""
    speed = speeds(servers, batch, kind)
    best = max(value for name, value in speed.items() if name.startswith("depth"))
    return {name: value / best for name, value in speed.items()}


def speeds(servers: dict[str, Server], batch: int, kind: int) -> dict[str, float]:
    """Tokens per second, by contestant."""
    speed = {}
    for name, server in servers.items():
        if server.driver is None and (server.depth + 1) * batch > max(GRAPHS):
            continue
        if server.driver is not None:
            server.play(batch, kind, 99, LEARNING_ROUNDS)
        speed[name] = float(np.mean([server.play(batch, kind, turn, ROUNDS) for turn in range(TURNS)]))
        if server.driver is not None and server.driver.guard.faults:
            raise RuntimeError(f"{name}: {dict(server.driver.guard.faults)}")
    return speed


def replay(policy: Path, seeds: int, noise: float = NOISE, loads: Sequence[int] = LOADS) -> FloatArray:
    """(seeds, loads, kinds, 2): ln of the gate's tokens per second, and of the controller's, over the best depth's."""
    logs = np.zeros((seeds, len(loads), 2, 2))
    for seed in range(seeds):
        servers = make_servers(policy, seed, noise)
        for place, batch in enumerate(loads):
            for kind in (0, 1):
                ratios = play_load(servers, batch, kind)
                logs[seed, place, kind] = np.log([ratios["gate"], ratios["controller"]])
    return logs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="a policy file; by default that of the H200 runs is planned")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--noise", type=float, default=NOISE, help="of the logarithm of a round's seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        policy = options.policy or Path(folder) / "gate.policy.json"
        if options.policy is None:
            plan_policy(policy)
        logs = replay(policy, options.seeds, options.noise)
    print("| sequences | gate over the best depth | lowest | controller alone | lowest |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    by_load = logs.mean(axis=2)
    for batch, of_load in zip([*LOADS, "all"], [*by_load.swapaxes(0, 1), by_load.mean(axis=1)], strict=True):
        gate, alone = (f"{_with_error(of_load[:, i])} | {np.exp(of_load[:, i].min()):.3f}" for i in (0, 1))
        print(f"| {batch} | {gate} | {alone} |")


def _with_error(logs: FloatArray) -> str:
    return f"{np.exp(logs.mean()):.4f} ± {logs.std() / np.sqrt(max(logs.size - 1, 1)):.4f}"


if __name__ == "__main__":
    main()
