"""Layouts and physics: more ranks never need more memory each, and the two spellings of a layout cost the same."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specmargin.architecture.types import ExpertPool
from specmargin.catalog.lookup import bundled_model
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel, Placement
from specmargin.prices import memory
from specmargin.prices.ranks import lockstep
from specmargin.prices.work import Component
from specmargin.routing.local import LocalRouting
from specmargin.routing.placement import PlacedRouting
from specmargin.sources import assumed
from specmargin.step import Step
from tests.scenarios import pricer

MODELS = ("deepseek-v3", "qwen3-30b-a3b", "qwen3.6-35b-a3b", "gpt-oss-120b", "kimi-k2")
models = st.sampled_from(MODELS)
sizes = st.sampled_from([1, 2, 4, 8])


@cache
def skewed(experts: int, k: int) -> LocalRouting:
    """Two layers with popular experts at either end."""
    weight = 1.0 / (1.0 + np.arange(experts)) ** 0.6
    popularity = np.stack([k * weight / weight.sum(), k * weight[::-1] / weight.sum()])
    runs = np.arange(1.0, 17.0)[:, np.newaxis, np.newaxis]
    return LocalRouting(
        name="skewed",
        source=assumed("test"),
        pool=ExpertPool(experts=experts, experts_per_token=k),
        popularity_by_layer_expert=popularity,
        log_miss_by_run_layer_expert=-runs * np.log1p(-popularity),
        neighbour_overlap_by_layer=np.zeros(2),
        identified=True,
        captured_run=16,
    )


def per_rank(model: str, layout: Layout) -> tuple[float, float]:
    """Weights, and KV and states of one sequence."""
    architecture = bundled_model(model)
    sequence = memory.sequence_bytes(architecture.groups, 4096, layout=layout, kv=architecture.kv_precision, depth=2)
    return memory.weight_bytes(architecture, layout), float(sequence)


@given(models, sizes, sizes, sizes, st.booleans())
def test_more_ranks_never_need_more_memory_each(model: str, tp: int, dp: int, pp: int, ep: bool) -> None:
    weights, sequence = per_rank(model, Layout.of(tp=tp, dp=dp, pp=pp, ep=ep))
    for more in (
        Layout.of(tp=2 * tp, dp=dp, pp=pp, ep=ep),
        Layout.of(tp=tp, dp=2 * dp, pp=pp, ep=ep),
        Layout.of(tp=tp, dp=dp, pp=2 * pp, ep=ep),
    ):
        more_weights, more_sequence = per_rank(model, more)
        assert more_weights <= weights * (1 + 1e-12)
        assert more_sequence <= sequence * (1 + 1e-12)


@given(models, st.sampled_from([2, 4, 8]), st.integers(1, 256), st.integers(0, 4))
def test_both_spellings_cost_the_same(model: str, gpus: int, batch: int, depth: int) -> None:
    step = Step.uniform(batch=batch, depth=depth, context=2048)
    for old, new in (
        (Layout(gpus=gpus), Layout.of(tp=gpus, dp=1)),
        (Layout(gpus=gpus, parallel=Parallel.EP), Layout.of(tp=gpus, ep=True)),
        (Layout(gpus=gpus, parallel=Parallel.DP_EP), Layout.of(dp=gpus, ep=True)),
    ):
        before, after = (pricer(model, "h200", layout=layout).verify(step).total_seconds for layout in (old, new))
        assert np.array_equal(before, after)


@given(models, st.sampled_from([(1, 8), (2, 4), (4, 2)]), st.integers(8, 256), st.integers(0, 4))
def test_tensor_parallel_groups_lie_between_both_ends(
    model: str, shape: tuple[int, int], batch: int, depth: int
) -> None:
    """Same experts on every GPU; attention of a sequence on one GPU (dp) to eight (tp)."""
    step = Step.uniform(batch=batch - batch % 8, depth=depth, context=2048)
    tp, dp = shape

    def projections(layout: Layout) -> float:
        works = pricer(model, "h200", layout=layout).works(step)
        return sum(
            float(work.bytes) * work.count for work in works if work.component is Component.ATTENTION_PROJECTIONS
        )

    inside = projections(Layout.of(tp=tp, dp=dp, ep=True))
    assert projections(Layout.of(tp=8, ep=True)) <= inside <= projections(Layout.of(dp=8, ep=True))


@given(models, st.sampled_from([2, 4, 8]), st.integers(1, 64), st.integers(0, 4))
def test_equal_ranks_in_lockstep_cost_what_the_plan_says(model: str, dp: int, batch: int, depth: int) -> None:
    setting = pricer(model, "h200", layout=Layout.of(dp=dp, ep=True))
    own = Step.ragged(depths=[depth] * batch, contexts=1024.0)
    together = setting.verify(*lockstep([own] * dp)).total_seconds
    planned = setting.verify(Step.uniform(batch=batch * dp, depth=depth, context=1024)).total_seconds
    assert np.allclose(together, planned, rtol=1e-9)


@given(st.lists(st.tuples(st.integers(0, 24), st.integers(0, 4)), min_size=4, max_size=4))
def test_a_rank_with_more_to_do_never_makes_the_others_faster(ranks: list[tuple[int, int]]) -> None:
    setting = pricer("deepseek-v3", "h200", layout=Layout.of(dp=4, ep=True))
    steps = [Step.ragged(depths=[depth], contexts=1024.0).times(batch) for batch, depth in ranks]
    more = [steps[0].joined(Step.ragged(depths=[1], contexts=1024.0)), *steps[1:]]
    before, after = (setting.verify(*lockstep(each)).total_seconds.max() for each in (steps, more))
    assert after >= before * (1 - 1e-9)


@given(st.sampled_from([8, 16, 64]), st.integers(1, 512))
def test_copies_of_popular_experts_balance_what_ranks_compute(redundant: int, positions: int) -> None:
    plain, copied = (placed(each) for each in (0, redundant))
    even = 1 / plain.ranks
    assert even * (1 - 1e-9) <= copied.busiest_pair_share() <= plain.busiest_pair_share() * (1 + 1e-9)
    step = Step.uniform(batch=positions)
    busiest = copied.busiest_share(step) * copied.profile.mean(copied.profile.pool, step)
    assert busiest <= (64 + redundant) / plain.ranks * 1.01  # shares are interpolated in a table


@cache
def placed(redundant: int) -> PlacedRouting:
    return PlacedRouting(profile=skewed(64, 4), placement=Placement.BALANCED, ranks=8, redundant=redundant)
