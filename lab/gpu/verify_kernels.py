"""Seconds of vLLM's own kernels on a bare GPU by queries per sequence, positions and distinct experts.

    python -m lab.gpu.verify_kernels SECTION RESULT.json    host, grouped, latent, recurrent, int4 or experts

Kernels are called as the engine's layers call them and replayed in a CUDA graph over inputs that exceed the L2 cache.
A kernel that fails is a row with its error: others are still timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from lab.gpu.kernel_timing import DEVICE, L2_BYTES, Row, Work, host, row
from lab.gpu.weight_kernels import experts, int4

PAGE = 16
BATCHES, QUERIES, CONTEXTS = (1, 2, 4, 8, 32), (1, 2, 4, 8), (1024, 8192, 32768, 131072)
MOST_TOKENS = 1 << 20  # cached tokens of one cell


# --- attention over a paged cache ---


def cells() -> Iterator[tuple[int, int, int]]:
    for context in CONTEXTS:
        for batch in BATCHES:
            if batch * context <= MOST_TOKENS:
                yield from ((batch, context, queries) for queries in QUERIES)


class Pages:
    """Caches of `batch` sequences, several sets so that together they exceed the L2 cache."""

    def __init__(self, batch: int, context: int, width: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> None:
        pages = -(-context // PAGE)
        size = batch * pages * PAGE * torch.Size(width).numel() * dtype.itemsize
        self.sets = max(1, min(4, int(-(-L2_BYTES // size))))
        shape = (self.sets * batch * pages, PAGE, *width)
        self.cache = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).to(dtype)
        order = torch.randperm(self.sets * batch * pages, device=DEVICE, dtype=torch.int32)
        self.tables = order.view(self.sets, batch, pages)
        self.lengths = torch.full((batch,), context, device=DEVICE, dtype=torch.int32)

    def table(self, turn: int) -> torch.Tensor:
        return self.tables[turn % self.sets]


def grouped() -> Iterator[Row]:
    for heads, kv_heads, dim in ((32, 8, 128), (24, 4, 256), (8, 1, 128)):
        for batch, context, queries in cells():
            shape = {"heads": heads, "kv_heads": kv_heads, "dim": dim}
            keys = {"batch": batch, "context": context, "queries": queries, **shape}
            key, value = (Pages(batch, context, (kv_heads, dim)) for _ in range(2))
            value.tables = key.tables
            query = torch.randn(batch * queries, heads, dim, device=DEVICE, dtype=torch.bfloat16)
            for version in (2, 3):
                yield row(
                    partial(_flash, version, query, key, value, queries),
                    kernel=f"FlashAttention {version}",
                    **keys,
                )
            yield row(
                partial(_triton_attention, query, key, value, queries),
                kernel="Triton unified attention",
                **keys,
            )


def _starts(batch: int, queries: int) -> torch.Tensor:
    return torch.arange(0, batch * queries + 1, queries, device=DEVICE, dtype=torch.int32)


def _flash(version: int, query: torch.Tensor, key: Pages, value: Pages, queries: int) -> Work:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    batch, context = key.lengths.numel(), int(key.lengths[0])
    starts, out = _starts(batch, queries), torch.empty_like(query)
    return lambda turn: flash_attn_varlen_func(
        query,
        key.cache,
        value.cache,
        max_seqlen_q=queries,
        cu_seqlens_q=starts,
        max_seqlen_k=context,
        seqused_k=key.lengths,
        block_table=key.table(turn),
        softmax_scale=query.shape[-1] ** -0.5,
        causal=True,
        out=out,
        fa_version=version,
    )


def _triton_attention(query: torch.Tensor, key: Pages, value: Pages, queries: int) -> Work:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    batch, context, heads, kv_heads = key.lengths.numel(), int(key.lengths[0]), query.shape[1], key.cache.shape[2]
    starts, out, segments, threshold = _starts(batch, queries), torch.empty_like(query), 16, 128 // kv_heads
    scratch = torch.empty(threshold, heads, segments, query.shape[-1], device=DEVICE, dtype=torch.float32)
    peak, total = (torch.empty(threshold, heads, segments, device=DEVICE, dtype=torch.float32) for _ in range(2))
    scale = torch.ones(batch, kv_heads, device=DEVICE, dtype=torch.float32)
    return lambda turn: unified_attention(
        q=query,
        k=key.cache,
        v=value.cache,
        out=out,
        cu_seqlens_q=starts,
        max_seqlen_q=queries,
        seqused_k=key.lengths,
        max_seqlen_k=context,
        softmax_scale=query.shape[-1] ** -0.5,
        causal=True,
        window_size=(-1, -1),
        block_table=key.table(turn),
        softcap=0,
        q_descale=None,
        k_descale=scale,
        v_descale=scale,
        seq_threshold_3D=threshold,
        num_par_softmax_segments=segments,
        softmax_segm_output=scratch,
        softmax_segm_max=peak,
        softmax_segm_expsum=total,
    )


LATENT, ROTARY = 512, 64


def latent() -> Iterator[Row]:
    for heads in (8, 16, 128):
        for batch, context, queries in cells():
            keys = {"batch": batch, "context": context, "queries": queries, "heads": heads}
            cache = Pages(batch, context, (LATENT + ROTARY,))
            yield row(
                partial(_triton_latent, cache, heads, queries),
                kernel="Triton MLA",
                **keys,
            )
            yield row(
                partial(_flash_latent, cache, heads, queries),
                kernel="FlashAttention 3 MLA",
                **keys,
            )


def _triton_latent(pages: Pages, heads: int, queries: int) -> Work:
    """Every query is a row of its own, as TritonMLAImpl.forward_mqa lays them out."""
    from vllm.v1.attention.backends.mla.triton_mla import _compute_num_kv_splits
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    rows = pages.lengths.numel() * queries
    splits = _compute_num_kv_splits(int(pages.lengths[0]), torch.cuda.get_device_properties(0).multi_processor_count)
    query = torch.randn(rows, heads, LATENT + ROTARY, device=DEVICE, dtype=torch.bfloat16)
    out = torch.zeros(rows, heads, LATENT, device=DEVICE, dtype=torch.bfloat16)
    sums = torch.zeros(rows, heads, device=DEVICE, dtype=torch.bfloat16)
    scratch = torch.empty(rows, heads, splits, LATENT + 1, device=DEVICE, dtype=torch.float32)
    cache = pages.cache.unsqueeze(2)
    lengths = pages.lengths.repeat_interleave(queries)
    tables = [pages.table(turn).repeat_interleave(queries, dim=0) for turn in range(pages.sets)]
    one = torch.ones((), device=DEVICE, dtype=torch.float32)
    return lambda turn: decode_attention_fwd(
        query,
        cache,
        cache[..., :LATENT],
        out,
        sums,
        tables[turn % pages.sets],
        lengths,
        scratch,
        splits,
        0.1,
        PAGE,
        k_scale=one,
        v_scale=one,
        is_mla=True,
    )


def _flash_latent(pages: Pages, heads: int, queries: int) -> Work:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    batch, context = pages.lengths.numel(), int(pages.lengths[0])
    content, position = (
        torch.randn(batch * queries, heads, width, device=DEVICE, dtype=torch.bfloat16) for width in (LATENT, ROTARY)
    )
    starts = _starts(batch, queries)
    return lambda turn: flash_attn_varlen_func(
        q=position,
        k=pages.cache[..., LATENT:].unsqueeze(-2),
        v=pages.cache[..., :LATENT].unsqueeze(-2),
        q_v=content,
        max_seqlen_q=queries,
        cu_seqlens_q=starts,
        max_seqlen_k=context,
        seqused_k=pages.lengths,
        block_table=pages.table(turn),
        softmax_scale=0.1,
        causal=True,
        fa_version=3,
    )


# --- recurrent layers: Qwen3.6-35B-A3B's GatedDeltaNet ---


def recurrent() -> Iterator[Row]:
    for batch in (1, 4, 16, 64, 128):
        for queries in QUERIES:
            yield row(
                partial(_delta_net, batch, queries),
                kernel="GatedDeltaNet update",
                batch=batch,
                queries=queries,
                key_heads=16,
                value_heads=32,
                dim=128,
            )


def _delta_net(batch: int, queries: int) -> Work:
    from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import fused_sigmoid_gating_delta_rule_update

    key_heads, value_heads, dim, tokens = 16, 32, 128, batch * queries
    random = {"device": DEVICE, "dtype": torch.bfloat16}
    query, key = (torch.randn(1, tokens, key_heads, dim, **random) for _ in range(2))
    value = torch.randn(1, tokens, value_heads, dim, **random)
    a, b = (torch.randn(tokens, value_heads, **random) for _ in range(2))
    decay, bias = (torch.randn(value_heads, device=DEVICE, dtype=torch.float32) for _ in range(2))
    states = torch.zeros(4 * tokens + 1, value_heads, dim, dim, device=DEVICE, dtype=torch.float32)
    slots = [
        torch.arange(turn * tokens, (turn + 1) * tokens, device=DEVICE, dtype=torch.int32).view(batch, queries) + 1
        for turn in range(4)
    ]
    accepted = torch.ones(batch, device=DEVICE, dtype=torch.int32)
    starts = _starts(batch, queries)
    return lambda turn: fused_sigmoid_gating_delta_rule_update(
        A_log=decay,
        a=a,
        b=b,
        dt_bias=bias,
        q=query,
        k=key,
        v=value,
        initial_state=states,
        inplace_final_state=True,
        cu_seqlens=starts,
        ssm_state_indices=slots[turn % 4] if queries > 1 else slots[turn % 4].view(-1),
        num_accepted_tokens=accepted if queries > 1 else None,
        use_qk_l2norm_in_kernel=True,
    )


SECTIONS = {
    "host": host,
    "grouped": grouped,
    "latent": latent,
    "recurrent": recurrent,
    "int4": int4,
    "experts": experts,
}


def main(section: str, result: str) -> None:
    torch.manual_seed(7)
    rows: list[Row] = []
    begun = time.monotonic()
    for one in SECTIONS[section]():
        rows.append(one)
        torch.cuda.empty_cache()
        description = {
            "section": section,
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "rows": rows,
        }
        Path(result).write_text(json.dumps(description))
    failures = sum("error" in one for one in rows)
    print(f"{section}: {len(rows)} rows, {failures} failed, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
