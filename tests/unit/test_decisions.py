"""Plans, hurdles, loads, duels and schedules."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import ExpertPool
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.duel import duel
from specmargin.decisions.grid import best_depths
from specmargin.decisions.load import Load, settle, settle_plain
from specmargin.decisions.paying import outcome
from specmargin.decisions.plan import make_plan
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import DepthTable, Range, Schedule, depth_table, make_schedule
from specmargin.decisions.verdict import verdict
from specmargin.errors import AcceptanceError, ParallelismError, ScenarioError, ScheduleError
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel
from specmargin.prices.model import EngineTime
from specmargin.routing.profile import UNIFORM, expert_counter, remembering
from specmargin.sources import assumed
from specmargin.step import BoolArray, ExpertLoad, FloatArray, Step
from tests.scenarios import pricer, scenario

ROWS = [1, 2, 4, 8, 16, 32, 64]


def test_the_plan_is_the_argmax_of_goodput() -> None:
    setting = pricer(drafter="mtp")
    plan = make_plan(setting, ROWS, max_depth=8)
    for row in plan.rows:
        every = [setting.grid([row.batch], 8).goodput[0, depth] for depth in range(9)]
        assert row.goodput_tokens_per_second == max(every)
        assert row.depth == int(np.argmax(every))
        assert row.speedup == pytest.approx(max(every) / row.no_spec_tokens_per_second)


def test_hurdle_is_marginal_price_times_goodput_and_splits_by_component() -> None:
    setting = pricer(drafter="mtp")
    row = make_plan(setting, [4], max_depth=8).rows[0]
    step = Step.uniform(batch=4, depth=row.depth, context=setting.scenario.context)
    now, more = setting.marginal(step)
    marginal = float(more.total_seconds - now.total_seconds)
    assert row.hurdle == pytest.approx(marginal * row.goodput_tokens_per_second)
    assert sum(row.hurdle_by_component.values()) == pytest.approx(row.hurdle)


@given(batch=st.integers(1, 64), alpha=st.floats(0.05, 0.95))
def test_with_a_free_drafter_the_hurdle_says_whether_one_more_token_raises_goodput(batch: int, alpha: float) -> None:
    """The definition, checked: a token whose survival clears the hurdle raises goodput, one below lowers it."""
    setting = pricer(drafter="free", acceptance=f"{alpha}")
    depth = 1
    step = Step.uniform(batch=batch, depth=depth, context=setting.scenario.context)
    now, more = setting.marginal(step)
    committed = batch * (1 + alpha)
    goodput = committed / float(now.total_seconds)
    hurdle = goodput * float(more.total_seconds - now.total_seconds)
    for survival, better in ((hurdle * 1.01, True), (hurdle * 0.99, False)):
        after = (committed + survival) / float(more.total_seconds)
        assert (after > goodput) is better


def test_graph_limit_is_never_stepped_over() -> None:
    setting = pricer(drafter="mtp", memory_utilization=1.0)
    batches = list(range(1, 600, 7))
    plan = make_plan(setting, batches, max_depth=8, graph_limit=512)
    for row in plan.rows:
        assert row.depth == 0 or row.batch * (row.depth + 1) <= 512
    free = make_plan(setting, batches, max_depth=8)
    assert any(row.batch * (row.depth + 1) > 512 for row in free.rows)


def test_graph_limit_counts_what_one_rank_sees() -> None:
    """Data parallelism spreads sequences: 1024 over 8 ranks are 128 each, and 128 × 4 positions have a graph."""
    setting = pricer("deepseek-v3", drafter="mtp", layout=Layout(gpus=8, parallel=Parallel.DP_EP))
    plan = make_plan(setting, [1024], max_depth=3, graph_limit=512)
    assert plan.rows[0].depth > 0


def test_no_speculation_pays_nothing_when_nothing_is_accepted() -> None:
    plan = make_plan(pricer(drafter="mtp", acceptance="0"), ROWS, max_depth=8)
    assert not plan.pays
    assert all(row.depth == 0 and row.speedup == 1.0 for row in plan.rows)
    assert plan.stops_at_batch == 1
    assert verdict(plan).startswith("Do not speculate")


def test_off_may_lose_against_none() -> None:
    """An engine with speculation configured but off is not the same as one without it."""
    time = EngineTime(off_step_seconds=1e-4, source=assumed("test"))
    plan = make_plan(pricer(drafter="mtp", acceptance="0", engine_time=time), [1], max_depth=4)
    assert plan.rows[0].depth == 0
    assert plan.rows[0].speedup < 1.0
    assert not plan.pays


def test_fixed_time_makes_depth_cheaper() -> None:
    """The lesson of every measurement: relative to a step with fixed time, drafts cost little."""
    bare = make_plan(pricer(drafter="mtp"), [1], max_depth=8).rows[0]
    time = EngineTime(step_seconds=2.4e-3, layer_seconds=20e-6, source=assumed("test"))
    real = make_plan(pricer(drafter="mtp", engine_time=time), [1], max_depth=8).rows[0]
    assert real.depth > bare.depth
    assert real.speedup > bare.speedup
    assert sum(real.hurdle_by_component.values()) < sum(bare.hurdle_by_component.values())


def test_where_it_stops_paying() -> None:
    setting = pricer("llama-3.1-8b", "h100", "eagle", acceptance="0.5", context=16)
    ((first, last),) = outcome(setting, up_to=4096, max_depth=4, graph_limit=None, schedule=None).paying
    assert first == 1
    grid = setting.grid([last, last + 1, last + 50], 4)
    gain = grid.goodput[:, 1:].max(axis=1) / grid.no_spec_goodput
    assert gain[0] > 1.0
    assert gain[1] <= 1.0
    assert gain[2] <= 1.0


def test_a_mixture_may_pay_in_two_ranges_and_the_verdict_says_so() -> None:
    """At low acceptance it pays alone, not at a few sequences, and again once the experts are all loaded anyway."""
    plan = make_plan(pricer(drafter="mtp", acceptance="0.62"), [1, 4, 64], max_depth=8)
    assert len(plan.paying) > 1
    assert [row.depth > 0 for row in plan.rows] == [True, False, True]
    assert "at batch 1 and" in verdict(plan)
    assert "every batch" not in verdict(plan)


@given(batch=st.integers(1, 256), alpha=st.floats(0.01, 0.99))
def test_switch_acceptance_is_where_the_verdict_turns(batch: int, alpha: float) -> None:
    setting = pricer(drafter="mtp", acceptance=f"{alpha}")
    plan = make_plan(setting, [batch], max_depth=6)
    switch = plan.switch_acceptance
    gains = setting.grid([batch], 6).goodput[0, 1:].max() > setting.grid([batch], 6).no_spec_goodput[0]
    if switch is None:
        assert not gains
    elif abs(alpha - switch) > 1e-6:
        assert gains == (alpha > switch)


def test_memory_that_drafts_take_is_part_of_the_verdict() -> None:
    """A state for every draft token: a hybrid model fits a fraction of the sequences, and may serve less when full."""
    plan = make_plan(pricer(drafter="mtp", acceptance="0.78"), [1, 16, 64], max_depth=8)
    assert plan.largest_batch < 0.5 * plan.no_spec_largest_batch
    assert plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second
    assert "peak throughput is higher without speculation" in verdict(plan)
    shallow = make_plan(pricer(drafter="mtp", acceptance="0.78"), [1], max_depth=8, schedule=Schedule.fixed(1, last=1))
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

    def gains(setting: Pricer) -> FloatArray:
        grid = setting.grid(batches, 3)
        return grid.goodput[:, 3] / grid.no_spec_goodput

    assert int(np.argmax(gains(moe))) not in (0, len(batches) - 1)
    assert np.all(np.diff(gains(dense)) <= 1e-9)


def test_verdict_says_what_to_do_and_what_would_change_it() -> None:
    text = verdict(make_plan(pricer(drafter="mtp", acceptance="0.78"), ROWS, max_depth=8, graph_limit=512))
    assert text.startswith("Speculate: qwen3.6-35b-a3b on h200 with mtp is ")
    assert "Below a per-token acceptance of" in text


def test_rows_that_do_not_fit_are_marked() -> None:
    plan = make_plan(pricer(drafter="mtp"), [1, 4096], max_depth=8)
    assert [row.fits for row in plan.rows] == [True, False]
    nothing = make_plan(pricer(drafter="mtp"), [4096], max_depth=8)
    assert "No requested batch fits in memory" in verdict(nothing)


def test_a_model_too_large_is_refused_with_advice() -> None:
    setting = pricer("deepseek-v3", "h100", "free")
    with pytest.raises(ParallelismError, match=r"does not fit: weights need \d+ GB on each of 1 .* try --gpus"):
        make_plan(setting, [1], max_depth=2)


@pytest.mark.parametrize(("batches", "depth"), [([0], 4), ([1], -1), ([1], 65), ([1 << 20], 4)])
def test_ranges_are_checked(batches: list[int], depth: int) -> None:
    with pytest.raises(ScenarioError, match="must lie in"):
        make_plan(pricer(), batches, max_depth=depth)


def test_scenarios_are_checked() -> None:
    with pytest.raises(ScenarioError, match="beyond"):
        scenario(context=1_000_000.0)
    with pytest.raises(ScenarioError, match="negative"):
        scenario(context=-1.0)
    with pytest.raises(ScenarioError, match="utilization"):
        scenario(memory_utilization=0.0)


# --- load ---


def test_a_load_settles_where_littles_law_holds() -> None:
    setting = pricer(drafter="mtp", context=1150)
    load = Load(requests_per_second=4, input_tokens=1000, output_tokens=300)
    point = settle(setting, load, max_depth=4, graph_limit=512)
    wanted = 4 * 300 * point.tpot_seconds
    assert point.batch - 1 <= wanted <= point.batch
    assert 0 < point.prefill_share < 1


def test_speculation_needs_a_smaller_batch_for_the_same_load() -> None:
    setting = pricer(drafter="free", context=1150)
    load = Load(requests_per_second=8, input_tokens=1000, output_tokens=300)
    plain = settle_plain(setting, load)
    speculating = settle(setting, load, max_depth=4, graph_limit=None)
    assert speculating.batch <= plain.batch
    assert speculating.tpot_seconds < plain.tpot_seconds


def test_a_load_that_plain_decoding_serves_is_not_refused() -> None:
    """Deep drafts hold so much memory that the load does not fit beside them: a shallower setting must be found."""
    setting = pricer(drafter="mtp", acceptance="0.78", context=510)
    load = Load(requests_per_second=13, input_tokens=10, output_tokens=1000)
    plain = settle_plain(setting, load)
    speculating = settle(setting, load, max_depth=8, graph_limit=512)
    assert plain.batch > setting.largest_batch(8)
    assert speculating.batch <= setting.largest_batch(speculating.depth)


def test_a_prompt_wants_one_state_and_one_row_of_logits() -> None:
    """Prefill is not a verify step: nothing in it is rolled back, and only its last position is sampled."""
    setting = pricer()
    prompt = setting.verify(Step.prompts(tokens=8000))
    run = setting.verify(Step.uniform(batch=1, depth=7999))
    for component in ("attention", "lm head", "sampling"):
        prefill, verify = (next(c for c in p.components if c.component == component) for p in (prompt, run))
        assert float(prefill.bytes + prefill.flops) < float(verify.bytes + verify.flops)
    state = 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    attention = next(c for c in prompt.components if c.component == "attention")
    kv = 10 * 2 * 2 * 256 * 2 * (8000 + 8000)
    assert float(attention.bytes) == pytest.approx(2 * state + kv)


def test_prompts_and_decoding_share_a_step() -> None:
    setting = pricer(context=500)
    decode, prompt = Step.uniform(batch=8, context=500), Step.prompts(tokens=256)
    both = decode.joined(prompt)
    assert float(both.positions) == 8 + 256
    assert float(both.wanted_positions) == 8 + 1
    together = setting.verify(both).total_seconds
    assert setting.verify(decode).total_seconds < together
    assert together < setting.verify(decode).total_seconds + setting.verify(prompt).total_seconds


def test_targets_and_overload() -> None:
    setting = pricer(drafter="mtp", context=1150)
    met = Load(requests_per_second=2, input_tokens=100, output_tokens=100, tpot_target_seconds=1.0)
    assert settle(setting, met, max_depth=4, graph_limit=None).meets_target is True
    missed = replace(met, tpot_target_seconds=1e-6)
    assert settle(setting, missed, max_depth=4, graph_limit=None).meets_target is False
    with pytest.raises(ScenarioError, match="times the prefill"):
        settle(setting, replace(met, requests_per_second=1e5), max_depth=4, graph_limit=None)
    with pytest.raises(ScenarioError, match="this hardware serves about"):
        slow = pricer("qwen3-30b-a3b", "dgx-spark", "free")
        settle(slow, Load(requests_per_second=10, input_tokens=1, output_tokens=2000), max_depth=2, graph_limit=None)


@pytest.mark.parametrize("change", [{"requests_per_second": 0}, {"input_tokens": 0}, {"tpot_target_seconds": -1.0}])
def test_bad_loads(change: dict[str, float]) -> None:
    values = {"requests_per_second": 1.0, "input_tokens": 10, "output_tokens": 10, **change}
    with pytest.raises(ScenarioError):
        Load(**values)  # type: ignore[arg-type]


# --- duel ---


def test_the_interview_question_under_uniform_routing() -> None:
    """Two positions at batch 1, acceptance 0.9, free drafter, no KV: uniform routing says width."""
    result = duel(pricer("qwen3.6-35b-a3b", "h100", "free", context=0), batch=1, alpha=0.9)
    assert result.winner == "width"
    assert result.width.distinct_experts == result.depth.distinct_experts == pytest.approx(15.75)
    assert 0.9 < result.turning_alpha < 1.0  # the second sequence reads a recurrent state of its own


@given(alpha=st.floats(0, 1), batch=st.integers(1, 256), context=st.sampled_from([0, 1000, 100_000]))
def test_the_turning_point_is_where_both_are_equal(alpha: float, batch: int, context: int) -> None:
    setting = pricer("qwen3-30b-a3b", "h100", "free", context=min(context, 40_000))
    result = duel(setting, batch=batch, alpha=alpha)
    assert (result.winner == "depth") == (alpha > result.turning_alpha)
    if 0 <= result.turning_alpha <= 1:
        there = duel(setting, batch=batch, alpha=result.turning_alpha)
        assert there.depth.goodput_tokens_per_second == pytest.approx(there.width.goodput_tokens_per_second)


def test_a_long_context_turns_the_duel() -> None:
    """The draft token shares its sequence's KV; another sequence brings its own."""
    assert duel(pricer("qwen3-30b-a3b", "h100", "free", context=40_000), batch=64, alpha=0.9).winner == "depth"
    assert duel(pricer("qwen3-30b-a3b", "h100", "free", context=0), batch=64, alpha=0.9).winner == "width"


