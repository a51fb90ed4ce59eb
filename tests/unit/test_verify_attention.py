"""Which attention kernel runs a verify step, and what several queries of a sequence cost in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.architecture.precision import BF16, FP8, Precision
from specmargin.architecture.types import Attention, GroupedAttention, LatentAttention
from specmargin.catalog.lookup import bundled_device
from specmargin.catalog.prices import find_prices
from specmargin.modes import RooflineForm
from specmargin.prices.attention import traffic
from specmargin.prices.attention_kernels import AttentionKernel, Queries, attention_kernel, device_kernel
from specmargin.prices.model import PriceModel
from specmargin.prices.roofline import Roofline
from specmargin.prices.triton_mla import triton_mla_price
from specmargin.prices.verify_attention import EngineAttention, flash_2_walk, has_other_kernels
from specmargin.prices.work import Component, Work
from specmargin.step import Step

QWEN = GroupedAttention(heads=24, kv_heads=4, key_dim=256, value_dim=256)
LLAMA = GroupedAttention(heads=32, kv_heads=8, key_dim=128, value_dim=128)
GPT_OSS = GroupedAttention(heads=64, kv_heads=8, key_dim=64, value_dim=64, sinks=True)
GEMMA = GroupedAttention(heads=16, kv_heads=4, key_dim=512, value_dim=512)
ODD = GroupedAttention(heads=16, kv_heads=4, key_dim=320, value_dim=320)
KIMI = LatentAttention(heads=64, latent_dim=512, rope_dim=64)


def kernel(
    engine: str, generation: str, attention: Attention, kv: Precision = BF16, release: tuple[int, ...] | None = None
) -> AttentionKernel:
    return attention_kernel(engine, generation, attention, kv, release)


def attention_work(attention: Attention, step: Step, kv: Precision = BF16, ranks: int = 1) -> Work:
    moved = traffic(attention, step.run_by_class, step.context_by_class, kv=kv, ranks=ranks)
    return Work(
        component=Component.ATTENTION,
        count=1,
        bytes=step.total(moved.read_bytes + moved.written_bytes),
        subject=attention,
        ranks=ranks,
        kv=kv,
        step=step,
        positions=step.positions,
    )


def seconds(prices: PriceModel, attention: Attention, *, batch: int, queries: int, context: float) -> float:
    step = Step.uniform(batch=batch, depth=queries - 1, context=context)
    return float(prices.price([attention_work(attention, step)])[0].seconds)


def adjusted(gpu: str, engine: str = "vllm") -> EngineAttention:
    device = bundled_device(gpu)
    return EngineAttention(inner=Roofline(device=device), device=device, engine=engine)


# --- which kernel ---


@pytest.mark.parametrize(
    ("generation", "attention", "kv", "name", "queries"),
    [
        ("sm_90", LLAMA, BF16, "FlashAttention 3", Queries.ONCE),
        ("sm_90", KIMI, BF16, "FlashAttention 3 MLA or FlashMLA", Queries.ONCE),
        ("sm_100", LLAMA, FP8, "FlashInfer", Queries.ONCE),
        ("sm_103", KIMI, FP8, "FlashInfer MLA", Queries.ONCE),
        ("sm_80", QWEN, BF16, "FlashAttention 2", Queries.UNSPLIT),
        ("sm_86", LLAMA, BF16, "FlashAttention 2", Queries.UNSPLIT),
        ("sm_120", LLAMA, FP8, "FlashInfer", Queries.ONCE),
        ("sm_120", GPT_OSS, BF16, "Triton unified attention", Queries.UNSPLIT),
        ("sm_89", GEMMA, BF16, "FlashInfer", Queries.ONCE),
        ("sm_89", ODD, BF16, "Triton unified attention", Queries.UNSPLIT),
        ("sm_75", LLAMA, BF16, "Triton unified attention", Queries.UNSPLIT),
        ("sm_120", KIMI, FP8, "Triton MLA", Queries.PER_QUERY),
        ("gfx1201", LLAMA, BF16, "Triton prefix prefill", Queries.UNSPLIT),
        ("gfx1100", GEMMA, BF16, "Triton unified attention", Queries.UNSPLIT),
        ("gfx942", LLAMA, BF16, "attention kernel not known", Queries.ONCE),
        ("gfx950", GPT_OSS, BF16, "AITER attention", Queries.ONCE),
    ],
)
def test_vllm_chooses_by_generation_head_size_sinks_and_cache(
    generation: str, attention: Attention, kv: Precision, name: str, queries: Queries
) -> None:
    chosen = kernel("vllm", generation, attention, kv)
    assert (chosen.name, chosen.queries) == (name, queries)


def test_a_release_decides_whether_triton_mla_flattens_queries() -> None:
    assert kernel("vllm", "sm_120", KIMI).queries is Queries.PER_QUERY
    assert kernel("vllm", "sm_120", KIMI, release=(0, 32, 1)).queries is Queries.PER_QUERY
    assert kernel("vllm", "sm_120", KIMI, release=(0, 29, 0)).queries is Queries.PROJECTED


def test_intel_gpus_flatten_queries_in_newer_releases() -> None:
    assert kernel("vllm", "bmg_g21", QWEN).queries is Queries.PER_QUERY
    assert kernel("vllm", "bmg_g21", QWEN, release=(0, 26)).queries is Queries.UNSPLIT


def test_other_engines() -> None:
    assert kernel("sglang", "sm_120", KIMI).name == "Triton extend attention"
    assert kernel("sglang", "sm_120", LLAMA).name == "FlashInfer"
    assert kernel("sglang", "sm_90", KIMI).queries is Queries.ONCE
    assert kernel("llamacpp", "apple9", LLAMA).queries is Queries.PER_QUERY
    assert kernel("llamacpp", "sm_86", LLAMA).queries is Queries.ONCE
    assert kernel("trtllm", "sm_120", LLAMA).queries is Queries.ONCE


def test_an_unknown_kernel_widens_the_range() -> None:
    chosen = kernel("vllm", "", LLAMA)
    assert chosen.queries is Queries.ONCE
    assert chosen.spread > 0


def test_prices_are_left_alone_where_every_kernel_reads_once() -> None:
    assert not has_other_kernels("vllm", bundled_device("h200"))
    assert not has_other_kernels("sglang", bundled_device("gb300"))
    assert not has_other_kernels("trtllm", bundled_device("l40s"))
    assert has_other_kernels("vllm", bundled_device("a100"))
    sheet = find_prices("datasheet", bundled_device("a100"), "vllm", RooflineForm.PER_COMPONENT)
    assert isinstance(sheet, Roofline)


# --- what it costs ---


#: Nanoseconds per token that one block of FlashAttention 2 walks: slopes of prompts of one sequence and one head from
#: 1,024 to 4,096 tokens (aiconfigurator-core 0.12.0, context_attention_perf: vLLM 0.14 on A100, 0.24 on the others),
#: and 32,768 tokens with 8 queries on RTX 3090s (vllm-project/flash-attention pull request 193).
WALKS = [
    ("a100", 128, 24.3),
    ("l40s", 64, 10.6),
    ("l40s", 128, 18.8),
    ("l40s", 192, 29.5),
    ("l40s", 256, 37.5),
    ("rtx-pro-6000", 128, 19.9),
    ("rtx-pro-6000", 256, 38.1),
    ("rtx-3090", 128, 40.8),
    ("rtx-3090", 256, 89.7),
]


@pytest.mark.parametrize(("gpu", "head", "measured"), WALKS)
def test_a_walk_takes_what_public_rows_show(gpu: str, head: int, measured: float) -> None:
    assert flash_2_walk(bundled_device(gpu)).seconds(2 * head) * 1e9 == pytest.approx(measured, rel=0.2)


#: Nanoseconds per token of Triton's kernels: the H200's at 32,768 tokens, 4 queries, batch 1 (vLLM 0.32,
#: lab/gpu/verify_kernels.py); L40S and RTX PRO 6000 as above; SGLang 0.5.14 on L40S and H200 as above.
TRITON_WALKS = [
    ("vllm", "sm_120", 128, 46.4),
    ("vllm", "sm_120", 256, 59.7),
    ("vllm", "sm_89", 192, 44.8),
    ("vllm", "sm_120", 192, 50.6),
    ("vllm", "gfx1201", 256, 173.0),
    ("sglang", "sm_89", 64, 25.5),
    ("sglang", "sm_89", 192, 55.5),
    ("sglang", "sm_89", 512, 70.3),
]


@pytest.mark.parametrize(("engine", "generation", "head", "measured"), TRITON_WALKS)
def test_triton_walks_take_what_was_measured(engine: str, generation: str, head: int, measured: float) -> None:
    attention = GroupedAttention(heads=8, kv_heads=1, key_dim=head, value_dim=head, sinks=True)
    walk = kernel(engine, generation, attention).walk
    assert walk is not None
    assert walk.seconds(2 * head) * 1e9 == pytest.approx(measured, rel=0.25)


def test_unsplit_attention_on_rtx_3090_as_published() -> None:
    """12 heads of 256: 2.94 ms with 8 queries at 32,768 tokens, 0.14 ms with one (flash-attention pull request 193)."""
    attention = GroupedAttention(heads=12, kv_heads=2, key_dim=256, value_dim=256)
    prices = adjusted("rtx-3090")
    assert seconds(prices, attention, batch=1, queries=8, context=32_768) == pytest.approx(2.94e-3, rel=0.1)
    assert seconds(prices, attention, batch=1, queries=1, context=32_768) < 0.14e-3


def test_the_time_of_a_walk_does_not_depend_on_queries_or_few_sequences() -> None:
    prices = adjusted("a100")
    two = seconds(prices, QWEN, batch=1, queries=2, context=32_768)
    assert seconds(prices, QWEN, batch=1, queries=8, context=32_768) == pytest.approx(two, rel=0.01)
    assert seconds(prices, QWEN, batch=4, queries=2, context=32_768) == pytest.approx(two, rel=0.01)
    nine = seconds(prices, QWEN, batch=9, queries=2, context=32_768)
    assert nine == pytest.approx(1.7 * two, rel=0.01)  # 216 blocks on 108 SMs, 0.85 of the time each


def test_a_window_bounds_the_walk() -> None:
    prices, window = adjusted("a100"), replace(QWEN, window=1024)
    near = seconds(prices, window, batch=1, queries=4, context=2048)
    assert seconds(prices, window, batch=1, queries=4, context=65_536) == pytest.approx(near)


#: Milliseconds of vLLM 0.24's MLA module on an RTX PRO 6000 (aiconfigurator-core 0.12.0, mla_generation_module_perf,
#: bf16, 16 heads) less that of three cached tokens: batch, context, attention alone.
MODULES = [(1, 131_073, 0.231), (4, 131_073, 0.599), (16, 65_537, 0.999), (16, 131_073, 1.983), (64, 16_385, 0.984)]


@pytest.mark.parametrize(("batch", "context", "milliseconds"), MODULES)
def test_triton_mla_takes_what_module_rows_show(batch: int, context: int, milliseconds: float) -> None:
    attention = LatentAttention(heads=16, latent_dim=512, rope_dim=64)
    rows = Step.uniform(batch=batch, context=context)
    price = triton_mla_price(bundled_device("rtx-pro-6000"), attention, rows, kv=BF16, ranks=1)
    assert float(price.seconds) * 1e3 == pytest.approx(milliseconds, rel=0.2)


#: Microseconds of vLLM 0.32's Triton MLA on an H200 (lab/gpu/verify_kernels.py): batch, queries, context, heads.
H200_ROWS = [
    (1, 1, 1024, 8, 52),
    (1, 8, 1024, 8, 52),
    (8, 4, 8192, 8, 172),
    (32, 1, 8192, 8, 185),
    (1, 8, 32_768, 16, 186),
    (8, 1, 32_768, 16, 204),
    (1, 1, 131_072, 16, 159),
    (8, 8, 131_072, 8, 4944),
    (4, 2, 131_072, 128, 4451),
    (8, 1, 131_072, 128, 4451),
]


@pytest.mark.parametrize(("batch", "queries", "context", "heads", "microseconds"), H200_ROWS)
def test_triton_mla_takes_what_an_h200_takes(
    batch: int, queries: int, context: int, heads: int, microseconds: float
) -> None:
    attention = LatentAttention(heads=heads, latent_dim=512, rope_dim=64)
    step = Step.uniform(batch=batch, depth=queries - 1, context=context)
    price = triton_mla_price(bundled_device("h200"), attention, step, kv=BF16, ranks=1)
    assert float(price.seconds) * 1e6 == pytest.approx(microseconds, rel=0.25)


#: Microseconds per layer of five queries on an RTX 3090, 24 heads over 4 of 256, as syv-ai/qwen38-27b-rtx3090 measured
#: them (docs/optimizations.md): build, context.
SPLIT_VERIFY = [("syv", 16_384, 120), ("", 16_384, 1300), ("syv", 1536, 23)]


@pytest.mark.parametrize(("build", "context", "microseconds"), SPLIT_VERIFY)
def test_a_build_with_split_verify_attention(build: str, context: int, microseconds: float) -> None:
    attention = GroupedAttention(heads=24, kv_heads=4, key_dim=256, value_dim=256)
    device = bundled_device("rtx-3090")
    form = RooflineForm.PER_COMPONENT
    prices = find_prices("scaled", device, "vllm", form, release=(0, 27, 1), build=build)
    layer = seconds(prices, attention, batch=1, queries=5, context=context)
    assert layer * 1e6 == pytest.approx(microseconds, rel=0.35)
    fp8 = device_kernel("vllm", device, attention, FP8, (0, 27, 1), build)
    assert fp8.name == "FlashInfer"  # which the patch leaves alone


#: Milliseconds of the first kernel of the rtx6kpro build on an RTX PRO 6000, 16 heads, fp8, the cache in L2
#: (local-inference-lab/rtx6kpro, models/kimi-k26-mtp-long-ctx-wip/patches/triton_mla_tuning.py): rows, context.
RTX6KPRO_ROWS = [(1, 78_643, 0.09), (4, 249_036, 0.60), (16, 249_036, 1.75), (64, 78_643, 2.20), (128, 13_107, 0.75)]


@pytest.mark.parametrize(("rows", "context", "milliseconds"), RTX6KPRO_ROWS)
def test_triton_mla_of_another_build_walks_as_its_tuning_table_says(
    rows: int, context: int, milliseconds: float
) -> None:
    attention = LatentAttention(heads=16, latent_dim=512, rope_dim=64)
    step = Step.uniform(batch=rows, context=context)
    price = triton_mla_price(bundled_device("rtx-pro-6000"), attention, step, kv=FP8, ranks=1, by_rows=True)
    assert float(price.compute_seconds) * 1e3 == pytest.approx(milliseconds, rel=0.15)


@given(batch=st.integers(1, 64), queries=st.integers(2, 16), context=st.integers(512, 200_000))
def test_queries_of_a_sequence_read_its_cache_once(batch: int, queries: int, context: int) -> None:
    attention = LatentAttention(heads=16, latent_dim=512, rope_dim=64)
    device = bundled_device("rtx-pro-6000")
    run = Step.uniform(batch=batch, depth=queries - 1, context=context)
    together, apart = (triton_mla_price(device, attention, s, kv=BF16, ranks=1) for s in (run, run.flattened()))
    plain = triton_mla_price(device, attention, run.of_one_query(), kv=BF16, ranks=1)
    assert float(plain.seconds) <= float(together.seconds) * 1.0001 <= float(apart.seconds) * 1.001
    assert float(together.compute_seconds) == pytest.approx(float(apart.compute_seconds))


@given(
    batch=st.integers(1, 64),
    queries=st.integers(2, 16),
    context=st.integers(0, 200_000),
    gpu=st.sampled_from(["rtx-pro-6000", "l40s", "a100"]),
)
def test_flattened_queries_cost_as_much_as_so_many_sequences(batch: int, queries: int, context: int, gpu: str) -> None:
    """By a datasheet; prices of the kernel know that they share the cache of their sequence."""
    mean = context + (queries - 1) / 2
    laws = find_prices("laws", bundled_device(gpu), "vllm", RooflineForm.PER_COMPONENT)
    for prices, least in ((adjusted(gpu), 0.999), (laws, 0.0)):
        verify = seconds(prices, KIMI, batch=batch, queries=queries, context=context)
        sequences = seconds(prices, KIMI, batch=batch * queries, queries=1, context=mean)
        assert least * sequences <= verify <= 1.001 * sequences
        assert verify >= 0.999 * seconds(prices, KIMI, batch=batch, queries=1, context=context)


@given(
    batch=st.integers(1, 64),
    queries=st.integers(1, 16),
    context=st.integers(0, 200_000),
    gpu=st.sampled_from(["rtx-pro-6000", "a100", "rtx-3090", "r9700", "arc-pro-b60", "mi300x", "m3-ultra", "t4"]),
    engine=st.sampled_from(["vllm", "sglang", "llamacpp", "trtllm"]),
    attention=st.sampled_from([QWEN, LLAMA, GPT_OSS, ODD, KIMI]),
)
def test_attention_never_falls_with_queries_sequences_or_context(
    batch: int, queries: int, context: int, gpu: str, engine: str, attention: Attention
) -> None:
    prices = adjusted(gpu, engine)
    one = seconds(prices, attention, batch=batch, queries=queries, context=context) * (1 - 1e-9)
    assert one >= seconds(prices.inner, attention, batch=batch, queries=1, context=context) * (1 - 1e-6)
    assert seconds(prices, attention, batch=batch, queries=queries + 1, context=context) >= one
    assert seconds(prices, attention, batch=batch + 1, queries=queries, context=context) >= one
    assert seconds(prices, attention, batch=batch, queries=queries, context=context * 1.3 + 1) >= one


def test_projecting_the_context_again_costs_more_than_reading_it() -> None:
    device = bundled_device("rtx-pro-6000")
    old = EngineAttention(inner=Roofline(device=device), device=device, engine="vllm", release=(0, 24, 0))
    plain = seconds(old, KIMI, batch=1, queries=1, context=32_768)
    assert seconds(old, KIMI, batch=1, queries=4, context=32_768) > 3 * plain


def test_the_price_names_its_kernel_and_where_the_engine_chooses_it() -> None:
    step = Step.uniform(batch=1, depth=3, context=8192)
    price = adjusted("a100").price([attention_work(QWEN, step)])[0]
    assert "FlashAttention 2" in price.source.detail
    assert "flash_api.cpp:756" in price.source.detail
    assert price.source.spread > 0


def test_prompts_beside_decoding_sequences_add_what_they_take_alone() -> None:
    decode, prompt = Step.uniform(batch=4, depth=1, context=4096), Step.prompts(tokens=512)
    prices = find_prices("laws", bundled_device("rtx-pro-6000"), "vllm", RooflineForm.PER_COMPONENT)
    mixed, alone, read = (
        float(prices.price([attention_work(KIMI, step)])[0].seconds) for step in (decode.joined(prompt), decode, prompt)
    )
    assert mixed == pytest.approx(alone + read)


def test_plain_steps_of_mla_are_priced_by_triton_where_it_runs() -> None:
    """Not by TensorRT-LLM's law, the only one of MLA on this GPU."""
    prices = find_prices("laws", bundled_device("rtx-pro-6000"), "vllm", RooflineForm.PER_COMPONENT)
    price = prices.price([attention_work(KIMI, Step.uniform(batch=1, context=4096))])[0]
    assert price.source.detail.startswith("Triton MLA by its grid")
    other = find_prices("laws", bundled_device("rtx-pro-6000"), "trtllm", RooflineForm.PER_COMPONENT)
    assert "law of trtllm" in other.price([attention_work(KIMI, Step.uniform(batch=1, context=4096))])[0].source.detail


