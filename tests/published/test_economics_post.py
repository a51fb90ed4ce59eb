"""The knees of the economics post: DeepSeek-V4-Flash on a B200's datasheet.

Its figures: 8 TB/s; 2.25, 4.5 and 9 PFLOP/s in bf16, fp8 and fp4; attention projections of 107e6 parameters in fp8;
experts of 25.2e6 parameters in MXFP4 at 0.53 bytes; 576 bytes of KV per token; 69,632 multiply-adds per query and
token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specmargin.architecture.precision import FP8, Precision
from specmargin.architecture.types import LatentAttention, Layer
from specmargin.catalog.lookup import find_device
from specmargin.prices.attention import traffic
from specmargin.prices.work import Component
from specmargin.step import Step
from tests.scenarios import pricer, scenario

B200 = find_device("b200")


def _first_true(test: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if test(middle) else (middle, high)
    return high


def test_device_is_the_one_of_the_post() -> None:
    assert B200.bandwidth_bytes_per_second == 8e12
    assert [B200.rate(FP8.arithmetic), {k: v for k, v in B200.operations_per_second.items() if k != "dp4a"}] == [
        4.5e15,
        {"bf16": 2.25e15, "fp8": 4.5e15, "int8": 4.5e15, "fp4": 9e15},
    ]


def test_projection_and_expert_sizes() -> None:
    model = scenario("deepseek-v4-flash", "b200", "free").architecture
    window = next(g.layer for g in model.groups if g.layer.attention and getattr(g.layer.attention, "ratio", 1) == 0)
    projections = sum(m.parameters for m in window.projections if not m.name.startswith("hc"))
    assert window.experts is not None
    expert = sum(m.parameters for m in window.experts.expert)
    assert round(projections / 1e6) == 107
    assert round(expert / 1e6, 1) == 25.2
    assert round(window.experts.expert[0].precision.bytes_per_parameter, 2) == 0.53


def test_dense_fp8_turns_compute_bound_at_281_tokens() -> None:
    """Shared experts are a plain fp8 GEMM: 4.5e15 / 8e12 / 2 = 281."""
    setting = pricer("deepseek-v4-flash", "b200", "free")

    def compute_bound(positions: float) -> bool:
        lines = setting.verify(Step.uniform(batch=positions)).components
        shared = next(c for c in lines if c.component is Component.SHARED_EXPERTS)
        return bool(shared.compute_seconds > shared.memory_seconds)

    assert _first_true(compute_bound, 1, 4096) == pytest.approx(281, abs=0.5)


def test_mixture_turns_compute_bound_near_10950_tokens() -> None:
    """The post: (256 + 1) · 0.53 · 1125 / (2 · 7), the shared expert stored like the routed ones."""
    model = scenario("deepseek-v4-flash", "b200", "free").architecture
    groups = tuple(replace(group, layer=_shared_like_routed(group.layer)) for group in model.groups)
    setting = pricer("deepseek-v4-flash", "b200", "free", architecture=replace(model, groups=groups))

    def compute_bound(positions: float) -> bool:
        lines = setting.verify(Step.uniform(batch=positions)).components
        mixture = [c for c in lines if c.component in (Component.ROUTED_EXPERTS, Component.SHARED_EXPERTS)]
        return sum(float(c.compute_seconds) for c in mixture) > sum(float(c.memory_seconds) for c in mixture)

    assert _first_true(compute_bound, 1, 100_000) == pytest.approx(10_950, rel=0.01)


def _shared_like_routed(layer: Layer) -> Layer:
    block = layer.experts
    assert block is not None
    shared = tuple(replace(matrix, precision=block.expert[0].precision) for matrix in block.always_on)
    return replace(layer, experts=replace(block, always_on=shared))


def test_lone_token_marginal_price_is_084_to_085_of_the_average() -> None:
    """A second token beside a lone one adds 5.86 experts to 7 (6 routed and the shared one); in the limit, 5.93."""
    n, k, shared = 256, 6, 1
    second = n * (1 - (1 - k / n) ** 2) - k
    slope = -n * np.log1p(-k / n) * (1 - k / n)
    assert round(second / (k + shared), 2) == 0.84
    assert round(float(slope) / (k + shared), 2) == 0.85
    # The same from Specmargin's ledger: routed and shared experts, in one precision as the post has them.
    setting = pricer("deepseek-v4-flash", "b200", "free")
    now, more = setting.marginal(Step.uniform(batch=1))
    routed = {c.component: float(c.bytes) for c in now.components}[Component.ROUTED_EXPERTS]
    added = {c.component: float(c.bytes) for c in more.components}[Component.ROUTED_EXPERTS] - routed
    assert added / (routed / k * (k + shared)) == pytest.approx(second / (k + shared), rel=1e-9)


def test_mla_crosses_the_bf16_ridge_at_116_queries() -> None:
    """Absorbed MLA of 64 heads over 512 + 64 elements in fp8: 69,632 multiply-adds for 576 bytes."""
    post = LatentAttention(heads=64, latent_dim=512, rope_dim=64)
    fp8: Precision = FP8
    context = np.array([1e7])  # long enough that the run's own positions do not count
    moved = traffic(post, np.array([1.0]), context, kv=fp8, ranks=1)
    assert float(moved.read_bytes[0]) == pytest.approx(576 * 1e7, rel=1e-6)
    assert float(moved.flops[0]) == pytest.approx(2 * 69_632 * 1e7, rel=1e-6)
    memory = float(moved.read_bytes[0]) / B200.bandwidth_bytes_per_second
    compute_per_query = float(moved.flops[0]) / 2.25e15
    assert round(memory / compute_per_query, 2) == 1.16