def test_bad_duels() -> None:
    with pytest.raises(AcceptanceError, match="alpha"):
        duel(pricer(), batch=1, alpha=1.5)
    with pytest.raises(ScenarioError, match="batch"):
        duel(pricer(), batch=0, alpha=0.5)


# --- schedules ---


def table_of(speedups: FloatArray, fits: list[int] | None = None) -> DepthTable:
    return DepthTable(
        batches=np.arange(1, len(speedups) + 1),
        speedup_by_batch_depth=speedups,
        allowed_by_batch_depth=np.ones(speedups.shape, dtype=bool),
        fits_by_depth=np.full(speedups.shape[1], 1000) if fits is None else np.array(fits),
    )


def test_a_schedule_of_a_real_plan() -> None:
    setting = pricer(drafter="mtp", memory_utilization=1.0)
    table = depth_table(setting, max_batch=512, max_depth=8, graph_limit=512)
    schedule = make_schedule(table, min_gain=0.02)
    grid = setting.grid(np.arange(1, 513), 8)
    best = grid.goodput[np.arange(512), best_depths(grid, 512)]
    for batch in range(1, 513):
        depth = schedule.depth_at(batch)
        assert depth == 0 or batch * (depth + 1) <= 512
        assert grid.goodput[batch - 1, depth] >= 0.98 * best[batch - 1] * (1 - 1e-12)
    assert schedule.depth_at(10_000) == schedule.ranges[-1].depth