def test_one_ragged_batch_is_one_launch() -> None:
    """A sequence of one query beside one of four is not split either."""
    step = Step.ragged(depths=[0, 3], contexts=[65_536.0, 1024.0])
    price = adjusted("a100").price([attention_work(QWEN, step)])[0]
    alone = adjusted("a100").price([attention_work(QWEN, Step.uniform(batch=1, depth=1, context=65_536.0))])[0]
    assert float(price.seconds) == pytest.approx(float(alone.seconds), rel=0.01)


def test_a_prompt_in_the_same_launch_takes_away_the_splits_of_decoding_sequences() -> None:
    decode, prompt = Step.uniform(batch=4, context=32_768), Step.prompts(tokens=512)
    for gpu, longer in (("a100", 3.0), ("h200", 0.999)):  # FlashAttention 2; 3
        prices = adjusted(gpu)
        mixed = float(prices.price([attention_work(QWEN, decode.joined(prompt))])[0].seconds)
        alone = float(prices.price([attention_work(QWEN, decode)])[0].seconds)
        read = float(prices.inner.price([attention_work(QWEN, prompt)])[0].seconds)
        assert mixed >= longer * (alone + read)
        assert mixed <= 3.0 * longer * (alone + read)


def test_arrays_keep_their_shape() -> None:
    step = Step.uniform(batch=np.array([[1.0], [8.0]]), depth=np.arange(4.0), context=4096.0)
    for gpu, attention in (("a100", QWEN), ("rtx-pro-6000", KIMI)):
        price = adjusted(gpu).price([attention_work(attention, step)])[0]
        assert np.broadcast_shapes(np.shape(price.seconds), (2, 4)) == (2, 4)
        assert device_kernel("vllm", bundled_device(gpu), attention, BF16).queries is not Queries.ONCE
