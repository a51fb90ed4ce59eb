"""The controller on measured rounds of an H200, replayed.

Each step drafts one depth and verifies the one before, with noise, and outcomes arrive eight steps at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from lab.validation.rounds.measured import GRAPH_LIMIT, MeasuredRounds, measured_rounds, round_pricer

from specmargin.catalog.engine_times import find_engine_time
from specmargin.decisions.setting import Setting
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.tables import scenario_table
from specmargin.step import FloatArray
from tests.surfaces import Phase, Surface, best_goodput, replay

DEEPEST = 8
SETTLED = 200
SEEDS = 3  # and their median: in one stream of dozens a chance draw keeps a worse depth for hundreds of steps


def geometric(acceptance: float) -> FloatArray:
    return np.asarray(acceptance ** np.arange(1.0, DEEPEST + 1.0), dtype=np.float64)


MEASURED = {
    (engine.name, int(batch)): engine for engine in measured_rounds() if engine.drafter for batch in set(engine.batch)
}


@cache
def measured_table(model: str, drafter: str) -> PriceTable:
    time = replace(find_engine_time(None, engine="vllm", prices="laws"), graph_limit=GRAPH_LIMIT)
    setting = Setting(max_depth=7, graph_limit=GRAPH_LIMIT)
    return scenario_table(round_pricer(model, drafter, "laws", time), setting, max_batch=256)


def measured_surface(engine: MeasuredRounds, batch: int) -> tuple[Surface, tuple[int, ...]]:
    """Measured rounds, drafting at its price; and the depths that were measured. Others are never chosen."""
    priced = Surface.of(measured_table(engine.model, engine.drafter), batch)
    depths = engine.depth[engine.batch == batch].astype(np.int64)
    verify = np.full(priced.verify_seconds.shape, np.inf)
    verify[depths] = engine.seconds[engine.batch == batch] - priced.draft_seconds[depths]
    surface = Surface(batch=batch, verify_seconds=verify, draft_seconds=priced.draft_seconds)
    return surface, tuple(int(depth) for depth in depths)


@pytest.mark.parametrize(("name", "batch"), sorted(MEASURED))
@pytest.mark.parametrize("acceptance", [0.5, 0.75])
def test_on_measured_rounds_it_does_not_lose_to_its_own_table(name: str, batch: int, acceptance: float) -> None:
    """vLLM 0.32 on an H200, three models. The schedule is the table's best depth; the best is that in hindsight."""
    engine = MEASURED[name, batch]
    surface, depths = measured_surface(engine, batch)
    table = measured_table(engine.model, engine.drafter)
    phase = Phase(surface=surface, acceptance=acceptance, steps=800)
    committed = np.cumsum(acceptance ** np.arange(table.max_depth + 1.0))
    allowed = [depth for depth in depths if depth <= table.graph_depth_by_batch[batch]]
    planned = max(allowed, key=lambda depth: committed[depth] / table.round_seconds(batch)[depth])
    scheduled = batch * committed[planned] / surface.round_seconds[planned]
    made = []
    for seed in range(SEEDS):
        controller = Controller(
            table=table, prior_survival=geometric(acceptance), settings=ControllerSettings(candidates=depths)
        )
        replayed = replay(controller, [phase], seed=seed, learn_every=8)
        made.append(replayed.goodput(SETTLED, phase.steps))
        assert set(replayed.depths.astype(np.int64)) <= set(allowed)
    best = best_goodput(phase, lambda depth: depth in allowed)
    median = float(np.median(made))
    print(f"{median / scheduled:.4f} of its table (depth {planned}), {median / best:.4f} of the best")
    assert median >= 0.99 * scheduled
    assert median >= 0.97 * best


def test_a_cliff_that_no_price_knows_is_found() -> None:
    """The table believes in a graph for every step; beyond 512 positions the engine takes three times as long."""
    engine = MEASURED["moe-eagle3", 256]
    surface, depths = measured_surface(engine, 256)
    table = PriceTable.of(
        **measured_table(engine.model, engine.drafter)._asdict()
        | {"rest_seconds": without_cliff(256), "graph_depth_by_batch": None}
    )
    phase = Phase(surface=surface, acceptance=0.75, steps=800)
    made = []
    for seed in range(SEEDS):
        controller = Controller(
            table=table, prior_survival=geometric(0.75), settings=ControllerSettings(candidates=(0, 1, 2, 3))
        )
        assert controller.draft(256).depth == 3
        made.append(replay(controller, [phase], seed=seed, learn_every=8).goodput(SETTLED, phase.steps))
    assert np.median(made) >= 0.97 * best_goodput(phase, lambda depth: depth in depths)


def without_cliff(max_batch: int) -> FloatArray:
    time = replace(find_engine_time(None, engine="vllm", prices="laws"), graph_limit=None)
    pricer = round_pricer("qwen3-30b-a3b", "eagle3", "laws", time)
    return scenario_table(pricer, Setting(max_depth=7), max_batch=max_batch).rest_seconds
