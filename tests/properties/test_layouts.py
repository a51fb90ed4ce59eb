"""Layouts and physics: more ranks never need more memory each, and the two spellings of a layout cost the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specmargin.catalog.lookup import bundled_model
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel
from specmargin.prices import memory
from specmargin.prices.work import Component
from specmargin.step import Step
from tests.scenarios import pricer

MODELS = ("deepseek-v3", "qwen3-30b-a3b", "qwen3.6-35b-a3b", "gpt-oss-120b", "kimi-k2")
models = st.sampled_from(MODELS)
sizes = st.sampled_from([1, 2, 4, 8])


def per_rank(model: str, layout: Layout) -> tuple[float, float]:
    """Weights, and KV and states of one sequence."""
    architecture = bundled_model(model)
    sequence = memory.sequence_bytes(architecture.groups, 4096, layout=layout, kv=architecture.kv_precision, depth=2)
    return memory.weight_bytes(architecture, layout), float(sequence)


@given(models, sizes, sizes, st.booleans())
def test_more_ranks_never_need_more_memory_each(model: str, tp: int, dp: int, ep: bool) -> None:
    weights, sequence = per_rank(model, Layout.of(tp=tp, dp=dp, ep=ep))
    for more in (Layout.of(tp=2 * tp, dp=dp, ep=ep), Layout.of(tp=tp, dp=2 * dp, ep=ep)):
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
