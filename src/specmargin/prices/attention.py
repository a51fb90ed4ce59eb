"""What attention reads, writes, computes and caches, by kind. KV is read once per step whatever the run length;
compute grows with it.

A sequence with `context` tokens in its cache brings `run` new positions; position j of the run attends to
context + j tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from specmargin.architecture.precision import FP8, Precision
from specmargin.architecture.types import (
    Attention,
    BlockSelection,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    TokenSelection,
)
from specmargin.step import FloatArray

_ROPE_BYTES = 2.0  # DeepSeek V4 keeps the rotary part of an entry in bf16
_INDEX_BYTES = FP8.bytes_per_parameter  # indexer keys are cached in fp8
_CONVOLUTION_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Per sequence, on one rank."""

    read_bytes: FloatArray
    written_bytes: FloatArray
    flops: FloatArray


def traffic(
    attention: Attention,
    run: FloatArray,
    context: FloatArray,
    *,
    kv: Precision,
    ranks: int,
    states: FloatArray | None = None,
) -> Traffic:
    """`states`: recurrent states that a sequence writes, by default one per position of its run."""
    match attention:
        case GroupedAttention():
            return _grouped(attention, run, context, kv, ranks)
        case LatentAttention():
            return _latent(attention, run, context, kv, ranks)
        case CompressedAttention():
            return _compressed(attention, run, context, kv, ranks)
        case LinearAttention():
            return _linear(attention, run, run if states is None else states, ranks)
        case _:
            assert_never(attention)


def held_bytes(attention: Attention, context: FloatArray, *, kv: Precision, ranks: int, states: int = 1) -> FloatArray:
    """Cache memory of one sequence on one rank; `states` recurrent states, one per position when speculating."""
    context = np.asarray(context, dtype=np.float64)
    match attention:
        case GroupedAttention():
            tokens = context if attention.window is None else np.minimum(context, attention.window)
            index = 0.0 if attention.selection is None else _block_index_bytes(attention.selection, kv)
            return tokens * (_grouped_entry_bytes(attention, kv, ranks) + index)
        case LatentAttention():
            index = _index_entry_bytes(attention.selection)
            return context * (_latent_entry_bytes(attention, kv) + index)
        case CompressedAttention():
            entry = _compressed_entry_bytes(attention, kv)
            history = context / attention.ratio if attention.ratio and attention.owns_history else 0.0 * context
            return np.minimum(context, attention.window) * entry + history * (
                entry + _index_entry_bytes(attention.selection)
            )
        case LinearAttention():
            return np.full_like(context, states * _state_bytes(attention, ranks))
        case _:
            assert_never(attention)


def attended_pairs(run: FloatArray, context: FloatArray, window: int | None = None) -> FloatArray:
    """Σ over the run of the tokens that each position attends to."""
    if window is None:
        return run * context + run * (run + 1.0) / 2.0
    return run * np.minimum(context + (run + 1.0) / 2.0, window)


def attended_span(run: FloatArray, context: FloatArray, window: int | None = None) -> FloatArray:
    """Distinct tokens that the run attends to."""
    return context + run if window is None else np.minimum(context + run, window + run - 1.0)


def selected_union(run: FloatArray, entries: FloatArray, top_k: float) -> FloatArray:
    """Entries read when each of `run` queries selects its own top_k, taken as independent of each other.

    Neighbouring queries select similar entries in reality, so this is an upper bound; at run = 1 it is exactly top_k.
    """
    share = np.minimum(top_k / np.maximum(entries, 1e-9), 1.0)
    return entries * -np.expm1(run * np.log1p(-np.minimum(share, 1.0 - 1e-12)))


def _grouped(a: GroupedAttention, run: FloatArray, context: FloatArray, kv: Precision, ranks: int) -> Traffic:
    entry = _grouped_entry_bytes(a, kv, ranks)
    flops_per_pair = 2.0 * (a.heads / ranks) * (a.key_dim + a.value_dim)
    if a.selection is not None:
        return _block_selected(a.selection, run, context, kv, ranks, entry, flops_per_pair)
    span = attended_span(run, context, a.window)
    pairs = attended_pairs(run, context, a.window)
    return Traffic(read_bytes=span * entry, written_bytes=run * entry, flops=pairs * flops_per_pair)


