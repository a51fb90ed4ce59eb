"""Tensor, expert and data parallelism, worked out by hand for one GQA and one MLA model."""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.catalog.lookup import bundled_model, find_device
from specmargin.errors import ParallelismError
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel
from specmargin.prices import memory
from specmargin.prices.roofline import collective_seconds
from specmargin.prices.work import Collective, CollectiveKind, Component, Work, target_work
from specmargin.routing.profile import UNIFORM, expert_counter
from specmargin.step import ExpertLoad, Step
from tests.scenarios import pricer


def _works(model: str, layout: Layout, step: Step) -> list[Work]:
    architecture = bundled_model(model)
    experts = expert_counter(UNIFORM, layout.expert_ranks)(architecture.pools, step)
    return target_work(architecture, step, experts, layout=layout, kv=architecture.kv_precision)


def _bytes(works: list[Work], component: Component) -> float:
    return sum(work.count * float(work.bytes) for work in works if work.component is component)


# --- Qwen3-30B-A3B: 48 layers, hidden 2048, 32 query and 4 KV heads of 128, 128 experts of 3 × 2048 × 768, bf16 ---


def test_gqa_projections_split_by_head_and_replicate_kv_heads() -> None:
    """Over 8 ranks: q and o shrink to an eighth; k and v only to a quarter, for there are 4 KV heads."""
    step = Step.uniform(batch=1)
    q_and_o, k_and_v = 2 * 2048 * 4096, 2 * 2048 * 512
    router = 2048 * 128
    for ranks, share_q, share_kv in ((1, 1, 1), (4, 4, 4), (8, 8, 4)):
        works = _works("qwen3-30b-a3b", Layout(gpus=ranks), step)
        expected = 48 * 2 * (q_and_o / share_q + k_and_v / share_kv)
        assert _bytes(works, Component.ATTENTION_PROJECTIONS) == pytest.approx(expected)
        assert _bytes(works, Component.ROUTER) == pytest.approx(48 * 2 * router)  # every rank routes


def test_gqa_kv_cache_is_split_and_then_replicated() -> None:
    """A token's KV is 2 · 4 heads · 128 · 2 bytes a layer; over 4 and over 8 ranks a rank keeps one head of it."""
    model, context, run = bundled_model("qwen3-30b-a3b"), 1000, 3
    for ranks, heads in ((1, 4), (2, 2), (4, 1), (8, 1)):
        layout = Layout(gpus=ranks)
        token = 48 * 2 * heads * 128 * 2
        sequence_bytes = memory.sequence_bytes(
            model.groups, context, layout=layout, kv=model.kv_precision, depth=run - 1
        )
        assert sequence_bytes == pytest.approx(token * (context + run))
        works = _works("qwen3-30b-a3b", layout, Step.uniform(batch=5, depth=run - 1, context=context))
        read, written = context + run, run
        assert _bytes(works, Component.ATTENTION) == pytest.approx(5 * token * (read + written))


def test_gqa_experts_under_tensor_and_expert_parallelism() -> None:
    """TP: every rank reads an eighth of each expert that is touched. EP: the busiest rank reads its own, whole."""
    step = Step.uniform(batch=4)
    expert = 3 * 2048 * 768 * 2
    distinct = 128 * (1 - (1 - 8 / 128) ** 4)
    tp = _works("qwen3-30b-a3b", Layout(gpus=8), step)
    assert _bytes(tp, Component.ROUTED_EXPERTS) == pytest.approx(48 * distinct * expert / 8)
    ep = _works("qwen3-30b-a3b", Layout(gpus=8, parallel=Parallel.EP), step)
    busiest = _bytes(ep, Component.ROUTED_EXPERTS) / (48 * expert)
    assert distinct / 8 < busiest < 16  # more than the even share of 3.6, less than all 16 of a rank


def test_all_reduces_of_a_tensor_parallel_step() -> None:
    """Two a layer, each of positions × hidden in bf16; and one gathering of the logits."""
    step = Step.uniform(batch=3, depth=1)
    works = [w for w in _works("qwen3-30b-a3b", Layout(gpus=4), step) if w.component is Component.COLLECTIVES]
    reduce = next(w for w in works if w.subject == Collective(kind=CollectiveKind.ALL_REDUCE, ranks=4))
    gather = next(w for w in works if w.subject == Collective(kind=CollectiveKind.ALL_GATHER, ranks=4))
    assert reduce.count == 2 * 48
    assert float(reduce.bytes) == 6 * 2048 * 2
    assert gather.count == 1
    assert float(gather.bytes) == 6 * 151_936 * 2 / 4


def test_collective_seconds_by_hand() -> None:
    """A ring all-reduce over 4 sends 2 · 3/4 of its message; NVLink of an H100: 450 GB/s, 5 µs."""
    fabric, message = find_device("h100").fabric, np.asarray(1e6)
    reduce = Collective(kind=CollectiveKind.ALL_REDUCE, ranks=4)
    assert collective_seconds(fabric, reduce, message) == pytest.approx(5e-6 + 1.5e6 / 450e9)
    gather = Collective(kind=CollectiveKind.ALL_GATHER, ranks=4)
    assert collective_seconds(fabric, gather, message) == pytest.approx(5e-6 + 3e6 / 450e9)
    exchange = Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=4)
    assert collective_seconds(fabric, exchange, message) == pytest.approx(5e-6 + 0.75e6 / 450e9)
    across_nodes = Collective(kind=CollectiveKind.ALL_REDUCE, ranks=16)
    assert collective_seconds(fabric, across_nodes, message) == pytest.approx(5e-6 + 2 * 15 / 16 * 1e6 / 50e9)


