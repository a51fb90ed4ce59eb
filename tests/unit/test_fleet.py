"""Data-parallel ranks in lockstep: prices of the plan, routers, votes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specmargin.errors import ScenarioError
from specmargin.hardware.layout import Layout
from specmargin.modes import Router
from specmargin.prices.ranks import lockstep
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.fleet.results import FleetResult
from specmargin.simulator.fleet.run import simulate_fleet
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import (
    Cancels,
    ClosedLoop,
    FixedLength,
    LognormalLength,
    Poisson,
    RateSchedule,
    Sessions,
    Workload,
)
from specmargin.step import Step
from tests.simulations import curve_bank, serving

LARGE = EngineSettings(max_num_seqs=128, max_num_batched_tokens=4096, kv_blocks=100_000)
VARIED = LognormalLength(ln_mean=5.0, ln_sd=0.8, most=2000)


def fleet(ranks: int = 4, **changes: Any) -> Serving:
    settings: dict[str, Any] = {
        "router": Router.ROUND_ROBIN,
        "drafter": "eagle",
        "scenario_changes": {"layout": Layout.of(dp=ranks, ep=True), "context": 200},
        "engine": LARGE,
    }
    return serving(**(settings | changes))


def played(one: Serving, policy: str) -> FleetResult:
    return simulate_fleet(replace(one, policy=policy))


# --- prices ---


@pytest.mark.parametrize(("policy", "users"), [("none", 8), ("fixed:2", 8), ("fixed:2", 96)])
def test_equal_ranks_are_one_engine_that_spreads_its_batch_evenly(policy: str, users: int) -> None:
    one = fleet(
        arrivals=ClosedLoop(users=users, requests=users * 3),
        prompt=FixedLength(tokens=64),
        output=FixedLength(tokens=300),
    )
    together, alone = played(one, policy), simulate(replace(one, policy=policy, router=None))
    assert together.committed == alone.committed
    assert together.goodput == pytest.approx(alone.goodput, rel=0.02)
    assert together.mean_batch == pytest.approx(alone.mean_batch, rel=0.02)


@pytest.mark.parametrize(("policy", "depth"), [("none", 0), ("fixed:2", 2)])
def test_unequal_ranks_take_what_lockstep_prices(policy: str, depth: int) -> None:
    """Three requests on two ranks: the step of two sequences, at the experts of three. All drafts are accepted."""
    one = fleet(
        2,
        arrivals=ClosedLoop(users=3, requests=3),
        prompt=FixedLength(tokens=16),
        output=FixedLength(tokens=1 + 400 * (depth + 1)),
        bank=curve_bank("1.0"),
    )
    result = played(one, policy)
    context = 16.0 + 200 * (depth + 1)
    steps = [Step.ragged(depths=[depth], contexts=context).times(float(load)) for load in (2, 1)]
    expected = one.pricer.without_launches().verify(*lockstep(steps)).total_seconds.max()
    assert result.totals.decode / 400 == pytest.approx(float(expected), rel=0.005)
    assert result.busiest_over_mean == pytest.approx(2 / 1.5, rel=0.01)


def test_imbalance_costs_what_balance_would_save() -> None:
    """A rank that is alone with its requests waits for the others' padding and not for their sequences."""
    balanced = fleet(arrivals=ClosedLoop(users=32, requests=320), output=FixedLength(tokens=200))
    uneven = replace(balanced, workload=replace(balanced.workload, output=VARIED))
    even, odd = played(balanced, "none"), played(uneven, "none")
    assert even.busiest_over_mean < odd.busiest_over_mean
    assert even.padding_share < odd.padding_share
    assert 0.0 <= odd.imbalance_share + odd.padding_share < 1.0


# --- routers ---


def test_the_least_busy_rank_balances_better_than_turns() -> None:
    one = fleet(8, arrivals=Poisson(requests_per_second=300.0, requests=3000), output=VARIED)
    turns, least = (
        played(replace(one, router=router), "none") for router in (Router.ROUND_ROBIN, Router.LEAST_REQUESTS)
    )
    assert least.busiest_over_mean < turns.busiest_over_mean
    assert least.totals.finished == turns.totals.finished == 3000


