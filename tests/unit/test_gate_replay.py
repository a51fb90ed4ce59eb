"""The whole loop of the gate in the workers, replayed on rounds that were measured on an H200.

Driver, orders, budgets from confidences that are two steps old, the split by the newest ones, what comes back, and
learning; only the engine is replaced: its seconds are fitted to `lab/results/vllm-0.32-h200/gates.json`, and
drafts come from a synthetic bank.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.gpu.replay import Bank, fitted, synthetic_bank

from specmargin.live.building import build_driver
from specmargin.live.driver import Driver
from specmargin.live.gating import Returned, expectation
from specmargin.live.policy_schema import PolicyFile
from specmargin.live.pricing import RECENT, GatePrices, StepDrafts, gate_prices, rounds_for
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import read_settings
from specmargin.policies.kernel.budget import ranking_confidences
from specmargin.step import FloatArray, IntArray
from tests.command_line import run

MEASURED = Path(__file__).parents[2] / "lab/results/vllm-0.32-h200/gates.json"
ROOT = Path(__file__).parents[2] / "src/specmargin/catalog"
DEPTH, GRAPHS = 5, [1, 2, 4, 8, *range(16, 513, 8)]
NOISE = 0.01


@cache
def milliseconds(batch: int) -> FloatArray:
    """Of a round: constant, per depth drafted, per token verified and its square, by least absolute deviations."""
    rows = [row for row in json.loads(MEASURED.read_text())["rows"] if row["batch"] == batch]
    turns = [turn for row in rows for block in row["blocks"] for turn in block.values() if len(turn["depths"]) == 1]
    drafted = np.array([int(*turn["depths"]) for turn in turns], dtype=np.float64)
    verified = np.array([turn["verified"] / turn["rounds"] / batch for turn in turns])
    seconds = np.array([turn["seconds"] / turn["rounds"] for turn in turns])
    terms = np.stack([np.ones_like(drafted), drafted, verified, verified**2], axis=1)
    found: FloatArray = np.zeros(terms.shape[1])
    for _ in range(30):
        weight = 1.0 / np.sqrt(np.abs(seconds - terms @ found) + 1e-5)
        found = np.asarray(np.linalg.lstsq(terms * weight[:, np.newaxis], seconds * weight)[0], dtype=np.float64)
    return np.asarray(found * 1e3)


def round_seconds(batch: int, drafted: int, verified: int) -> float:
    depth = verified / batch
    return float(milliseconds(batch) @ np.array([1.0, drafted, depth, depth**2])) * 1e-3


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "gate.policy.json"
    head = ROOT / "measurements/eagle3-qwen3-30b-a3b.json"
    acceptance = ROOT / "acceptance/reference-moe.acceptance.json"
    where = ["--gpu", "h200", "--engine", "vllm", "--routing", "uniform", "--context", "512", "--max-batch", "256"]
    draft = ["--drafter", f"eagle:{head}", "--depth", str(DEPTH), "--acceptance", str(acceptance)]
    run("plan", "qwen3-30b-a3b", *where, *draft, "--policy", str(path))
    return path


@dataclass(kw_only=True)
class Server:
    """With a driver it decides by Specmargin; without one it drafts and verifies `depth` tokens."""

    bank: Bank
    expected: FloatArray  # by round of the bank and depth: conditional acceptance, as a calibrated estimator has it
    prices: GatePrices
    driver: Driver | None = None
    depth: int = 0
    _noise: Any = field(default_factory=lambda: np.random.default_rng(5))

    def play(self, batch: int, kind: int, turn: int, rounds: int) -> float:
        """Tokens per second."""
        ids = [str(i) for i in range(batch)]
        first, count = int(self.bank.first[kind]), int(self.bank.count[kind])
        place = (np.arange(1, batch + 1) * 7919 + turn * 104_729) % count
        recent = np.tile(self.prices.prior, (RECENT, batch, 1))
        held, newest, seconds, tokens = 0, 0, 0.0, 0
        unseen: deque[tuple[StepDone, int]] = deque()
        for number in range(rounds):
            rows = first + (place + number) % count
            now = self.expected[rows]
            depth, budget = self._decide(ids, held, recent, newest)
            verified = self._split(now, held, budget)
            accepted = np.minimum(self.bank.accepted[rows], verified)
            took = round_seconds(batch, depth, int(verified.sum())) * float(np.exp(self._noise.normal(0.0, NOISE)))
            seconds, tokens = seconds + took, tokens + batch + int(accepted.sum())
            if self.driver is not None:
                unseen.append((self._done(now, held, verified, accepted, took), depth))
                if len(unseen) > 1:  # async scheduling: an outcome is known one step later
                    self.driver.done(*unseen.popleft())
            newest = (newest + 1) % RECENT
            recent[newest] = now if held else recent[newest - 1]
            held = depth
        return tokens / seconds

    def _decide(self, ids: list[str], held: int, recent: FloatArray, newest: int) -> tuple[int, int]:
        """The depth to draft, and how many tokens are verified."""
        batch = len(ids)
        if self.driver is None:
            return self.depth, held * batch
        self.driver.verify_whole()
        depth = self.driver.draft_depth(ids) or 0
        order = self.driver.gate_order(batch, depth)
        if not (order.gated and self.driver.device_gate) or held == 0:
            return depth, held * batch
        drafts = StepDrafts(
            confidence=recent[(newest - np.arange(rounds_for(batch))) % RECENT],
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
        step = StepDone.of(verified, accepted, prompt_tokens=0, seconds=seconds, depth=held)
        if held and self.driver.device_gate:
            back = Returned(verified.astype(np.int32), now.astype(np.float32))
            step.expected = expectation(back, np.full(verified.size, held), verified, self.driver.learned_depth)
            step.acceptance = back.acceptance
        return step


@pytest.fixture(scope="module")
def servers(policy: Path) -> dict[str, Server]:
    """The gate with its controller, the controller alone, and every fixed depth."""
    bank = synthetic_bank(DEPTH, rounds=4096)
    slope, intercepts = fitted(bank)
    confidence = np.clip(bank.confidence.astype(np.float64), 1e-4, 1.0 - 1e-4)
    odds = slope * np.log(confidence / (1.0 - confidence)) + np.array(intercepts)
    prices = gate_prices(PolicyFile.model_validate_json(policy.read_text()), DEPTH)
    prices.set_graphs(GRAPHS)
    shared: Any = {"bank": bank, "expected": 1.0 / (1.0 + np.exp(-odds)), "prices": prices}
    made = {f"depth {depth}": Server(**shared, depth=depth) for depth in range(DEPTH + 1)}
    for name, gated in (("controller", False), ("gate", True)):
        patient = {"mode": "adaptive", "policy": str(policy), "slowest_decision_seconds": 60.0}
        driver = build_driver(
            read_settings(patient, "test"),
            max_depth=DEPTH,
            candidates=tuple(range(DEPTH + 1)),
            engine="0",
            log=lambda _: None,
            device_gate=gated,
            graph_positions=max(GRAPHS),
        )
        made[name] = Server(**shared, driver=driver)
    return made


def test_the_gate_keeps_up_with_the_best_depth_at_every_load(servers: dict[str, Server]) -> None:
    """Loads and traffics follow each other in one server, as in the benchmark. One sequence is not gated; at 16 all
    experts are read anyway, so whole drafts are best."""
    ratios = {}
    for batch in (1, 4, 16, 64):
        for kind in (0, 1):
            speed = {}
            for name, server in servers.items():
                if server.driver is not None:
                    server.play(batch, kind, 99, 150)  # it learns
                speed[name] = float(np.mean([server.play(batch, kind, turn, 80) for turn in range(4)]))
            best = max(value for name, value in speed.items() if name.startswith("depth"))
            ratios[batch, kind] = speed["gate"] / best, speed["controller"] / best
            print(batch, servers["gate"].bank.names[kind], *(f"{n} {v / best:.3f}" for n, v in speed.items()))
    gate, alone = np.array(list(ratios.values())).T
    assert gate.min() > 0.98
    assert alone.min() > 0.98
    assert np.exp(np.log(gate).mean()) > np.exp(np.log(alone).mean()) + 0.01