def test_a_schedule_does_not_follow_noise() -> None:
    """The best depth by batch is 7, 6, 5, 7, 5, 4, 3; one percent apart, it is one range."""
    best = [7, 6, 5, 7, 5, 4, 3]
    speedups = np.array([[2.0 - 0.005 * abs(depth - top) for depth in range(9)] for top in best])
    assert len(make_schedule(table_of(speedups), min_gain=0.02).ranges) == 1
    exact = make_schedule(table_of(speedups), min_gain=0.0)
    assert [entry.depth for entry in exact.ranges] == best


def test_a_shallower_schedule_wins_where_more_sequences_fit() -> None:
    """Depth 5 is 1% faster than 4; with recurrent states it also halves the sequences that fit."""
    speedups = np.array([[1.0, 1.4, 1.6, 1.7, 1.98, 2.0]] * 4)
    assert make_schedule(table_of(speedups), min_gain=0.02).max_depth == 5
    assert make_schedule(table_of(speedups, [600, 300, 200, 150, 120, 100]), min_gain=0.02).max_depth == 4


@given(
    seed=st.integers(0, 1000),
    batches=st.integers(1, 40),
    depths=st.integers(1, 6),
    noise=st.floats(0.0, 0.2),
    min_gain=st.sampled_from([0.0, 0.02, 0.1]),
)
def test_schedules_have_the_fewest_ranges_and_rise_only_for_a_gain(
    seed: int, batches: int, depths: int, noise: float, min_gain: float
) -> None:
    table = table_of(1.5 + noise * np.random.default_rng(seed).random((batches, depths + 1)))
    schedule = make_schedule(table, min_gain=min_gain)
    good = table.relative >= 1.0 - min_gain
    assert good[np.arange(batches), schedule.depths_at(table.batches)].all()
    assert len(schedule.ranges) == _fewest_ranges(good)
    for before, after in itertools.pairwise(schedule.ranges):
        if after.depth > before.depth:
            assert not good[after.first - 1 : after.last, before.depth].all()


