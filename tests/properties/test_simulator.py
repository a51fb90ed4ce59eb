"""The simulated engine conserves requests, tokens, blocks and time, whatever the load and the policy."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specmargin.compiler import entry
from specmargin.errors import ScenarioError
from specmargin.policies.kernel.prices import locate, ragged_parts
from specmargin.prices.model import EngineTime
from specmargin.simulator.costs import prefill_seconds
from specmargin.simulator.engine import EngineSettings, kv_budget
from specmargin.simulator.run import simulate, tables_of
from specmargin.simulator.serving import Serving
from specmargin.simulator.tables import StepTables
from specmargin.simulator.workload import (
    ClosedLoop,
    FixedLength,
    LognormalLength,
    Poisson,
    UniformLength,
    Workload,
    length_around,
)
from specmargin.step import Step
from tests.properties.loads import Drawn, loads, served, small
from tests.simulations import serving


@pytest.mark.slow
@settings(max_examples=120)
@given(load=loads)
def test_nothing_is_lost(load: Drawn) -> None:
    result = served(load)
    summary, requests = result.summary(), result.requests
    finished = result.finished
    # Every request finishes, or is refused because it could never fit.
    assert summary["finished"] + summary["refused"] == requests.size == int(finished.sum()) + summary["refused"]
    kv, lookahead = result.kv, result.kv.lookahead_tokens
    fits = [
        kv.needed(int(p + o) + lookahead) <= kv.blocks
        for p, o in zip(requests["prompt_tokens"], requests["output_tokens"], strict=True)
    ]
    assert finished.tolist() == fits
    # Tokens in equal tokens out.
    assert summary["committed"] == int(requests["output_tokens"][finished].sum())
    assert summary["prefilled"] >= int(requests["prompt_tokens"][finished].sum())
    assert (summary["prefilled"] == int(requests["prompt_tokens"][finished].sum())) == (summary["preemptions"] == 0)
    assert summary["drafted"] >= summary["verified"] >= summary["accepted"] >= 0
    # Blocks in use never exceed the total, and all are freed.
    assert result.totals.peak_blocks <= kv.blocks
    assert result.engine.free_blocks == kv.blocks
    # Time runs forwards, and is either busy or idle.
    steps = result.step_columns()
    starts, seconds = steps["start_seconds"], steps["seconds"]
    assert (seconds > 0.0).all()
    assert (starts[1:] >= starts[:-1] + seconds[:-1] - 1e-9).all()
    assert (steps["kv_blocks"] <= kv.blocks).all()
    assert (steps["running"] <= result.serving.engine.max_num_seqs).all()
    positions = steps["sequences"] + steps["verified"] + steps["prefill_tokens"]
    assert (positions <= result.serving.engine.max_num_batched_tokens).all()
    assert (positions > 0).all()
    assert result.totals.clock == pytest.approx(summary["busy_seconds"] + summary["idle_seconds"], rel=1e-9)
    assert (result.requests["first_token_seconds"][finished] > result.requests["arrival_seconds"][finished]).all()
    assert (result.requests["finish_seconds"][finished] >= result.requests["first_token_seconds"][finished]).all()
    # The components add up to the busy time.
    assert sum(result.seconds_by_component().values()) == pytest.approx(summary["busy_seconds"], rel=1e-6)
    assert summary["committed"] == int(steps["committed"].sum())


@settings(max_examples=25)
@given(load=loads, depth=st.integers(0, 4))
def test_a_draft_is_verified_one_step_after_it_was_chosen(load: Drawn, depth: int) -> None:
    """Fixed depth: every decoding sequence verifies what the step before drafted, unless the budget cut it."""
    result = served(load, policy=f"fixed:{depth}")
    steps = result.step_columns()
    full = steps["sequences"] + steps["verified"] + steps["prefill_tokens"] < load.limits[1]
    once = result.summary()["preemptions"] == 0
    if once:
        assert (steps["verified"][full] == depth * steps["sequences"][full]).all()


@settings(max_examples=25)
@given(load=loads)
def test_the_same_seed_gives_the_same_bytes(load: Drawn) -> None:
    one, two = served(load), served(load)
    assert one.steps.tobytes() == two.steps.tobytes()
    assert one.requests["finish_seconds"].tobytes() == two.requests["finish_seconds"].tobytes()
    assert one.timeline() == two.timeline()


# One sequence waits for budget and keeps its pending draft; one is recomputed, with one token left to compute.
_WAITS = Drawn(
    arrivals=ClosedLoop(users=5, requests=5), longest=(1, 3), limits=(8, 16), blocks=24, policy="none", seed=1
)
_RECOMPUTED = Drawn(
    arrivals=ClosedLoop(users=4, requests=4), longest=(630, 46), limits=(8, 96), blocks=60, policy="none", seed=1
)


@settings(max_examples=40)
@given(load=loads, policy=st.sampled_from(("none", "fixed:2", "schedule", "gate", "controller")))
@example(load=_WAITS, policy="schedule")
@example(load=_RECOMPUTED, policy="fixed:2")
def test_compiled_policies_are_the_policies_themselves(load: Drawn, policy: str) -> None:
    """The same objects, called from Python on the same engine, give the same steps."""
    compiled = served(load, policy=policy)
    called = served(load, policy=policy, compiled=False)
    np.testing.assert_array_equal(compiled.steps, called.steps)
    np.testing.assert_array_equal(compiled.requests["finish_seconds"], called.requests["finish_seconds"])


# --- none, off and depth 0 ---


def dense(**changes: Any) -> Serving:
    workload = Workload(
        arrivals=Poisson(requests_per_second=30.0, requests=80),
        prompt=LognormalLength(ln_mean=5.0, ln_sd=0.7, most=2000),
        output=LognormalLength(ln_mean=4.0, ln_sd=0.7, most=500),
    )
    return replace(serving(drafter="free"), workload=workload, **changes)


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "qwen3.6-35b-a3b", "llama-3.1-8b"])
def test_no_speculation_is_depth_0_with_a_free_drafter_that_takes_no_memory(model: str) -> None:
    base = replace(dense(), pricer=serving(model=model, drafter="free").pricer)
    none, zero = (simulate(replace(base, policy=name), log_steps=True) for name in ("none", "fixed:0"))
    np.testing.assert_array_equal(none.steps, zero.steps)
    np.testing.assert_array_equal(none.requests["finish_seconds"], zero.requests["finish_seconds"])
    assert none.kv == zero.kv


def test_off_differs_from_none_by_the_stated_engine_terms_alone() -> None:
    """A closed loop runs the same steps; each takes longer by the engine's terms for `off`."""
    time = EngineTime(step_seconds=1e-3, off_step_seconds=0.5e-3, off_sequence_seconds=0.02e-3)
    engine = EngineSettings(max_num_seqs=32, max_num_batched_tokens=1024, kv_blocks=4000)
    base = serving(arrivals=ClosedLoop(users=16, requests=64), engine=engine, scenario_changes={"engine_time": time})
    none, off = (simulate(replace(base, policy=name), log_steps=True) for name in ("none", "off"))
    none_steps, off_steps = none.step_columns(), off.step_columns()
    for name in ("sequences", "prefill_tokens", "committed", "running"):
        np.testing.assert_array_equal(none_steps[name], off_steps[name])
    added = np.where(off_steps["sequences"] > 0, 0.5e-3 + 0.02e-3 * off_steps["sequences"], 0.0)
    np.testing.assert_allclose(off_steps["seconds"] - none_steps["seconds"], added, atol=1e-12)
    assert off.totals.off == pytest.approx(added.sum())
    assert off.totals.clock - none.totals.clock == pytest.approx(added.sum())


