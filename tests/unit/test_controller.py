"""The controller on replayed engines: wrong prices, changing acceptance and changing load.

Each step drafts one depth and verifies the one before, with noise, and outcomes arrive eight steps at a time.
"""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import Outcome
from specmargin.policies.tables import study_table
from specmargin.step import FloatArray
from tests.surfaces import Phase, Replayed, Surface, best_goodput, replay

DEEPEST = 8
SETTLED = 200
SEEDS = 5  # in one stream of twenty a chance draw keeps a worse depth for hundreds of steps, which costs 5 to 10%


def geometric(acceptance: float) -> FloatArray:
    return np.asarray(acceptance ** np.arange(1.0, DEEPEST + 1.0), dtype=np.float64)


def goodputs(
    table: PriceTable, phases: list[Phase], prior: float, *, settled: int = SETTLED, noise: float = 0.03
) -> list[float]:
    """By phase, after so many steps of it: goodput relative to its best depth in hindsight, mean of streams."""
    ratios = []
    for seed in range(SEEDS):
        controller = Controller(table=table, prior_survival=geometric(prior))
        replayed = replay(controller, phases, seed=seed, noise=noise, learn_every=8)
        ratios.append(_by_phase(replayed, phases, settled))
    means = [float(np.mean(ratio)) for ratio in zip(*ratios, strict=True)]
    print("of the best depth:", *(f"{mean:.4f}" for mean in means))
    return means


def _by_phase(replayed: Replayed, phases: list[Phase], settled: int) -> list[float]:
    ratios, first = [], 0
    for phase in phases:
        ratios.append(replayed.goodput(first + settled, first + phase.steps) / best_goodput(phase))
        first += phase.steps
    return ratios


# --- wrong prices ---


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("times", [3.0, 6.0])
@pytest.mark.parametrize("part", ["drafting", "every drafted token"])
def test_drafts_that_cost_several_times_their_price(batch: int, times: float, part: str) -> None:
    """Plain steps take what was planned. Over rounds 300 to 1,500 it is held against them, and against the best depth
    where one still pays."""
    table = study_table(by_pass=True, max_batch=64)
    planned = Surface.of(table, batch)
    if part == "drafting":
        surface = planned.slower(draft=times)
    else:
        added = (times - 1.0) * np.arange(DEEPEST + 1.0) * (planned.round_seconds[1] - planned.round_seconds[0])
        surface = Surface(
            batch=batch, verify_seconds=planned.verify_seconds + added, draft_seconds=planned.draft_seconds
        )
    phase = Phase(surface=surface, acceptance=0.5, steps=1500)
    assert goodputs(table, [phase], 0.65, settled=300)[0] >= 0.97


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize(("verify", "draft"), [(2.0, 2.0), (0.5, 0.5), (2.0, 1.0), (1.0, 2.0), (1.0, 0.5)])
def test_a_table_that_is_wrong_by_a_factor_of_two(batch: int, verify: float, draft: float) -> None:
    table = study_table(by_pass=True, max_batch=64)
    surface = Surface.of(table, batch).slower(verify=verify, draft=draft)
    assert goodputs(table, [Phase(surface=surface, acceptance=0.7, steps=800)], 0.7)[0] >= 0.97


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("plain_steps", [1.0, 5.0, 20.0])
def test_a_slow_host(batch: int, plain_steps: float) -> None:
    """A fixed time that no price knows, in plain steps."""
    table = study_table(by_pass=True, max_batch=64)
    planned = Surface.of(table, batch)
    surface = planned.slower(fixed_seconds=plain_steps * planned.verify_seconds[0])
    assert goodputs(table, [Phase(surface=surface, acceptance=0.75, steps=800)], 0.65)[0] >= 0.97


def test_a_host_that_becomes_slow() -> None:
    table = study_table(by_pass=True, max_batch=64)
    planned = Surface.of(table, 8)
    slow = planned.slower(fixed_seconds=5.0 * planned.verify_seconds[0])
    phases = [Phase(surface=surface, acceptance=0.7, steps=800) for surface in (planned, slow, planned)]
    assert min(goodputs(table, phases, 0.7, settled=300)) >= 0.97