def test_sessions_find_their_history_on_the_rank_that_has_it() -> None:
    workload = Workload(
        arrivals=Poisson(requests_per_second=20.0, requests=600),
        prompt=FixedLength(tokens=200),
        output=FixedLength(tokens=60),
        sessions=Sessions(turns=FixedLength(tokens=4), think_seconds=1.0),
    )
    one = replace(fleet(), workload=workload)
    found = {
        router: played(replace(one, router=router), "none").summary()["prefix_hit_share"]
        for router in (Router.ROUND_ROBIN, Router.PREFIX)
    }
    assert found[Router.PREFIX] > 2 * found[Router.ROUND_ROBIN]


def test_every_router_serves_a_closed_loop_to_its_end() -> None:
    for router in (Router.ROUND_ROBIN, Router.LEAST_REQUESTS):
        result = played(fleet(router=router, arrivals=ClosedLoop(users=10, requests=70), output=VARIED), "vote")
        assert result.totals.finished == 70
        assert np.isfinite(result.requests["finish_seconds"]).all()


@pytest.mark.parametrize("cancelled", [None, Cancels(share=0.3, seconds=0.2)])
@pytest.mark.parametrize("users", [0, 24])
def test_every_request_ends_once(users: int, cancelled: Cancels | None) -> None:
    """With little room for KV, so that ranks preempt; with clients that disconnect; at a rate and in a closed loop."""
    arrivals = ClosedLoop(users=users, requests=160) if users else Poisson(requests_per_second=80.0, requests=160)
    workload = Workload(arrivals=arrivals, prompt=FixedLength(tokens=200), output=VARIED, cancels=cancelled)
    little = EngineSettings(max_num_seqs=8, max_num_batched_tokens=256, kv_blocks=140)
    said = played(replace(fleet(engine=little), workload=workload), "vote").summary()
    assert said["finished"] + said["refused"] + said.get("cancelled", 0) == 160
    assert said["preemptions"] > 0
    assert (said.get("cancelled", 0) > 0) == (cancelled is not None)


# --- votes ---


def test_votes_follow_a_load_that_swings() -> None:
    """Against the best static depth in hindsight, and below what ranks with depths of their own would reach."""
    one = fleet(
        8,
        arrivals=RateSchedule(hours=(0.0, 0.01, 0.02), requests_per_second=(20.0, 3000.0, 20.0)),
        output=VARIED,
        bank=curve_bank("0.5"),
    )
    vote, best, each = (played(one, policy) for policy in ("vote", "best-fixed", "each-rank"))
    assert vote.busy_goodput >= 0.98 * best.busy_goodput
    assert each.busy_goodput >= 0.98 * vote.busy_goodput
    depths = [row["depth"] for row in vote.timeline()]
    assert max(depths) - min(depths) >= 1


def test_equal_inputs_give_equal_results() -> None:
    one = fleet(arrivals=Poisson(requests_per_second=100.0, requests=400), output=VARIED)
    assert played(one, "vote").summary() == played(one, "vote").summary()


# --- refused ---


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scenario_changes": {"layout": Layout.of(tp=4)}}, "add --dp N"),
        ({"model": "llama-3.1-70b", "scenario_changes": {"layout": Layout.of(tp=2, dp=4)}}, "do not wait"),
        ({"scenario_changes": {"layout": Layout.of(dp=2, pp=2, ep=True)}}, "leave out --pp"),
        ({"router": Router.PREFIX}, "known content"),
        ({"policy": "controller"}, "decides for one engine"),
    ],
)
def test_what_ranks_in_lockstep_are_not_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        simulate_fleet(fleet(**changes))


def test_a_vote_needs_ranks() -> None:
    with pytest.raises(ScenarioError, match="add --router NAME, with --dp N"):
        simulate(serving(policy="vote"))


def test_limits_are_of_each_rank_or_of_all() -> None:
    """As vLLM has them, and as SGLang."""
    of_rank, of_all = (
        fleet(engine=EngineSettings(max_num_seqs=64, max_num_batched_tokens=4096, limits_per_rank=each))
        for each in (True, False)
    )
    assert [(one.max_num_seqs, one.max_num_batched_tokens) for one in (of_rank, of_all)] == [(64, 4096), (16, 1024)]
    together = [replace(one, router=None) for one in (of_rank, of_all)]
    assert [(one.max_num_seqs, one.max_num_batched_tokens) for one in together] == [(256, 16384), (64, 4096)]
    assert {one.most_sequences for one in (of_rank, together[0])} == {256}
