"""What an engine takes beside its kernels: the constant parts, the graph limit, graphs of pieces, and the catalog."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from specmargin.catalog.engine_times import NO_ENGINE_TIME, engine_time_names, find_engine_time
from specmargin.catalog.lookup import bundled_model
from specmargin.decisions.plan import make_plan
from specmargin.decisions.setting import Setting
from specmargin.errors import CatalogError, ScenarioError
from specmargin.hardware.layout import Layout
from specmargin.prices.launches import Graph
from specmargin.prices.model import EngineTime
from specmargin.prices.work import Component
from specmargin.step import Step
from tests.scenarios import pricer


def test_constant_parts_add_up_by_hand() -> None:
    """2 ms per step, 50 µs for each of 8 sequences, 10 µs for each of 48 layers: 2.88 ms beside the kernels."""
    step = Step.uniform(batch=8, depth=3, context=512.0)
    time = EngineTime(step_seconds=2e-3, sequence_seconds=50e-6, layer_seconds=10e-6)
    with_engine = pricer("qwen3-30b-a3b", engine_time=time).verify(step).total_seconds
    kernels = pricer("qwen3-30b-a3b").verify(step).total_seconds
    assert with_engine - kernels == pytest.approx(2e-3 + 8 * 50e-6 + 48 * 10e-6)


def test_the_cliff_stands_right_after_the_largest_captured_size() -> None:
    """512 captured positions: 128 sequences × (3 + 1) are inside, one more sequence is outside."""
    time = EngineTime(graph_limit=512, eager_layer_seconds=1e-3)
    eager = pricer("qwen3-30b-a3b", engine_time=time)
    plain = pricer("qwen3-30b-a3b")
    for batch, extra in ((128, 0.0), (129, 48e-3)):
        step = Step.uniform(batch=batch, depth=3, context=512.0)
        assert eager.verify(step).total_seconds - plain.verify(step).total_seconds == pytest.approx(extra, abs=1e-12)


def test_graphs_of_pieces_have_a_floor_and_not_an_addition() -> None:
    """A step is as long as the host needs for its launches, or as long as the GPU needs, whichever is longer."""
    pieces = pricer("qwen3-30b-a3b", engine_time=EngineTime(floor_layer_seconds=1e-4))
    plain = pricer("qwen3-30b-a3b")
    small, large = (Step.uniform(batch=batch, depth=0, context=512.0) for batch in (1, 512))
    assert pieces.verify(small).total_seconds == pytest.approx(48e-4)
    assert pieces.verify(large).total_seconds == pytest.approx(float(plain.verify(large).total_seconds))
    assert any(line.component is Component.LAUNCHES for line in pieces.verify(small).components)


def test_a_step_without_a_graph_takes_the_launches_of_its_kernels() -> None:
    """10 kernels per layer, 100 µs each; 11 more with experts; MLA has 7 more, 12 with prompts beside decoding. In FP8
    activations are quantised by 2 more per layer of MLA, and by 4 more with routed and shared experts."""
    time = EngineTime(graph_limit=1, kernel_launch_seconds=1e-4)
    grouped = bundled_model("qwen3-30b-a3b").layer_counts
    without = partial(time.floor_seconds, Graph.COMPILED)
    assert without(grouped) == pytest.approx(48 * 2.1e-3)
    assert without(grouped, mixed=True) == without(grouped)
    latent = bundled_model("deepseek-v3").layer_counts  # 61 layers, 58 of them MoE
    experts = 58 * 1.5e-3
    assert without(latent) == pytest.approx(61 * 1.9e-3 + experts)
    assert without(latent, mixed=True) == pytest.approx(61 * 2.4e-3 + experts)
    assert without(latent.over(8)) == pytest.approx(61 * 2.1e-3 + experts)
    assert latent.over(1) == latent


def test_prompts_beside_decoding_sequences_take_longest_to_launch() -> None:
    """MLA runs the two apart; a single prompt and sequence take no time beside their launches."""
    time = EngineTime(graph_limit=1, kernel_launch_seconds=0.1)
    deepseek = pricer("deepseek-v3", "h200", engine_time=time, layout=Layout(gpus=8))
    prompts, decoding = Step.prompts(tokens=16), Step.uniform(batch=4, context=64.0)
    seconds = [float(deepseek.verify(step).total_seconds) for step in (prompts, decoding, decoding.joined(prompts))]
    experts = 58 * 1.5
    assert seconds == pytest.approx([61 * 2.1 + experts, 61 * 2.1 + experts, 61 * 2.6 + experts])


def test_each_kind_of_step_has_a_graph_of_its_own() -> None:
    """5 launches of each of 48 attention layers in piecewise graphs, 1 ms each; 21 without a graph."""
    time = EngineTime(graph_limit=512, kernel_launch_seconds=1e-3, verify_graph=Graph.PIECEWISE)
    timed, bare = (pricer("qwen3-30b-a3b", drafter="eagle", engine_time=t) for t in (time, EngineTime()))
    plain, verify = (Step.uniform(batch=1, depth=depth, context=64.0) for depth in (0, 3))
    assert float(timed.verify(plain).total_seconds) == pytest.approx(float(bare.verify(plain).total_seconds))
    assert float(timed.verify(verify).total_seconds) == pytest.approx(48 * 5e-3)
    assert timed.grid([1], 3).verify_seconds[0, 1:] == pytest.approx([48 * 5e-3] * 3)
    prompts = pricer("qwen3-30b-a3b", engine_time=replace(time, prompt_graph=Graph.PIECEWISE))
    assert float(prompts.verify(Step.prompts(tokens=64)).total_seconds) == pytest.approx(48 * 5e-3)
    assert float(prompts.verify(Step.prompts(tokens=600)).total_seconds) == pytest.approx(48 * 21e-3)


def test_draft_passes_wait_for_their_launches_while_the_target_verifies() -> None:
    """One layer of an EAGLE head in piecewise graphs, 5 launches and 10 more outside, 1 ms each; then 20 per pass."""
    time = EngineTime(
        kernel_launch_seconds=1e-3,
        first_draft_graph=Graph.PIECEWISE,
        draft_graph=Graph.COMPILED,
        draft_launches=10.0,
    )
    timed = pricer("qwen3-30b-a3b", drafter="eagle", engine_time=time)
    grid = timed.grid([1], 3)
    assert grid.round_seconds[0, 1:] == pytest.approx([15e-3, 35e-3, 55e-3])
    drafting = timed.draft_ledger(1, 3)
    assert drafting is not None
    assert float(drafting.total_seconds) == pytest.approx(55e-3 - grid.verify_seconds[0, 3])
    pieces = pricer("qwen3-30b-a3b", drafter="eagle", engine_time=replace(time, verify_graph=Graph.PIECEWISE))
    assert pieces.grid([1], 3).draft_seconds[0, 3] == pytest.approx(55e-3)
    hidden = pricer("qwen3-30b-a3b", drafter="eagle", engine_time=replace(time, kernel_launch_seconds=1e-5))
    bare = pricer("qwen3-30b-a3b", drafter="eagle")
    assert hidden.grid([1], 3).draft_seconds == pytest.approx(bare.grid([1], 3).draft_seconds)
    verify = timed.verify(Step.uniform(batch=1, depth=3, context=64.0))
    assert not any(line.component is Component.LAUNCHES for line in verify.components)


def test_a_plan_never_steps_over_the_limit_unasked() -> None:
    time = EngineTime(graph_limit=128, eager_layer_seconds=1e-6)
    plan = make_plan(
        pricer("qwen3-30b-a3b", acceptance="0.95", engine_time=time),
        [32, 64],
        Setting(max_depth=8, graph_limit=128),
    )
    assert [row.batch * (row.depth + 1) <= 128 for row in plan.rows] == [True, True]


def test_negative_times_are_refused() -> None:
    with pytest.raises(ScenarioError, match="layer_seconds must not be negative"):
        EngineTime(layer_seconds=-1e-6)
    with pytest.raises(ScenarioError, match="step_seconds"):
        EngineTime(step_seconds=float("nan"))


@pytest.mark.parametrize("prices", ["laws", "tables"])
def test_the_catalog_has_every_engine_with_its_uncertainty(prices: str) -> None:
    for name in ("vllm:0.24", "sglang", "trtllm"):
        engine_time = find_engine_time(name, engine="vllm", prices=prices)
        assert "served measurements" in engine_time.source.detail
        assert "left out" in engine_time.source.detail
    assert "rounds of 3 models on an H200" in find_engine_time(None, engine="vllm", prices=prices).source.detail
    slow = find_engine_time("vllm:slow-host", engine="vllm", prices=prices)
    assert slow.step_seconds == pytest.approx(2.2e-3, rel=0.15)
    assert "any one batch left out" in slow.source.detail


def test_no_engine_time_is_assumed_beside_a_roofline_or_an_engine_that_nobody_measured() -> None:
    assert find_engine_time(None, engine="vllm", prices="datasheet") is NO_ENGINE_TIME
    assert find_engine_time(None, engine="llamacpp", prices="tables") is NO_ENGINE_TIME
    assert str(NO_ENGINE_TIME.source).startswith("assumed")


@pytest.mark.parametrize("prices", ["laws", "tables"])
def test_async_scheduling_hides_host_time(prices: str) -> None:
    """Measured on the same machine: synchronous rounds wait more than a millisecond for the host."""
    hidden, shown = (find_engine_time(name, engine="vllm", prices=prices) for name in ("vllm", "vllm:sync"))
    assert shown.step_seconds - hidden.step_seconds > 1e-3
    assert shown.sequence_seconds > 5 * hidden.sequence_seconds


def test_a_speculative_round_has_terms_of_its_own() -> None:
    """8 sequences: 1 ms to verify, 0.1 for a sequence, 0.01 for a token, 0.2 for a draft pass, 0.5 for the first."""
    time = EngineTime(
        verify_step_seconds=1e-3,
        verify_sequence_seconds=1e-4,
        verify_token_seconds=1e-5,
        draft_pass_seconds=2e-4,
        first_pass_seconds=5e-4,
    )
    timed, bare = (pricer("qwen3.6-35b-a3b", drafter="mtp", engine_time=t) for t in (time, EngineTime()))
    with_terms, kernels = timed.grid([8], 3), bare.grid([8], 3)
    verify = with_terms.verify_seconds - kernels.verify_seconds
    draft = with_terms.draft_seconds - kernels.draft_seconds
    assert verify[0] == pytest.approx([0.0, 1.88e-3, 1.96e-3, 2.04e-3], abs=1e-12)
    assert draft[0] == pytest.approx([0.0, 7e-4, 9e-4, 11e-4], abs=1e-12)
    with_time, without = timed.draft_ledger(8, 3), bare.draft_ledger(8, 3)
    assert with_time is not None
    assert without is not None
    assert float(with_time.total_seconds - without.total_seconds) == pytest.approx(11e-4)


def test_prompts_verify_nothing() -> None:
    time = EngineTime(verify_step_seconds=1e-3, verify_sequence_seconds=1e-4, verify_token_seconds=1e-5)
    prompts = Step.prompts(count=2, tokens=64)
    assert float(time.seconds(prompts)) == 0.0
    together = prompts.joined(Step.uniform(batch=3, depth=1, context=100.0))
    assert float(time.seconds(together)) == pytest.approx(1.33e-3)


def test_names_are_suggested() -> None:
    with pytest.raises(CatalogError, match="nearest: vllm:slow-host"):
        find_engine_time("vllm:slowhost", engine="vllm", prices="laws")
    assert engine_time_names()[0] == "none"


def test_a_step_never_takes_less_with_more_sequences_whatever_the_graphs() -> None:
    time = replace(find_engine_time("vllm:piecewise", engine="vllm", prices="laws"), graph_limit=512)
    step = Step.uniform(batch=np.arange(1, 300), depth=1, context=512.0)
    seconds = pricer("qwen3-30b-a3b", engine_time=time).verify(step).total_seconds
    assert (np.diff(seconds) >= -1e-12).all()
    assert seconds[256] - seconds[255] > 0.9 * 48 * time.eager_layer_seconds - 48 * time.floor_layer_seconds
