"""Pricers: what those of changed scenarios share, and that sharing changes no price."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.routing_profiles import bundled_routing, find_routing
from specmargin.decisions import memo
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel, Placement
from specmargin.prices.model import EngineTime
from specmargin.routing import profile
from specmargin.routing.profile import UNIFORM, RoutingProfile, expert_counter
from specmargin.sources import assumed
from specmargin.step import ExpertCounter, ExpertLoad, Step
from tests.scenarios import pricer, scenario

BATCHES = [1, 8, 64]
ENGINE = EngineTime(step_seconds=1e-3, graph_limit=128, eager_layer_seconds=1e-5, floor_layer_seconds=2e-4)


class Counted:
    """A counter of experts, counted itself."""

    def __init__(self) -> None:
        self.calls = 0
        self._count = expert_counter(UNIFORM)

    def __call__(self, pools: object, step: Step) -> ExpertLoad:
        self.calls += 1
        return self._count(pools, step)  # type: ignore[arg-type]


def test_a_scenario_is_a_value() -> None:
    """Nothing can be kept in it: its fields are all there is."""
    one = scenario(drafter="mtp")
    assert not hasattr(one, "__dict__")
    with pytest.raises(FrozenInstanceError):
        one.context = 0.0  # type: ignore[misc]
    assert replace(one, context=2048.0).context == 2048.0


CHANGES: dict[str, Callable[[Pricer], Pricer]] = {
    "survival": lambda first: first.with_survival(parse_acceptance("0.5")),
    "context": lambda first: first.with_context(8192.0),
    "graph limit": lambda first: first.with_graph_limit(16),
    "every graph": lambda first: first.with_graph_limit(None),
    "launches": lambda first: first.without_launches(),
    "routing": lambda first: first.under_uniform_routing(),
    "several": lambda first: first.with_graph_limit(16).under_uniform_routing().with_context(64.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("layout", [Layout(), Layout(gpus=4, parallel=Parallel.DP_EP)], ids=["1 GPU", "dp-ep"])
def test_a_changed_pricer_prices_as_a_new_one_does(change: Callable[[Pricer], Pricer], layout: Layout) -> None:
    """Whatever was priced before the change."""
    routing = find_routing("qwen3.6-35b-a3b", scenario().architecture)
    first = pricer(drafter="mtp", engine_time=ENGINE, routing=routing, layout=layout)
    first.grid(BATCHES, 8, 64.0)
    first.grid(BATCHES, 8)
    first.under_uniform_routing().grid(BATCHES, 8)
    assert first.sources
    changed = change(first)
    fresh = Pricer(changed.scenario)
    for name in ("verify_seconds", "draft_seconds", "round_seconds", "committed", "no_spec_seconds"):
        np.testing.assert_array_equal(getattr(changed.grid(BATCHES, 8), name), getattr(fresh.grid(BATCHES, 8), name))
    step = Step.uniform(batch=np.array(BATCHES), depth=3, context=changed.scenario.context)
    for price, fresh_price in zip(changed.marginal(step), fresh.marginal(step), strict=True):
        np.testing.assert_array_equal(price.total_seconds, fresh_price.total_seconds)
    assert (changed.memory, changed.sources) == (fresh.memory, fresh.sources)
    assert changed.largest_batch(4) == fresh.largest_batch(4)
    assert changed.no_spec_largest_batch == fresh.no_spec_largest_batch


def test_what_stays_valid_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counted()
    monkeypatch.setattr(memo, "shared_counter", lambda *_: count)
    first = Pricer(scenario())
    first.grid(BATCHES, 8)
    first.grid(BATCHES, 4)
    assert count.calls == 1
    for same in (first.with_survival(parse_acceptance("0.5")), first.with_graph_limit(16)):
        same.grid(BATCHES, 8)
    first.with_context(64.0).with_context(first.scenario.context).grid(BATCHES, 8)
    assert count.calls == 1
    first.with_context(64.0).grid(BATCHES, 8)
    assert count.calls == 2


def test_scenarios_of_one_routing_share_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the GPU and the drafter; but not other ranks."""
    made: list[int] = []
    routing = bundled_routing("qwen3.6-35b-a3b", source=assumed("a profile of its own, of which nothing is counted"))

    def counter(
        profile_: RoutingProfile, ranks: int, placement: Placement, redundant: int, kept: int = 0
    ) -> ExpertCounter:
        made.append(ranks)
        return expert_counter(profile_, ranks, placement, redundant, kept)

    monkeypatch.setattr(profile, "expert_counter", counter)
    for gpu, drafter in (("h200", "mtp"), ("b200", "free")):
        Pricer(scenario(gpu=gpu, drafter=drafter, routing=routing)).grid(BATCHES, 8)
    assert made == [1]
    spread = Layout(gpus=2, parallel=Parallel.EP)
    alone, two = (
        Pricer(made_of).grid(BATCHES, 8)
        for made_of in (scenario(routing=routing), scenario(routing=routing, layout=spread))
    )
    assert made == [1, 2]
    assert (alone.verify_seconds != two.verify_seconds).any()


def test_prices_under_uniform_routing_are_cached_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios: list[Scenario] = []
    make_memo = memo.Memo.of

    def counted(scenario: Scenario) -> memo.Memo:
        scenarios.append(scenario)
        return make_memo(scenario)

    first = pricer(routing=find_routing("qwen3.6-35b-a3b", scenario().architecture))
    monkeypatch.setattr(memo.Memo, "of", counted)
    changed = first.with_survival(parse_acceptance("0.5")).with_context(64.0)
    for one in (first, changed, first):
        assert one.under_uniform_routing().scenario.routing is UNIFORM
        assert one.under_uniform_routing().scenario.survival is one.scenario.survival
    assert len(scenarios) == 1


def test_rows_are_handed_out_whole_when_the_memo_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some batches cached and others new, and no space for both: the cached ones are in the result too."""
    monkeypatch.setattr(memo, "_MAX_ROWS", 5)
    small, fresh = pricer(drafter="mtp"), pricer(drafter="mtp")
    small.grid([1, 2, 3, 4], 4)
    np.testing.assert_array_equal(small.grid([3, 4, 5, 6], 4).goodput, fresh.grid([3, 4, 5, 6], 4).goodput)


def test_several_threads_share_a_memo_that_is_cleared_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the explorer's server does."""
    monkeypatch.setattr(memo, "_MAX_ROWS", 5)
    shared = pricer(drafter="mtp")
    requests = [([start, start + 1, start + 3], depth) for start in range(1, 20) for depth in (2, 4)]

    def goodput(batches: list[int], depth: int) -> np.ndarray:
        return shared.grid(batches, depth).goodput

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: goodput(*one), requests * 4))
    for (batches, depth), answer in zip(requests * 4, answers, strict=True):
        np.testing.assert_array_equal(answer, pricer(drafter="mtp").grid(batches, depth).goodput)
