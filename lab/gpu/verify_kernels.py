"""Seconds of vLLM's own kernels on a bare GPU by queries per sequence, positions and distinct experts.

    python -m lab.gpu.verify_kernels SECTION RESULT.json    host, grouped, latent, recurrent, int4 or experts

Kernels are called as the engine's layers call them and replayed in a CUDA graph over inputs that exceed the L2 cache.
A kernel that fails is a row with its error: others are still timed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

DEVICE = "cuda"
PAGE = 16
L2_BYTES = 120e6
BATCHES, QUERIES, CONTEXTS = (1, 2, 4, 8, 32), (1, 2, 4, 8), (1024, 8192, 32768, 131072)
MOST_TOKENS = 1 << 20  # cached tokens of one cell
Row = dict[str, Any]
Work = Callable[[int], Any]


def timed(work: Work, turns: int = 4, repeats: int = 9) -> float:
    """Median seconds of one launch, in a graph of `turns` launches over rotated inputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for turn in range(turns):
            work(turn)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(turns):
            work(turn)
    graph.replay()
    return statistics.median(_once(graph.replay) / turns for _ in range(repeats))


def _once(run: Callable[[], Any]) -> float:
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    run()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) * 1e-3


def row(make: Callable[[], Work], **keys: Any) -> Row:
    try:
        return {**keys, "seconds": timed(make())}
    except Exception as error:  # the next kernel is timed all the same
        torch.cuda.empty_cache()
        return {**keys, "error": f"{type(error).__name__}: {str(error)[:200]}"}


# --- the host: what a launch takes ---


