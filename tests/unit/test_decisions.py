"""Plans and hurdles."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import ExpertPool
from specmargin.catalog.accuracy import price_errors
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.advice import Judgement, judge
from specmargin.decisions.certainty import speedup_ranges
from specmargin.decisions.payoff import payoff
from specmargin.decisions.plan import Plan, make_plan
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.decisions.verdict import details, verdict
from specmargin.errors import ParallelismError, ScenarioError
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel
from specmargin.prices.model import EngineTime
from specmargin.routing.profile import UNIFORM, expert_counter, remembering
from specmargin.sources import assumed
from specmargin.step import ExpertLoad, FloatArray, Step
from tests.scenarios import pricer, scenario

ROWS = [1, 2, 4, 8, 16, 32, 64]


def judged(plan: Plan) -> Judgement:
    errors = price_errors(plan.scenario.prices.name, plan.scenario.device.name)
    return judge(plan, speedup_ranges(plan, errors, own_acceptance=True))


def said(plan: Plan) -> str:
    return verdict(plan, judged(plan))


def test_the_plan_is_the_argmax_of_goodput() -> None:
    priced = pricer(drafter="mtp")
    plan = make_plan(priced, ROWS, Setting(max_depth=8))
    for row in plan.rows:
        every = [priced.grid([row.batch], 8).goodput[0, depth] for depth in range(9)]
        assert row.goodput_tokens_per_second == max(every)
        assert row.depth == int(np.argmax(every))
        assert row.speedup == pytest.approx(max(every) / row.no_spec_tokens_per_second)


def test_hurdle_is_marginal_price_times_goodput_and_splits_by_component() -> None:
    priced = pricer(drafter="mtp")
    row = make_plan(priced, [4], Setting(max_depth=8)).rows[0]
    step = Step.uniform(batch=4, depth=row.depth, context=priced.scenario.context)
    now, more = priced.marginal(step)
    marginal = float(more.total_seconds - now.total_seconds)
    assert row.hurdle == pytest.approx(marginal * row.goodput_tokens_per_second)
    assert sum(row.hurdle_by_component.values()) == pytest.approx(row.hurdle)


@given(batch=st.integers(1, 64), alpha=st.floats(0.05, 0.95))
def test_with_a_free_drafter_the_hurdle_says_whether_one_more_token_raises_goodput(batch: int, alpha: float) -> None:
    """The definition, checked: a token whose survival clears the hurdle raises goodput, one below lowers it."""
    priced = pricer(drafter="free", acceptance=f"{alpha}")
    depth = 1
    step = Step.uniform(batch=batch, depth=depth, context=priced.scenario.context)
    now, more = priced.marginal(step)
    committed = batch * (1 + alpha)
    goodput = committed / float(now.total_seconds)
    hurdle = goodput * float(more.total_seconds - now.total_seconds)
    for survival, better in ((hurdle * 1.01, True), (hurdle * 0.99, False)):
        after = (committed + survival) / float(more.total_seconds)
        assert (after > goodput) is better


def test_graph_limit_is_never_stepped_over() -> None:
    priced = pricer(drafter="mtp", memory_utilization=1.0)
    batches = list(range(1, 600, 7))
    plan = make_plan(priced, batches, Setting(max_depth=8, graph_limit=512))
    for row in plan.rows:
        assert row.depth == 0 or row.batch * (row.depth + 1) <= 512
    free = make_plan(priced, batches, Setting(max_depth=8))
    assert any(row.batch * (row.depth + 1) > 512 for row in free.rows)


def test_graph_limit_counts_what_one_rank_sees() -> None:
    """Data parallelism spreads sequences: 1024 over 8 ranks are 128 each, and 128 × 4 positions have a graph."""
    priced = pricer("deepseek-v3", drafter="mtp", layout=Layout(gpus=8, parallel=Parallel.DP_EP))
    plan = make_plan(priced, [1024], Setting(max_depth=3, graph_limit=512))
    assert plan.rows[0].depth > 0


def test_no_speculation_pays_nothing_when_nothing_is_accepted() -> None:
    plan = make_plan(pricer(drafter="mtp", acceptance="0"), ROWS, Setting(max_depth=8))
    assert not plan.pays
    assert all(row.depth == 0 and row.speedup == 1.0 for row in plan.rows)
    assert plan.stops_at_batch == 1
    assert said(plan).startswith("No: ")


def test_off_may_lose_against_none() -> None:
    """An engine with speculation configured but off is not the same as one without it."""
    time = EngineTime(off_step_seconds=1e-4, source=assumed("test"))
    plan = make_plan(pricer(drafter="mtp", acceptance="0", engine_time=time), [1], Setting(max_depth=4))
    assert plan.rows[0].depth == 0
    assert plan.rows[0].speedup < 1.0
    assert not plan.pays


def test_fixed_time_makes_depth_cheaper() -> None:
    """The lesson of every measurement: relative to a step with fixed time, drafts cost little."""
    bare = make_plan(pricer(drafter="mtp"), [1], Setting(max_depth=8)).rows[0]
    time = EngineTime(step_seconds=2.4e-3, layer_seconds=20e-6, source=assumed("test"))
    real = make_plan(pricer(drafter="mtp", engine_time=time), [1], Setting(max_depth=8)).rows[0]
    assert real.depth > bare.depth
    assert real.speedup > bare.speedup
    assert sum(real.hurdle_by_component.values()) < sum(bare.hurdle_by_component.values())


def test_where_it_stops_paying() -> None:
    priced = pricer("llama-3.1-8b", "h100", "eagle", acceptance="0.5", context=16)
    ((first, last),) = payoff(priced, Setting(max_depth=4), up_to=4096).paying
    assert first == 1
    grid = priced.grid([last, last + 1, last + 50], 4)
    gain = grid.goodput[:, 1:].max(axis=1) / grid.no_spec_goodput
    assert gain[0] > 1.0
    assert gain[1] <= 1.0
    assert gain[2] <= 1.0


def test_a_mixture_may_pay_in_two_ranges_and_the_verdict_says_so() -> None:
    """At low acceptance it pays alone, not at a few sequences, and again once the experts are all loaded anyway."""
    plan = make_plan(pricer(drafter="mtp", acceptance="0.62"), [1, 4, 64], Setting(max_depth=8))
    assert len(plan.paying) > 1
    assert [row.depth > 0 for row in plan.rows] == [True, False, True]
    assert details(plan, judged(plan))[0].startswith("It pays at batch 1 and ")


@given(batch=st.integers(1, 256), alpha=st.floats(0.01, 0.99))
def test_switch_acceptance_is_where_the_verdict_turns(batch: int, alpha: float) -> None:
    priced = pricer(drafter="mtp", acceptance=f"{alpha}")
    plan = make_plan(priced, [batch], Setting(max_depth=6))
    switch = plan.switch_acceptance
    gains = priced.grid([batch], 6).goodput[0, 1:].max() > priced.grid([batch], 6).no_spec_goodput[0]
    if switch is None:
        assert not gains
    elif abs(alpha - switch) > 1e-6:
        assert gains == (alpha > switch)


def test_memory_that_drafts_take_is_part_of_the_verdict() -> None:
    """A state for every draft token: a hybrid model fits a fraction of the sequences, and may serve less when full."""
    plan = make_plan(pricer(drafter="mtp", acceptance="0.78"), [1, 16, 64], Setting(max_depth=8))
    assert plan.largest_batch < 0.5 * plan.no_spec_largest_batch
    assert plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second
    assert plan.loses_capacity and "\nFits in memory: " in said(plan)
    shallow = make_plan(pricer(drafter="mtp", acceptance="0.78"), [1], Setting.fixed(1))
    assert shallow.largest_batch > plan.largest_batch


def test_fixed_time_of_layers_is_charged_to_drafters_too() -> None:
    time = EngineTime(layer_seconds=40e-6, source=assumed("test"))
    bare, timed = (pricer(drafter="model:qwen3-0.6b", engine_time=t).grid([1], 5) for t in (EngineTime(), time))
    added = timed.draft_seconds[0, 5] - bare.draft_seconds[0, 5]
    assert added == pytest.approx(5 * 28 * 40e-6)


def test_moe_and_dense_differ_in_shape() -> None:
    """A mixture gains most at moderate batch, its experts all loaded, yet memory-bound; a dense model only loses."""
    batches = [1, 4, 16, 64, 256, 1024]
    moe = pricer("qwen3-30b-a3b", "h200", "free", context=256, memory_utilization=1.0)
    dense = pricer("llama-3.1-8b", "h200", "free", context=256, memory_utilization=1.0)

    def gains(priced: Pricer) -> FloatArray:
        grid = priced.grid(batches, 3)
        return grid.goodput[:, 3] / grid.no_spec_goodput

    assert int(np.argmax(gains(moe))) not in (0, len(batches) - 1)
    assert np.all(np.diff(gains(dense)) <= 1e-9)


def test_verdict_says_what_to_do_and_what_would_change_it() -> None:
    plan = make_plan(pricer(drafter="mtp", acceptance="0.78"), ROWS, Setting(max_depth=8, graph_limit=512))
    assert said(plan).startswith("Yes at batch ") and "\nThe gain is not certain at batch 1–" in said(plan)
    assert re.search(
        r"Pays above an acceptance of 0\.\d\d per token at batch 16; given: 0\.78\.",
        " ".join(details(plan, judged(plan))),
    )
    assert any(fact.startswith("Below a per-token acceptance of") for fact in details(plan, judged(plan)))


def test_rows_that_do_not_fit_are_marked() -> None:
    plan = make_plan(pricer(drafter="mtp"), [1, 4096], Setting(max_depth=8))
    assert [row.fits for row in plan.rows] == [True, False]
    nothing = make_plan(pricer(drafter="mtp"), [4096], Setting(max_depth=8))
    assert said(nothing).startswith("No: batch 4,096 does not fit in memory")


def test_a_model_too_large_is_refused_with_advice() -> None:
    priced = pricer("deepseek-v3", "h100", "free")
    with pytest.raises(ParallelismError, match=r"does not fit: weights need \d+ GB; one NVIDIA .* try --gpus"):
        make_plan(priced, [1], Setting(max_depth=2))


def test_smaller_weights_are_advised_only_where_they_fit() -> None:
    with pytest.raises(
        ParallelismError, match=r"need \d+ GB; one .*4090 has 22 GB to use; not even 4-bit .* several GPUs"
    ):
        make_plan(pricer("deepseek-v3", "rtx-4090", "free"), [1], Setting(max_depth=2))
    with pytest.raises(ParallelismError, match="smaller --weights"):
        make_plan(pricer("qwen3.6-35b-a3b", "rtx-4090", "free"), [1], Setting(max_depth=2))


@pytest.mark.parametrize(("batches", "depth"), [([0], 4), ([1], -1), ([1], 65), ([1 << 20], 4)])
def test_ranges_are_checked(batches: list[int], depth: int) -> None:
    with pytest.raises(ScenarioError, match="must lie in"):
        make_plan(pricer(), batches, Setting(max_depth=depth))


def test_scenarios_are_checked() -> None:
    with pytest.raises(ScenarioError, match="beyond"):
        scenario(context=1_000_000.0)
    with pytest.raises(ScenarioError, match="negative"):
        scenario(context=-1.0)
    with pytest.raises(ScenarioError, match="utilization"):
        scenario(memory_utilization=0.0)


def test_steps_are_checked() -> None:
    for bad in ({"batch": -1}, {"batch": 1, "depth": -1}, {"batch": 1, "context": -1}, {"batch": 1, "context": np.nan}):
        with pytest.raises(ScenarioError):
            Step.uniform(**bad)
    with pytest.raises(ScenarioError):
        Step.ragged(depths=[], contexts=0)


def test_devices_fall_back_to_bf16_for_formats_they_lack() -> None:
    a100 = find_device("a100")
    assert a100.rate(Arithmetic.FP8) == a100.rate(Arithmetic.BF16) == 312e12
    assert a100.rate(Arithmetic.FP32) == 156e12


def test_experts_are_remembered_by_step_and_forgotten_without_harm() -> None:
    counted: list[Step] = []
    plain = expert_counter(UNIFORM)

    def count(pools: tuple[ExpertPool, ...], step: Step) -> ExpertLoad:
        counted.append(step)
        return plain(pools, step)

    remembered, pools = remembering(count), find_model("qwen3.6-35b-a3b").pools
    for batch in [*range(1, 101), 100, 100]:
        step = Step.uniform(batch=batch, depth=2)
        np.testing.assert_array_equal(remembered(pools, step).distinct_by_group, plain(pools, step).distinct_by_group)
    assert len(counted) == 100
