"""Policies: greedy against the exact optimum, selective drafting from off, gates that stay inside their bounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from specmargin.decisions.setting import Setting
from specmargin.policies.controller import Controller
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import FixedDepth, OneWidthGate, RaggedGate, ScheduledDepth
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.study.replay import replay
from specmargin.policies.tables import scenario_table, study_table
from specmargin.prices.model import EngineTime
from specmargin.step import IntArray
from tests.scenarios import pricer
from tests.unit.controllers import look_ahead_at, survivals, verified


@pytest.mark.slow
def test_greedy_against_the_exact_optimum() -> None:
    """A thousand random small batches, drafting included: goodput of the gate at the rate it earns, against the best
    of all allocations. Mean loss at most 0.05%, the worst printed."""
    generator = np.random.default_rng(0)
    losses, verified_shares = [], []
    for trial in range(1000):
        batch, depth = (3, 3) if trial % 2 else (2, 4)
        table = random_table(generator, depth)
        drafting = table.drafting_seconds(np.full(batch, 1))
        survival = survivals(generator, batch, depth)

        def goodput(depths: IntArray) -> float:
            verified = np.arange(survival.shape[1]) < depths[:, np.newaxis]  # noqa: B023 (used at once)
            seconds = drafting + table.verify_seconds(depths)  # noqa: B023
            return float((depths.size + survival[verified].sum()) / seconds)  # noqa: B023

        best = max(goodput(np.array(option)) for option in product(range(depth + 1), repeat=batch))
        chosen = np.zeros(batch, dtype=np.int64)
        for _ in range(6):
            gate = RaggedGate(table=table, look_ahead=look_ahead_at(table, goodput(chosen)))
            before, chosen = chosen, verified(gate, survival, np.full(batch, depth))
            if (chosen == before).all():  # and so it would stay
                break
        losses.append(1.0 - goodput(chosen) / best)
        verified_shares.append(float(chosen.mean()) / depth)
    shares = np.array(verified_shares)
    assert np.mean((shares > 0.0) & (shares < 1.0)) > 0.2  # most have something to choose
    print(f"greedy loses {np.mean(losses):.4%} on average, {np.max(losses):.2%} at worst")
    assert np.mean(losses) <= 0.0005
    assert np.min(losses) >= -1e-9


def random_table(generator: np.random.Generator, depth: int) -> PriceTable:
    """From positions that cost nothing to positions that cost more than the step's fixed time."""
    table = study_table(by_pass=False, max_batch=8, max_depth=depth)
    batch, run = np.arange(9.0)[:, np.newaxis], np.arange(1.0, depth + 2.0)
    fixed, position = float(generator.uniform(0.2e-3, 4e-3)), float(10.0 ** generator.uniform(-5.5, -2.5))
    rest = fixed + position * batch * run
    return PriceTable.of(**table._asdict() | {"rest_seconds": rest})


def expensive_table() -> PriceTable:
    """Every verified position costs a lot: at the mean, no draft pays."""
    batch, depth = np.arange(65.0)[:, np.newaxis], np.arange(9.0)
    cheap = study_table(by_pass=False, max_batch=64)
    rest = 4e-3 + 0.8e-3 * batch * (depth + 1.0)
    return PriceTable.of(
        **cheap._asdict() | {"rest_seconds": rest, "expert_seconds": np.zeros_like(cheap.expert_seconds)}
    )


def test_selective_drafting_is_found_from_off() -> None:
    """Half of the drafts are nearly sure, half hopeless. By the mean nothing pays; by the sample, drafting does."""
    table = expensive_table()
    sure = np.tile(0.97 ** np.arange(1, 9), (50, 1))
    hopeless = np.tile(0.02 ** np.arange(1, 9), (50, 1))
    sample = np.concatenate([sure, hopeless])
    assert ScheduledDepth.homogeneous(table, sample.mean(axis=0)).draft(16).depth == 0
    ahead = look_ahead(table, sample)
    assert ahead.depth(16) > 0
    controller = Controller(table=table, prior_survival=sample.mean(axis=0), look_ahead=ahead)
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 100, 16) for _ in range(200)]
    accepted = np.where(np.arange(100) < 50, 8, 0)
    gated = replay(controller, table, sample, accepted, rows).goodput
    assert gated > 1.02 * replay(FixedDepth(depth=0), table, sample, accepted, rows).goodput


def test_gates_never_verify_what_was_not_drafted() -> None:
    generator = np.random.default_rng(1)
    table = study_table(by_pass=True, max_batch=64)
    ahead = look_ahead(table, survivals(generator, 200, 8))
    for gate in (RaggedGate(table=table, look_ahead=ahead), OneWidthGate(table=table, look_ahead=ahead)):
        for _ in range(100):
            batch = int(generator.integers(1, 65))
            drafted = generator.integers(0, 9, batch)
            chosen = verified(gate, survivals(generator, batch, 8), drafted)
            assert (chosen <= drafted).all()
            assert (chosen >= 0).all()


def test_ragged_steps_stay_inside_their_graph() -> None:
    """128 sequences of depth 3 fill a graph of 512 positions: one token more costs what depth 4 costs."""
    priced = pricer("qwen3-30b-a3b", drafter="eagle", engine_time=EngineTime(graph_limit=512, eager_layer_seconds=1e-3))
    table = scenario_table(priced, Setting.of(priced.scenario, max_depth=4), max_batch=128)
    full = np.full(128, 3)
    over = full.copy()
    over[0] = 4
    assert table.graph_depth_by_batch[128] == 3
    assert table.verify_seconds(over) > table.verify_seconds(full) + 0.04
    assert table.verify_seconds(over) == pytest.approx(table.verify_seconds(np.full(128, 4)), rel=0.05)
