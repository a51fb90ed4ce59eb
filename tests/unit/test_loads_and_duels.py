"""Loads that settle, targets, and a mixture of experts against a dense model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.decisions.duel import duel
from specmargin.decisions.load import Load, settle
from specmargin.decisions.setting import Setting
from specmargin.errors import AcceptanceError, ScenarioError
from specmargin.step import Step
from tests.scenarios import pricer


def test_a_load_settles_where_littles_law_holds() -> None:
    priced = pricer(drafter="mtp", context=1150)
    load = Load(requests_per_second=4, prompt_tokens=1000, output_tokens=300)
    point = settle(priced, load, Setting(max_depth=4, graph_limit=512))
    wanted = 4 * 300 * point.tpot_seconds
    assert point.batch - 1 <= wanted <= point.batch
    assert 0 < point.prefill_share < 1


def test_speculation_needs_a_smaller_batch_for_the_same_load() -> None:
    priced = pricer(drafter="free", context=1150)
    load = Load(requests_per_second=8, prompt_tokens=1000, output_tokens=300)
    plain = settle(priced, load, Setting.fixed(0))
    speculating = settle(priced, load, Setting(max_depth=4))
    assert speculating.batch <= plain.batch
    assert speculating.tpot_seconds < plain.tpot_seconds


def test_a_load_that_plain_decoding_serves_is_not_refused() -> None:
    """Deep drafts hold so much memory that the load does not fit beside them: a shallower setting must be found."""
    priced = pricer(drafter="mtp", acceptance="0.78", context=510)
    load = Load(requests_per_second=13, prompt_tokens=10, output_tokens=1000)
    plain = settle(priced, load, Setting.fixed(0))
    speculating = settle(priced, load, Setting(max_depth=8, graph_limit=512))
    assert plain.batch > priced.largest_batch(8)
    assert speculating.batch <= priced.largest_batch(speculating.depth)


def test_a_prompt_wants_one_state_and_one_row_of_logits() -> None:
    """Prefill is not a verify step: nothing in it is rolled back, and only its last position is sampled."""
    priced = pricer()
    prompt = priced.verify(Step.prompts(tokens=8000))
    run = priced.verify(Step.uniform(batch=1, depth=7999))
    for component in ("attention", "lm head", "sampling"):
        prefill, verify = (next(c for c in p.components if c.component == component) for p in (prompt, run))
        assert float(prefill.bytes + prefill.flops) < float(verify.bytes + verify.flops)
    state = 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    attention = next(c for c in prompt.components if c.component == "attention")
    kv = 10 * 2 * 2 * 256 * 2 * (8000 + 8000)
    assert float(attention.bytes) == pytest.approx(2 * state + kv)


def test_prompts_and_decoding_share_a_step() -> None:
    priced = pricer(context=500)
    decode, prompt = Step.uniform(batch=8, context=500), Step.prompts(tokens=256)
    both = decode.joined(prompt)
    assert float(both.positions) == 8 + 256
    assert float(both.wanted_positions) == 8 + 1
    together = priced.verify(both).total_seconds
    assert priced.verify(decode).total_seconds < together
    assert together < priced.verify(decode).total_seconds + priced.verify(prompt).total_seconds


def test_targets_and_overload() -> None:
    priced = pricer(drafter="mtp", context=1150)
    met = Load(requests_per_second=2, prompt_tokens=100, output_tokens=100, tpot_target_seconds=1.0)
    assert settle(priced, met, Setting(max_depth=4)).meets_target is True
    missed = replace(met, tpot_target_seconds=1e-6)
    assert settle(priced, missed, Setting(max_depth=4)).meets_target is False
    flooded = settle(priced, replace(met, requests_per_second=1e5), Setting(max_depth=4))
    assert not flooded.keeps_up and 0 < flooded.prefill_share < 1
    slow = pricer("qwen3-30b-a3b", "dgx-spark", "free")
    long = Load(requests_per_second=10, prompt_tokens=1, output_tokens=2000)
    overloaded = settle(slow, long, Setting(max_depth=2))
    assert not overloaded.keeps_up and overloaded.capacity_requests_per_second < 10
    kept = replace(long, requests_per_second=0.99 * overloaded.capacity_requests_per_second)
    assert settle(slow, kept, Setting(max_depth=2)).keeps_up


def test_prompts_beside_decoding_sequences_read_the_experts_once() -> None:
    """20 requests per second on an H200 were refused: every prompt was priced as a step of its own."""
    priced = pricer("qwen3-30b-a3b", "h200", "eagle", context=1174)
    point = settle(priced, Load(requests_per_second=20, prompt_tokens=1024, output_tokens=300), Setting(max_depth=4))
    assert point.keeps_up
    alone = 20 * priced.without_launches().prefill_seconds(1024)
    assert point.prefill_share < 0.8 * alone


@pytest.mark.parametrize("target_seconds", [None, 1.0, 1e-6])
def test_a_load_settles_at_a_depth_that_has_a_graph(target_seconds: float | None) -> None:
    """A target that no depth meets asks for the fastest one, and perfect drafts make the deepest the fastest."""
    priced = pricer(drafter="free", acceptance="1", context=1150)
    load = Load(requests_per_second=2, prompt_tokens=100, output_tokens=100, tpot_target_seconds=target_seconds)
    assert settle(priced, load, Setting(max_depth=8)).depth == 8
    point = settle(priced, load, Setting(max_depth=8, graph_limit=6))
    assert 0 < point.batch * (point.depth + 1) <= 6


@pytest.mark.parametrize("change", [{"requests_per_second": 0}, {"prompt_tokens": 0}, {"tpot_target_seconds": -1.0}])
def test_bad_loads(change: dict[str, float]) -> None:
    values = {"requests_per_second": 1.0, "prompt_tokens": 10, "output_tokens": 10, **change}
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
    priced = pricer("qwen3-30b-a3b", "h100", "free", context=min(context, 40_000))
    result = duel(priced, batch=batch, alpha=alpha)
    if abs(alpha - result.turning_alpha) > 1e-12:  # nearer, both are equal and rounding decides
        assert (result.winner == "depth") == (alpha > result.turning_alpha)
    if 0 <= result.turning_alpha <= 1:
        there = duel(priced, batch=batch, alpha=result.turning_alpha)
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
