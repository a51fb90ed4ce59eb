"""What each kind of attention reads, writes, computes and keeps, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.architecture.precision import BF16, FP8, FP32
from specmargin.architecture.types import (
    Attention,
    BlockSelection,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    TokenSelection,
)
from specmargin.prices.attention import Traffic, attended_pairs, held_bytes, selected_union, traffic
from specmargin.step import FloatArray

INDEX = TokenSelection(index_heads=64, index_dim=128, top_k=512)
GQA = GroupedAttention(heads=16, kv_heads=2, key_dim=256, value_dim=256)
WINDOW = GroupedAttention(heads=64, kv_heads=8, key_dim=64, value_dim=64, window=128)
BLOCKS = GroupedAttention(
    heads=64,
    kv_heads=4,
    key_dim=128,
    value_dim=128,
    selection=BlockSelection(index_heads=4, index_dim=128, block_tokens=128, top_blocks=16),
)
MLA = LatentAttention(heads=128, latent_dim=512, rope_dim=64)
DSA = LatentAttention(
    heads=128, latent_dim=512, rope_dim=64, selection=TokenSelection(index_heads=64, index_dim=128, top_k=2048)
)
CSA = CompressedAttention(heads=64, head_dim=512, rope_dim=64, window=128, ratio=4, selection=INDEX)
HCA = CompressedAttention(heads=64, head_dim=512, rope_dim=64, window=128, ratio=128)
LOCAL = CompressedAttention(heads=64, head_dim=512, rope_dim=64, window=128, ratio=0)
GDN = LinearAttention(
    kind="gated_delta_net",
    heads=32,
    state_elements=32 * 128 * 128,
    convolution_elements=8192 * 3,
    state_precision=FP32,
    flops_per_position=8.0 * 32 * 128 * 128,
)
ALL: list[Attention] = [GQA, WINDOW, BLOCKS, MLA, DSA, CSA, HCA, LOCAL, GDN]


def _one(value: float) -> FloatArray:
    return np.array([float(value)])


def _traffic(attention: Attention, run: int, context: int, precision: str = "bf16") -> Traffic:
    kv = FP8 if precision == "fp8" else BF16
    return traffic(attention, _one(run), _one(context), kv=kv, ranks=1)


def test_pairs() -> None:
    assert attended_pairs(_one(3), _one(10)) == 11 + 12 + 13
    assert attended_pairs(_one(3), _one(1000), 128) == 3 * 128


def test_window_reads_the_window_and_the_run() -> None:
    entry = 2 * 8 * 64 * 2
    moved = _traffic(WINDOW, run=4, context=5000)
    assert moved.read_bytes == (128 + 3) * entry
    assert moved.written_bytes == 4 * entry
    assert moved.flops == 2 * 64 * (64 + 64) * 4 * 128


def test_dsa_reads_every_index_key_and_its_own_top_k() -> None:
    """Index keys are fp8 (128 bytes per token); 2048 latents of 1152 bytes for one query."""
    moved = _traffic(DSA, run=1, context=99_999)
    assert moved.read_bytes == pytest.approx(100_000 * 128 + 2048 * 1152)
    assert moved.flops == pytest.approx(100_000 * 2 * 64 * 128 + 2048 * 2 * 128 * (576 + 512))


def test_a_layer_that_reuses_a_selection_has_no_indexer() -> None:
    """GLM-5.2: three layers of four take the top-k of the fourth."""
    shared = LatentAttention(
        heads=128,
        latent_dim=512,
        rope_dim=64,
        selection=TokenSelection(index_heads=64, index_dim=128, top_k=2048, owns_indexer=False),
    )
    moved = _traffic(shared, run=1, context=99_999)
    assert moved.read_bytes == pytest.approx(2048 * 1152)
    assert held_bytes(shared, _one(1000), kv=BF16, ranks=1) == 1000 * 1152


def test_csa_reads_window_selection_and_compressed_index() -> None:
    """An entry is 448 fp8 and 64 bf16 elements: 576 bytes. 8192 tokens are 2048 compressed entries."""
    entry = 448 + 2 * 64
    moved = _traffic(CSA, run=1, context=8192, precision="fp8")
    assert moved.read_bytes == pytest.approx((128 + 512) * entry + 2048 * 128)
    assert moved.flops == pytest.approx((128 + 512) * 2 * 64 * 1024 + 2048 * 2 * 64 * 128)


def test_a_layer_that_reads_another_ones_history_stores_none() -> None:
    """V4.1: it reads as much as its source, and holds and writes its window alone."""
    source = replace(CSA, ratio=2)
    reader = replace(source, owns_history=False)
    here, there = (_traffic(attention, run=4, context=100_000) for attention in (source, reader))
    assert there.read_bytes == here.read_bytes
    window = replace(source, ratio=0, selection=None)
    assert there.written_bytes == _traffic(window, run=4, context=100_000).written_bytes
    held = [held_bytes(attention, _one(100_000), kv=BF16, ranks=1) for attention in (reader, window)]
    assert held[0] == held[1]


def test_pooled_keys_of_an_indexer_are_read_once_per_pool() -> None:
    """GLM-5.3-Flash: a key stands for four tokens."""
    assert DSA.selection is not None
    pooled = replace(DSA, selection=replace(DSA.selection, key_tokens=4))
    each, shared = (_traffic(attention, run=1, context=100_000) for attention in (DSA, pooled))
    index = 100_001 * 128  # keys in fp8 with their scales
    assert float((each.read_bytes - shared.read_bytes)[0]) == pytest.approx(0.75 * index, rel=0.05)
    assert float((each.flops - shared.flops)[0]) == pytest.approx(0.75 * 2 * 64 * index)


def test_hca_reads_all_of_a_history_128_times_shorter() -> None:
    entry = 448 + 2 * 64
    moved = _traffic(HCA, run=1, context=128 * 1000, precision="fp8")
    assert moved.read_bytes == pytest.approx((128 + 1000) * entry)


def test_block_sparse_attention_reads_its_blocks_and_the_index() -> None:
    moved = _traffic(BLOCKS, run=1, context=99_999)
    assert moved.read_bytes == pytest.approx(2048 * (4 * 256 * 2) + 100_000 * 128 * 2)


def test_linear_attention_reads_one_state_and_writes_one_a_position() -> None:
    """A rejected position must be rolled back to, so speculation writes a state for each."""
    state = 32 * 128 * 128 * 4 + 8192 * 3 * 2
    for run in (1, 4):
        moved = _traffic(GDN, run=run, context=50_000)
        assert moved.read_bytes == state
        assert moved.written_bytes == run * state
    assert held_bytes(GDN, _one(50_000), kv=BF16, ranks=1, states=4) == 4 * state


def test_union_of_selections() -> None:
    assert selected_union(_one(1), _one(10_000), 512) == pytest.approx(512)
    assert selected_union(_one(8), _one(300), 512) == pytest.approx(300)  # fewer entries than the budget
    assert 512 < float(selected_union(_one(4), _one(10_000), 512)[0]) < 4 * 512


@given(st.sampled_from(ALL), st.integers(1, 16), st.integers(0, 200_000), st.sampled_from([1, 2, 4, 8]))
def test_never_less_for_a_longer_run_or_context(attention: Attention, run: int, context: int, ranks: int) -> None:
    def cost(r: int, c: int) -> FloatArray:
        moved = traffic(attention, _one(r), _one(c), kv=BF16, ranks=ranks)
        return np.array([moved.read_bytes[0], moved.written_bytes[0], moved.flops[0]])

    here = cost(run, context)
    assert np.all(here >= 0)
    assert np.all(cost(run + 1, context) >= here * (1 - 1e-9))
    assert np.all(cost(run, context + 100) >= here * (1 - 1e-9))


@given(st.sampled_from(ALL), st.integers(1, 100_000))
def test_attention_reads_no_more_than_it_keeps(attention: Attention, context: int) -> None:
    cached = float(held_bytes(attention, _one(context + 1), kv=BF16, ranks=1)[0])
    read = float(_traffic(attention, 1, context).read_bytes[0])
    assert read <= cached * (1 + 1e-9) + 1