def _block_selected(
    s: BlockSelection,
    run: FloatArray,
    context: FloatArray,
    kv: Precision,
    ranks: int,
    entry: float,
    flops_per_pair: float,
) -> Traffic:
    tokens = context + run
    index_entry = _block_index_bytes(s, kv)
    budget = float(s.block_tokens * s.top_blocks)
    read = selected_union(run, tokens, budget) * entry + tokens * index_entry
    index_flops = 2.0 * (s.index_heads / ranks) * s.index_dim * attended_pairs(run, context) / s.key_tokens
    flops = run * np.minimum(tokens, budget) * flops_per_pair + index_flops
    return Traffic(read_bytes=read, written_bytes=run * (entry + index_entry), flops=flops)


def _latent(a: LatentAttention, run: FloatArray, context: FloatArray, kv: Precision, ranks: int) -> Traffic:
    """Absorbed MLA: every rank reads the whole latent, and computes for its own heads."""
    entry = _latent_entry_bytes(a, kv)
    flops_per_pair = 2.0 * (a.heads / ranks) * (2 * a.latent_dim + a.rope_dim)
    tokens = context + run
    if a.selection is None:
        pairs = attended_pairs(run, context)
        return Traffic(read_bytes=tokens * entry, written_bytes=run * entry, flops=pairs * flops_per_pair)
    s = a.selection
    index_entry = _index_entry_bytes(s)
    index_flops = _index_flops(s, attended_pairs(run, context))
    return Traffic(
        read_bytes=selected_union(run, tokens, s.top_k) * entry + tokens * index_entry,
        written_bytes=run * (entry + index_entry),
        flops=run * np.minimum(tokens, s.top_k) * flops_per_pair + index_flops,
    )


def _compressed(a: CompressedAttention, run: FloatArray, context: FloatArray, kv: Precision, ranks: int) -> Traffic:
    entry = _compressed_entry_bytes(a, kv)
    flops_per_pair = 2.0 * (a.heads / ranks) * 2 * a.head_dim  # one tensor serves as key and value
    window_read = np.minimum(context + run, a.window + run - 1.0)
    window_pairs = attended_pairs(run, context, a.window)
    if a.ratio == 0:
        return Traffic(read_bytes=window_read * entry, written_bytes=run * entry, flops=window_pairs * flops_per_pair)
    history = context / a.ratio
    s = a.selection
    history_read = history if s is None else selected_union(run, history, s.top_k)
    history_pairs = run * (history if s is None else np.minimum(history, s.top_k))
    index_entry = _index_entry_bytes(s)
    return Traffic(
        read_bytes=(window_read + history_read) * entry + history * index_entry,
        written_bytes=run * entry + (run / a.ratio * (entry + index_entry) if a.owns_history else 0.0),
        flops=(window_pairs + history_pairs) * flops_per_pair + _index_flops(s, run * history),
    )


def _linear(a: LinearAttention, run: FloatArray, states: FloatArray, ranks: int) -> Traffic:
    """The state is read once, and written once per verified position: rejections roll back to one of them."""
    state = _state_bytes(a, ranks)
    return Traffic(
        read_bytes=np.full_like(run, state),
        written_bytes=states * state,
        flops=run * a.flops_per_position / ranks,
    )


def _grouped_entry_bytes(a: GroupedAttention, kv: Precision, ranks: int) -> float:
    """KV of one token on one rank: heads are split, and replicated where there are fewer heads than ranks."""
    return max(1.0, a.kv_heads / ranks) * (a.key_dim + a.value_dim) * kv.bytes_per_parameter


def _latent_entry_bytes(a: LatentAttention, kv: Precision) -> float:
    return (a.latent_dim + a.rope_dim) * kv.bytes_per_parameter


def _compressed_entry_bytes(a: CompressedAttention, kv: Precision) -> float:
    rope = max(_ROPE_BYTES, kv.bytes_per_parameter)
    return (a.head_dim - a.rope_dim) * kv.bytes_per_parameter + a.rope_dim * rope


def _block_index_bytes(s: BlockSelection, kv: Precision) -> float:
    """The indexer's key, per token and on every rank."""
    return s.index_dim * kv.bytes_per_parameter / s.key_tokens


def _index_entry_bytes(s: TokenSelection | None) -> float:
    return s.index_dim * _INDEX_BYTES / s.key_tokens if s is not None and s.owns_indexer else 0.0


def _index_flops(s: TokenSelection | None, pairs: FloatArray) -> FloatArray:
    """The indexer is small and every rank runs all of it."""
    return pairs * (2.0 * s.index_heads * s.index_dim / s.key_tokens if s is not None and s.owns_indexer else 0.0)


def _state_bytes(a: LinearAttention, ranks: int) -> float:
    recurrent = a.state_elements * a.state_precision.bytes_per_parameter
    return (recurrent + a.convolution_elements * _CONVOLUTION_BYTES) / min(ranks, a.heads)