def test_speculation_takes_memory_whether_it_is_used_or_not() -> None:
    """A drafter's weights and KV, room for drafts, and one recurrent state per draft token."""
    pricer = serving(model="qwen3.6-35b-a3b", drafter="mtp").pricer
    budgets = [kv_budget(pricer, EngineSettings(), held_depth=depth) for depth in (None, 0, 1, 4)]
    assert [budget.lookahead_tokens for budget in budgets] == [0, 0, 1, 4]
    room = [budget.blocks / budget.needed(1024) for budget in budgets]
    assert room == sorted(room, reverse=True)
    assert room[0] > 2.5 * room[-1]  # five recurrent states instead of one
    largest = pricer.largest_batch(4)
    context = pricer.scenario.context
    simulated = budgets[-1].blocks // budgets[-1].needed(int(context) + 1)
    assert simulated == pytest.approx(largest, rel=0.02)


# --- prices ---


@settings(max_examples=40)
@given(
    depths=st.lists(st.integers(0, 4), min_size=1, max_size=24),
    context=st.integers(0, 900),
    prompt=st.integers(0, 600),
)
def test_tables_price_ragged_and_mixed_steps_as_the_scenario_does(depths: list[int], context: int, prompt: int) -> None:
    base = small(32, 700)
    longest = replace(base.workload, prompt=UniformLength(least=1, most=900), output=UniformLength(least=1, most=90))
    tables = tables_of(replace(base, workload=longest))
    batch, extra = len(depths), sum(depths)
    effective = float(tables.effective_by_category[0, depths].sum())
    from_tables = _decode_seconds(tables, batch, extra, effective, float(context))
    step = Step.ragged(depths=depths, contexts=context)
    if prompt:
        from_tables += float(_prefill_seconds(tables, batch + extra, prompt, prompt / 2.0))
        step = step.joined(_prompt(prompt))
    exact = float(base.pricer.verify(step).total_seconds)
    assert from_tables == pytest.approx(exact, rel=0.03)