def _fewest_ranges(good: BoolArray) -> int:
    """Greedy is optimal: a range that reaches further never needs more ranges after it."""
    count, start = 0, 0
    while start < len(good):
        bad = ~np.vstack([good[start:], np.zeros((1, good.shape[1]), dtype=bool)])
        start += int(bad.argmax(axis=0).max())
        count += 1
    return count


def test_a_depth_that_the_format_prescribes_at_batch_1_is_kept() -> None:
    speedups = np.array([[1.0, 1.5, 1.2], [1.0, 1.5, 1.2], [1.0, 1.2, 1.5]])
    schedule = make_schedule(table_of(speedups), min_gain=0.02, first_depth=2)
    assert [schedule.depth_at(batch) for batch in (1, 2, 3)] == [2, 1, 2]


def test_rows_ranges_and_memory_are_those_of_the_schedule() -> None:
    setting = pricer(drafter="mtp", acceptance="0.9")
    schedule = Schedule(ranges=(Range(first=1, last=8, depth=3), Range(first=9, last=16, depth=0)))
    plan = make_plan(setting, [1, 8, 9, 100], max_depth=8, schedule=schedule)
    assert [row.depth for row in plan.rows] == [3, 3, 0, 0]
    assert plan.largest_batch == setting.largest_batch(3)
    assert plan.paying == ((1, 8),)
    for row in plan.rows:
        grid = setting.grid([row.batch], 8)
        assert row.goodput_tokens_per_second == pytest.approx(grid.goodput[0, row.depth])
        best = max(1.0, grid.goodput[0, 1:].max() / grid.no_spec_goodput[0])
        assert (row.better_depth is not None) == (row.speedup < 0.98 * best)
    assert plan.row_at(4).depth == 3
    assert [row.depth for row in plan.rows_at_context(2048.0)] == [3, 3, 0, 0]