def host() -> Iterator[Row]:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def nothing(pointer, block: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(pointer + tl.arange(0, block), 0.0)

    one = torch.zeros(16, device=DEVICE)
    yield {"what": "cpu", "model": _cpu(), "addition_loop_seconds": _loop_seconds()}
    yield {"what": "PyTorch operation", "seconds": _host_seconds(lambda: one.add_(1.0))}
    yield {"what": "Triton kernel", "seconds": _host_seconds(lambda: nothing[(1,)](one, 16))}
    for kernels in (1, 12, 100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                one.add_(1.0)
        yield {"what": "graph replay", "kernels": kernels, "seconds": _host_seconds(graph.replay, 300)}


def _host_seconds(launch: Callable[[], Any], count: int = 2000) -> float:
    """Host seconds per launch, in short bursts so that the queue never fills."""
    for _ in range(50):
        launch()
    bursts = []
    for _ in range(count // 100):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(100):
            launch()
        bursts.append((time.perf_counter() - begun) / 100)
    return statistics.median(bursts)


def _loop_seconds() -> float:
    begun, total = time.perf_counter(), 0
    for number in range(10_000_000):
        total += number
    return time.perf_counter() - begun


def _cpu() -> str:
    lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout.splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name")), "")


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


# --- four-bit weights ---

POSITIONS = (1, 2, 4, 8, 12, 16, 20, 24, 32, 33, 48, 64, 65, 96, 128, 192, 256, 512)


def int4() -> Iterator[Row]:
    for outputs, inputs in ((17408, 5120), (5120, 17408), (34816, 5120), (7168, 5120)):
        for positions in POSITIONS:
            keys = {"positions": positions, "outputs": outputs, "inputs": inputs}
            yield row(
                partial(_marlin, positions, outputs, inputs),
                kernel="Marlin int4 g128",
                **keys,
            )
            yield row(
                partial(_product, positions, outputs, inputs),
                kernel="bf16",
                **keys,
            )


def _product(m: int, n: int, k: int) -> Work:
    sets = max(1, min(4, int(-(-L2_BYTES // (2 * n * k)))))
    weights = torch.randn(sets, n, k, device=DEVICE, dtype=torch.bfloat16)
    left = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    return lambda turn: torch.nn.functional.linear(left, weights[turn % sets])


def _marlin(m: int, n: int, k: int) -> Work:
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new
    from vllm.scalar_type import scalar_types

    sets = max(1, min(4, int(-(-L2_BYTES // (n * k / 2)))))
    weights = torch.randint(-(2**31), 2**31 - 1, (sets, k // 16, n * 2), device=DEVICE, dtype=torch.int32)
    scales = torch.rand(k // 128, n, device=DEVICE, dtype=torch.bfloat16)
    left = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    space = marlin_make_workspace_new(torch.device(DEVICE, 0))
    return lambda turn: ops.marlin_gemm(
        left,
        None,
        weights[turn % sets],
        None,
        scales,
        None,
        None,
        None,
        space,
        scalar_types.uint4b8,
        m,
        n,
        k,
        use_fp32_reduce=True,
    )


# --- routed experts: Qwen3-30B-A3B's, uniform routing ---

EXPERTS, TOP, HIDDEN, WIDTH = 128, 8, 2048, 768


def experts() -> Iterator[Row]:
    kinds: dict[str, Callable[[int], Work]] = {
        "bf16, Triton": _plain_experts,
        "fp8 per tensor, dynamic, Triton": partial(_fp8_experts, block=False),
        "fp8 blocks, Triton": partial(_fp8_experts, block=True),
        "int4 g128, Marlin": partial(_marlin_experts, kind="int4"),
        "mxfp4, Marlin": partial(_marlin_experts, kind="mxfp4"),
        "nvfp4, Marlin": partial(_marlin_experts, kind="nvfp4"),
    }
    for kind, make in kinds.items():
        for positions in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            _, ids = _routes(positions)
            distinct = statistics.fmean(len(torch.unique(one)) for one in ids)
            yield row(partial(make, positions), kernel=kind, positions=positions, distinct=distinct)


def _routes(positions: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator(device=DEVICE).manual_seed(positions)
    scores = [torch.rand(positions, EXPERTS, device=DEVICE, generator=generator) for _ in range(4)]
    ids = [score.topk(TOP, dim=1).indices.to(torch.int32) for score in scores]
    weights = [torch.full((positions, TOP), 1.0 / TOP, device=DEVICE, dtype=torch.float32) for _ in range(4)]
    return weights, ids


def _plain_experts(positions: int) -> Work:
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    down = torch.randn(EXPERTS, HIDDEN, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    hidden = torch.randn(positions, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    weights, ids = _routes(positions)
    return lambda turn: fused_experts(hidden, up, down, weights[turn % 4], ids[turn % 4])


def _fp8_experts(positions: int, *, block: bool) -> Work:
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, device=DEVICE).to(torch.float8_e4m3fn)
    down = torch.randn(EXPERTS, HIDDEN, WIDTH, device=DEVICE).to(torch.float8_e4m3fn)
    hidden = torch.randn(positions, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    sizes = [(EXPERTS,), (EXPERTS,)]
    if block:
        sizes = [(EXPERTS, 2 * WIDTH // 128, HIDDEN // 128), (EXPERTS, HIDDEN // 128, WIDTH // 128)]  # type: ignore[list-item]
    first, second = (torch.ones(size, device=DEVICE, dtype=torch.float32) for size in sizes)
    config = fp8_w8a8_moe_quant_config(w1_scale=first, w2_scale=second, block_shape=[128, 128] if block else None)
    weights, ids = _routes(positions)
    return lambda turn: fused_experts(hidden, up, down, weights[turn % 4], ids[turn % 4], quant_config=config)


def _marlin_experts(positions: int, kind: str) -> Work:
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.scalar_type import scalar_types

    group = {"int4": 128, "mxfp4": 32, "nvfp4": 16}[kind]
    dtype = {"int4": torch.bfloat16, "mxfp4": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn}[kind]
    quantized = scalar_types.uint4b8 if kind == "int4" else scalar_types.float4_e2m1f
    low, high = -(2**31), 2**31 - 1
    up = torch.randint(low, high, (EXPERTS, HIDDEN // 16, 4 * WIDTH), device=DEVICE, dtype=torch.int32)
    down = torch.randint(low, high, (EXPERTS, WIDTH // 16, 2 * HIDDEN), device=DEVICE, dtype=torch.int32)
    first = torch.ones(EXPERTS, HIDDEN // group, 2 * WIDTH, device=DEVICE, dtype=torch.bfloat16).to(dtype)
    second = torch.ones(EXPERTS, WIDTH // group, HIDDEN, device=DEVICE, dtype=torch.bfloat16).to(dtype)
    whole = torch.ones(EXPERTS, device=DEVICE, dtype=torch.bfloat16) if kind == "nvfp4" else None
    hidden = torch.randn(positions, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    weights, ids = _routes(positions)
    return lambda turn: fused_marlin_moe(
        hidden,
        up,
        down,
        None,
        None,
        first,
        second,
        weights[turn % 4],
        ids[turn % 4],
        quant_type_id=quantized.id,
        global_num_experts=EXPERTS,
        global_scale1=whole,
        global_scale2=whole,
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