@entry
def _decode_seconds(tables: StepTables, batch: int, extra: int, effective: float, context: float) -> float:
    rest, experts = ragged_parts(
        tables.prices, batch, extra / batch, effective, locate(tables.prices.contexts, context)
    )
    return rest + experts


@entry
def _prefill_seconds(tables: StepTables, positions: int, tokens: int, attended: float) -> float:
    return prefill_seconds(tables, positions, tokens, attended)


def _prompt(tokens: int) -> Step:
    step = Step.ragged(depths=[tokens - 1], contexts=0)
    return replace(step, prompt_by_class=np.ones(1))


# --- lengths ---


@given(tokens=st.integers(1, 100_000), ratio=st.floats(0.0, 0.999))
def test_lengths_within_a_range_ratio_have_the_given_mean(tokens: int, ratio: float) -> None:
    length = length_around(tokens, ratio)
    if isinstance(length, FixedLength):
        assert length.tokens == tokens and (tokens == 1 or tokens * ratio == 0.0)
        return
    assert length.least + length.most == 2 * tokens
    assert length.most <= tokens * (1.0 + ratio) + 1.0


@given(tokens=st.integers(20, 100_000), hundredths=st.integers(0, 95))
def test_a_range_ratio_is_that_of_vllm(tokens: int, hundredths: int) -> None:
    """vllm/benchmarks/datasets/utils.py, 0.32: ⌊n · (1 − r)⌋ to ⌈n · (1 + r)⌉, here without rounding errors."""
    ratio = Fraction(hundredths, 100)
    least, most = math.floor(tokens * (1 - ratio)), math.ceil(tokens * (1 + ratio))
    length = length_around(tokens, hundredths / 100)
    own = (length.tokens, length.tokens) if isinstance(length, FixedLength) else (length.least, length.most)
    assert own == pytest.approx(
        (least, most), abs=1
    )  # one token where tokens · ratio is a rounding error above a number


@pytest.mark.parametrize("ratio", [-0.1, 1.0, math.nan])
def test_a_range_ratio_outside_of_0_to_1_is_refused(ratio: float) -> None:
    with pytest.raises(ScenarioError, match="a range ratio is at least 0 and below 1"):
        length_around(100, ratio)