def test_without_drafts_nothing_is_configured() -> None:
    """No flags, no off time, and all of the memory."""
    time = EngineTime(off_step_seconds=1e-4, source=assumed("test"))
    setting = pricer(drafter="mtp", engine_time=time)
    plan = make_plan(setting, [1, 8], max_depth=8, schedule=Schedule.fixed(0, last=8))
    assert [(row.depth, row.speedup) for row in plan.rows] == [(0, 1.0), (0, 1.0)]
    assert (plan.paying, plan.loss) == ((), None)
    assert plan.largest_batch == setting.no_spec_largest_batch


def test_hurdles_are_probabilities_or_words() -> None:
    plan = make_plan(pricer(drafter="mtp", memory_utilization=1.0), [1, 64, 512], max_depth=8)
    for row in plan.rows:
        if row.hurdle is None:
            assert row.hurdle_note in ("never pays", "always pays")
        else:
            assert 0.0 < row.hurdle <= 1.0
            assert row.hurdle_note is None


@given(batch=st.integers(1, 256), alpha=st.floats(0.05, 0.95))
def test_break_even_as_a_length_is_the_same_point(batch: int, alpha: float) -> None:
    row = make_plan(pricer(drafter="mtp", acceptance=f"{alpha}"), [batch], max_depth=6).rows[0]
    even, depth = row.break_even_acceptance, row.break_even_depth
    if even is None:
        assert row.break_even_accept_length is None
    else:
        assert row.break_even_accept_length == pytest.approx(sum(even**d for d in range(depth + 1)))


def test_schedules_are_checked() -> None:
    with pytest.raises(ScheduleError):
        Schedule(ranges=())
    with pytest.raises(ScheduleError):
        Schedule(ranges=(Range(first=2, last=3, depth=1),))
    with pytest.raises(ScheduleError, match="min-gain"):
        make_schedule(table_of(np.ones((3, 2))), min_gain=1.5)


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