# --- changes ---


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_changing_acceptance(batch: int) -> None:
    table = study_table(by_pass=True, max_batch=64)
    surface = Surface.of(table, batch)
    phases = [Phase(surface=surface, acceptance=acceptance, steps=600) for acceptance in (0.85, 0.3, 0.85)]
    assert min(goodputs(table, phases, 0.7)) >= 0.97


def test_texts_that_differ_are_followed() -> None:
    """One sequence, a new text every 60 steps, which accepts 0.35 or 0.85 of its tokens: more than any fixed depth."""
    surface, ratios = Surface.of(study_table(by_pass=True, max_batch=64), 1), []
    for seed in range(6):
        acceptances = np.random.default_rng(seed).choice([0.35, 0.85], 40)
        phases = [Phase(surface=surface, acceptance=float(acceptance), steps=60) for acceptance in acceptances]
        controller = Controller(table=study_table(by_pass=True, max_batch=64), prior_survival=geometric(0.6))
        made = replay(controller, phases, seed=seed, learn_every=8).goodput(20 * 60, 40 * 60)
        tokens = np.mean([np.cumsum(acceptance ** np.arange(DEEPEST + 1.0)) for acceptance in acceptances[20:]], axis=0)
        ratios.append(made / float(np.max(tokens / surface.round_seconds)))
    print(f"{np.mean(ratios):.4f} of the best fixed depth")
    assert np.mean(ratios) > 1.008


@pytest.mark.parametrize("draft", [1.0, 3.0])
def test_changing_load(draft: float) -> None:
    """100 steps after every change, with drafting at its price and at three times its price."""
    table = study_table(by_pass=True, max_batch=256)
    phases = [
        Phase(surface=Surface.of(table, batch).slower(draft=draft), acceptance=0.7, steps=300)
        for batch in (1, 4, 16, 64, 256, 16, 1)
    ]
    assert min(goodputs(table, phases, 0.7, settled=100)) >= 0.97


def test_probes_are_rare_where_they_cannot_win() -> None:
    """With prices that are right, probes and chance cost less than 0.2% of a long run."""
    table = study_table(by_pass=True, max_batch=64)
    phase = Phase(surface=Surface.of(table, 64), acceptance=0.7, steps=3000)
    controller = Controller(table=table, prior_survival=geometric(0.7))
    assert replay(controller, [phase], seed=0, learn_every=8).goodput(1000, 3000) >= 0.998 * best_goodput(phase)


# --- without times ---


def depths_without_times(acceptances: list[float], seconds: float, batch: int = 48) -> list[int]:
    """Depths of a controller that learns no times; each acceptance lasts 600 steps."""
    table = study_table(by_pass=True, max_batch=64, max_depth=6)
    settings = ControllerSettings(learn_times=False)
    controller = Controller(table=table, prior_survival=geometric(0.75), settings=settings)
    generator, depths = np.random.default_rng(0), []
    for acceptance in np.repeat(acceptances, 600):
        decision = controller.draft(batch)
        drafted = np.full(batch, decision.depth)
        accepted = np.minimum(generator.geometric(1.0 - acceptance, batch) - 1, drafted)
        outcome = Outcome(decision=decision, drafted=drafted, verified=drafted, accepted=accepted, seconds=seconds)
        assert controller.observe(outcome)
        depths.append(decision.depth)
    return depths


def test_without_times_seconds_change_nothing_and_nothing_is_probed_for_its_time() -> None:
    untimed = depths_without_times([0.75], np.nan)
    assert depths_without_times([0.75], 3.0) == untimed
    assert sum(depth != 6 for depth in untimed) < 12  # 2%; steps that are never timed would all have to be


def test_without_times_acceptance_still_switches_drafting_off_and_on_again() -> None:
    depths = depths_without_times([0.75, 0.02, 0.75], np.nan)
    assert np.mean(np.array(depths[800:1200]) == 0) > 0.9
    assert np.mean(np.array(depths[1500:]) == 6) > 0.9