# --- DeepSeek-V3: 61 layers, hidden 7168, 128 heads, latent 512 + 64, 256 experts (8 + 1 shared), fp8 ---


def test_mla_latent_is_replicated_on_every_rank() -> None:
    """KV: 576 elements per token and layer in bf16 on each rank, however many ranks there are."""
    model = bundled_model("deepseek-v3")
    for ranks in (1, 2, 8):
        layout = Layout(gpus=ranks)
        sequence_bytes = memory.sequence_bytes(model.groups, 4000, layout=layout, kv=model.kv_precision)
        assert sequence_bytes == pytest.approx(61 * 576 * 2 * 4001)


def test_mla_down_projections_are_replicated_and_up_projections_split() -> None:
    """q_a 7168 × 1536 and kv_a 7168 × 576 whole; q_b, kv_b and o an eighth."""
    whole = 7168 * 1536 + 7168 * 576
    split = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    step = Step.uniform(batch=1)
    for ranks in (1, 8):
        works = _works("deepseek-v3", Layout(gpus=ranks), step)
        assert _bytes(works, Component.ATTENTION_PROJECTIONS) == pytest.approx(61 * (whole + split / ranks))


def test_mla_attention_computes_for_its_own_heads() -> None:
    """Absorbed: 2 · heads · (576 + 512) a query and token; position j of the run sees context + j tokens."""
    context, run = 1000, 2
    pairs = run * context + run * (run + 1) / 2
    for ranks in (1, 8):
        works = _works("deepseek-v3", Layout(gpus=ranks), Step.uniform(batch=1, depth=run - 1, context=context))
        work = next(w for w in works if w.component is Component.ATTENTION)
        assert float(work.flops) == pytest.approx(2 * 128 / ranks * (576 + 512) * pairs)


def test_data_parallel_attention_with_expert_parallelism() -> None:
    """Each of 8 ranks has whole attention weights and 4 of 32 sequences; positions travel to their experts."""
    layout = Layout(gpus=8, parallel=Parallel.DP_EP)
    step = Step.uniform(batch=32, depth=1, context=100)
    works = _works("deepseek-v3", layout, step)
    alone = _works("deepseek-v3", Layout(gpus=1), Step.uniform(batch=4, depth=1, context=100))
    for component in (
        Component.ATTENTION_PROJECTIONS,
        Component.ATTENTION,
        Component.LM_HEAD,
        Component.SHARED_EXPERTS,
    ):
        assert _bytes(works, component) == pytest.approx(_bytes(alone, component))
    exchanges = [w for w in works if w.component is Component.COLLECTIVES]
    assert all(w.subject == Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=8, choices=8) for w in exchanges)
    assert sum(w.count for w in exchanges) == 2 * 58  # dispatch and combine in each of the 58 MoE layers
    ranks_touched = 8 * (1 - (7 / 8) ** 8)
    assert float(exchanges[0].bytes) == pytest.approx(4 * 2 * ranks_touched * 7168 * 2)


def test_communication_grows_with_depth_and_is_not_amortised() -> None:
    """Speculation makes expert reads cheaper per token, but every drafted position is still sent."""
    setting = pricer("deepseek-v3", "h200", "mtp", layout=Layout(gpus=8, parallel=Parallel.DP_EP))
    plain = setting.verify(Step.uniform(batch=256, context=1024)).share(Component.COLLECTIVES)
    deep = setting.verify(Step.uniform(batch=256, depth=3, context=1024)).share(Component.COLLECTIVES)
    assert 0 < plain < deep


def test_weights_on_one_gpu() -> None:
    """Mixtral-8x7B over 2 GPUs in bf16: half of everything but the router."""
    model = bundled_model("mixtral-8x7b")
    routers, norms = 32 * 4096 * 8, 32 * 2 * 4096 + 4096
    for layout in (Layout(gpus=2), Layout(gpus=2, parallel=Parallel.EP)):
        expected = 2 * ((model.parameters - routers - norms) / 2 + routers)
        assert memory.weight_bytes(model, layout) == pytest.approx(expected)


def test_a_mixture_spread_over_ranks_needs_expert_numbers_for_each_group() -> None:
    model = bundled_model("deepseek-v3")
    assert len(model.pools) == 1
    load = ExpertLoad(distinct_by_group=(np.asarray(8.0),), pairs_by_group=(np.asarray(8.0),))
    works = target_work(model, Step.uniform(batch=1), load, layout=Layout(), kv=model.kv_precision)
    assert _bytes(works, Component.ROUTED_EXPERTS) == pytest.approx(58 * 8 * 3 * 7168 * 2048)


@pytest.mark.parametrize(
    ("model", "layout", "complaint"),
    [
        ("qwen3-30b-a3b", Layout(gpus=3), "32 heads do not divide over 3 GPUs; use one of 1, 2, 4, 8, 16, 32"),
        ("llama-3.1-8b", Layout(gpus=2, parallel=Parallel.EP), "has no experts to spread; use --parallel tp"),
        ("north-mini-code", Layout(gpus=12, parallel=Parallel.DP_EP), "128 experts do not divide over 12 GPUs"),
    ],
)
def test_layouts_that_do_not_divide(model: str, layout: Layout, complaint: str) -> None:
    with pytest.raises(ParallelismError, match=complaint):
        layout.check(bundled_model(model))


def test_no_gpus_is_refused() -> None:
    with pytest.raises(ParallelismError, match="at least 1"):
        Layout(gpus=0)
