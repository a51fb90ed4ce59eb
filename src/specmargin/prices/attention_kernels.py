"""Which attention kernel an engine runs, and how it treats several queries of one sequence.

Chosen by engine, release, generation of the GPU, kind of attention and precision of the cache, as the engines' own
sources choose it. Read in vLLM 0.17 to 0.33, SGLang 0.5.23 and vLLM's FlashAttention 2 at commit 617264c.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from specmargin.architecture.precision import Precision
from specmargin.architecture.types import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from specmargin.hardware.device import Device
from specmargin.hardware.generations import capability_of

Release = tuple[int, ...]  # 0.32.1 is (0, 32, 1)
FLASHINFER, TRITON_MLA = "FlashInfer", "Triton MLA"  # whose CUDA graphs differ (catalog/engine_releases.py)
RTX6KPRO = "rtx6kpro"  # a build of vLLM for RTX PRO 6000, of github.com/local-inference-lab
SYV = "syv"  # one for RTX 3090, of github.com/syv-ai/qwen38-27b-rtx3090


class Queries(StrEnum):
    """What several queries of one sequence cost."""

    ONCE = "KV read once for all queries of a sequence"
    PER_QUERY = "every query is a sequence of its own: KV read once per query"
    UNSPLIT = "one pass over the whole context per sequence and head, not split over the GPU"
    PROJECTED = "the cached latents of the context are projected to keys and values again"


class Walkers(StrEnum):
    """Blocks of threads that each walk the whole context of a sequence, where it is not split."""

    HEADS = "one per query head"
    KV_HEADS = "one per KV head and tile of queries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What a block of threads takes per cached token: a wait for memory, and a time per element of key and value."""

    token_seconds: float
    element_seconds: float

    def seconds(self, elements: float) -> float:
        return self.token_seconds + self.element_seconds * elements


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """`walk`: of a block of threads over the context; None: as FlashAttention 2 on the device.

    `overlap`: share of that time where there are more blocks than multiprocessors. `one_launch`: prompts are in the
    same launch as decoding sequences, which are then treated like them. `splits_by_rows`: of Triton MLA, whose splits
    follow the batch and not the context. `spread`: 80% range of the time of a step with
    several queries, as a logarithm on each side.
    """

    name: str
    queries: Queries
    origin: str  # the lines that choose it and treat its queries
    walkers: Walkers = Walkers.HEADS
    walk: Walk | None = None
    overlap: float = 1.0
    one_launch: bool = False
    splits_by_rows: bool = False
    spread: float = 0.0

    @property
    def is_triton_mla(self) -> bool:
        return self.name == _TRITON_MLA.name

    def __str__(self) -> str:
        return f"{self.name}: {self.queries} ({self.origin})"


# Triton's blocks wait for memory. vLLM's kernel takes 46 and 57 ns per token of head size 128 and 256 on an H200 (vLLM
# 0.32, lab/data/measurements/vllm-0.32-h200-kernels.json), 45 and 50 of 192 on L40S and RTX PRO 6000 (0.24, prompts of
# one sequence and one head, aiconfigurator-core 0.12.0); four blocks on a multiprocessor take 1.5 to 2.4 times as long.
# SGLang's: 26 ns of 64 and 56 of 192 on an L40S, 70 of 512 on an H200 (0.5.14, same tables). A gfx1201 takes 173 ns of
# 256, three times as long (github.com/vllm-project/vllm/pull/51995: 1,279 us for 7.4k tokens).
_TRITON_WALK = Walk(token_seconds=35e-9, element_seconds=0.043e-9)
_EXTEND_WALK = Walk(token_seconds=20e-9, element_seconds=0.06e-9)
_AMD_WALK = Walk(token_seconds=105e-9, element_seconds=0.13e-9)
_TRITON_OVERLAP = 0.5
# FlashAttention 2 on an H200, head size 128 and 256: 256 and 192 blocks on 132 multiprocessors take 1.5 times as long
# as one each, 1,024 and 768 blocks 6.4 and 5.1 times.
_FLASH_2_OVERLAP = 0.85
_WALK_SPREAD = 0.2
_UNKNOWN_SPREAD = 0.3

_FLASH_3 = AttentionKernel(
    name="FlashAttention 3",
    queries=Queries.ONCE,
    origin="vLLM 0.32, v1/attention/backends/fa_utils.py:99; splits with any number of queries",
)
_FLASH_2 = AttentionKernel(
    name="FlashAttention 2",
    queries=Queries.UNSPLIT,
    origin="vLLM 0.32, fa_utils.py:105; flash_api.cpp:756: KV is split where max_seqlen_q is 1",
    overlap=_FLASH_2_OVERLAP,
    one_launch=True,
    spread=_WALK_SPREAD,
)
_SPLIT_VERIFY = AttentionKernel(
    name="Triton split-KV verify attention",
    queries=Queries.ONCE,
    origin="syv-ai/qwen38-27b-rtx3090, patches/spec-decode-attn.patch: 23 us per layer at 1.5k tokens and 120 at 16k, "
    "where FlashAttention 2 takes 57 and 1,300",
    spread=_WALK_SPREAD,
)
_FLASHINFER = AttentionKernel(
    name=FLASHINFER,
    queries=Queries.ONCE,
    origin="vLLM 0.32, platforms/cuda.py:175; its plan splits KV and packs queries with heads",
)
_TRITON = AttentionKernel(
    name="Triton unified attention",
    queries=Queries.UNSPLIT,
    origin="vLLM 0.32, v1/attention/ops/triton_unified_attention.py:1060: segments where max_seqlen_q is 1",
    walkers=Walkers.KV_HEADS,
    walk=_TRITON_WALK,
    overlap=_TRITON_OVERLAP,
    one_launch=True,
    spread=_UNKNOWN_SPREAD,
)
_TRITON_AMD = replace(_TRITON, walk=_AMD_WALK)
_PREFIX_PREFILL = AttentionKernel(
    name="Triton prefix prefill",
    queries=Queries.UNSPLIT,
    origin="vLLM 0.32, platforms/rocm.py:504, v1/attention/ops/prefix_prefill.py:957: a grid of sequences and heads",
    walk=_AMD_WALK,
    overlap=_TRITON_OVERLAP,
    spread=0.5,
)
_TRITON_MLA = AttentionKernel(
    name=TRITON_MLA,
    queries=Queries.PER_QUERY,
    origin="vLLM 0.32, platforms/cuda.py:132, attention/backends/mla/triton_mla.py:291: rows are b x q (as on an H200)",
)
_TRITON_MLA_PROJECTED = replace(
    _TRITON_MLA,
    queries=Queries.PROJECTED,
    origin="vLLM 0.20 to 0.29, triton_mla.py without query_len_support: more than one query is a prompt",
    spread=0.4,
)
_TRITON_MLA_BY_ROWS = replace(
    _TRITON_MLA,
    splits_by_rows=True,
    origin="vLLM pull request 40750, models/kimi-k26-mtp-long-ctx-wip of local-inference-lab/rtx6kpro: full graphs, 64 "
    "splits of the context and fewer from 9 rows on",
)
_FLASH_MLA = AttentionKernel(
    name="FlashAttention 3 MLA or FlashMLA",
    queries=Queries.ONCE,
    origin="vLLM 0.32, v1/attention/backends/mla/flashattn_mla.py:129, flashmla.py:112: queries up to 512 and 128",
)
_BLACKWELL_MLA = AttentionKernel(
    name="FlashInfer MLA",
    queries=Queries.ONCE,
    origin="vLLM 0.32, platforms/cuda.py:121, v1/attention/backends/mla/flashinfer_mla.py:141",
)
_XPU_SPLIT = AttentionKernel(
    name="XPU decode attention",
    queries=Queries.PER_QUERY,
    origin="vllm-xpu-kernels pull request 455: a few queries are sequences of one query",
    spread=_UNKNOWN_SPREAD,
)
_XPU_PREFILL = AttentionKernel(
    name="XPU chunked prefill",
    queries=Queries.UNSPLIT,
    origin="vllm-xpu-kernels before pull request 455: more than one query runs the prefill kernel, without splits",
    spread=_UNKNOWN_SPREAD,
)
_EXTEND = AttentionKernel(
    name="Triton extend attention",
    queries=Queries.UNSPLIT,
    origin="SGLang 0.5.23, arg_groups/model_override_base.py:277, kernels/ops/attention/extend_attention.py:1075",
    walk=_EXTEND_WALK,
    overlap=_TRITON_OVERLAP,
    spread=_UNKNOWN_SPREAD,
)
_SGLANG_FLASH = replace(_FLASH_3, origin="SGLang 0.5.23, arg_groups/model_override_base.py:277")
_SGLANG_FLASHINFER = replace(
    _FLASHINFER,
    origin="SGLang 0.5.23, arg_groups/model_override_base.py:277: verified by the prefill wrapper, which splits",
)
_SGLANG_TRTLLM = replace(_SGLANG_FLASHINFER, name="TensorRT-LLM attention", origin=_SGLANG_FLASH.origin)
_GGML_METAL = AttentionKernel(
    name="Metal vector kernel",
    queries=Queries.PER_QUERY,
    origin="llama.cpp, ggml-metal-ops.cpp, ggml_metal_op_flash_attn_ext_use_vec: below 20 queries, one per threadgroup",
)
_MLX = AttentionKernel(
    name="MLX vector attention",
    queries=Queries.PER_QUERY,
    origin="MLX 0.32, scaled_dot_product_attention.cpp: up to 8 queries, one per threadgroup",
)
_GGML_CUDA = AttentionKernel(
    name="CUDA flash attention", queries=Queries.ONCE, origin="llama.cpp, fattn-common.cuh: blocks in parallel over KV"
)
_RECURRENT = AttentionKernel(
    name="recurrent kernel",
    queries=Queries.ONCE,
    origin="vLLM 0.32, fused_recurrent: one state read, one written per query",
)
_SPARSE = AttentionKernel(
    name="sparse attention", queries=Queries.ONCE, origin="queries select their own tokens; index keys read once"
)
UNKNOWN = AttentionKernel(
    name="attention kernel not known", queries=Queries.ONCE, origin="assumed", spread=_UNKNOWN_SPREAD
)
_ONCE = replace(
    UNKNOWN, name="TensorRT-LLM attention", origin="XQA and trtllm-gen kernels take several queries", spread=0.0
)
_ROCM = replace(
    UNKNOWN, origin="vLLM 0.32, platforms/rocm.py:504: prefix prefill by default, unsplit; AITER's kernels split"
)
_AITER = AttentionKernel(
    name="AITER attention",
    queries=Queries.ONCE,
    origin="AITER's unified attention splits where it has few programs, its MLA kernel takes several queries",
    spread=_WALK_SPREAD,
)
_TRITON_MLA_ROWS = (0, 30)  # first release that flattens queries: 0.29 has no query_len_support, 0.32 has
_XPU_ROWS = (0, 28)  # first release after vllm-xpu-kernels pull request 455


@lru_cache(maxsize=4096)
def attention_kernel(
    engine: str, generation: str, attention: Attention, kv: Precision, release: Release | None = None, build: str = ""
) -> AttentionKernel:
    """The kernel of a verify step. `generation` as compilers name it ("" where unknown); release None: the newest."""
    match attention:
        case LinearAttention():
            return _RECURRENT
        case CompressedAttention():
            return _SPARSE
        case GroupedAttention(selection=None) | LatentAttention(selection=None):
            return _of_build(_dense(engine, generation, attention, kv, release), attention, build)
        case _:
            return _SPARSE


def _of_build(kernel: AttentionKernel, attention: Attention, build: str) -> AttentionKernel:
    """What somebody's own build of the engine has in its place."""
    if build == RTX6KPRO and isinstance(attention, LatentAttention):
        return _TRITON_MLA_BY_ROWS
    return _SPLIT_VERIFY if build == SYV and kernel is _FLASH_2 else kernel


def longest_draft(engine: str, attention: Attention) -> int | None:
    """Draft tokens that the engine can verify in such a layer; None without a limit.

    Pooled keys of an indexer (Qwen3.8-Flash-Next) wait in a ring until their block is whole. SGLang's holds one block,
    so a run has at most its tokens (0.5.23, layers/attention/qwen_sparse_attn_backend.py:296). The size of vLLM's, in
    whole blocks, must divide that of KV blocks, a multiple of 16: two blocks do, three need another --block-size (0.33,
    models/qwen4_exp/common/qsa_cache.py:842).
    """
    if (
        not isinstance(attention, GroupedAttention)
        or attention.selection is None
        or attention.selection.key_tokens == 1
    ):
        return None
    pool = attention.selection.key_tokens
    return {"sglang": pool - 1, "vllm": pool}.get(engine)


def _dense(
    engine: str, generation: str, attention: GroupedAttention | LatentAttention, kv: Precision, release: Release | None
) -> AttentionKernel:
    match engine:
        case "vllm":
            return _vllm(generation, attention, kv, release)
        case "sglang":
            return _sglang(generation, attention)
        case "trtllm":
            return _ONCE
        case "llamacpp":
            return _GGML_METAL if generation.startswith("apple") else _GGML_CUDA
        case "mlx":
            return _MLX
        case _:
            return UNKNOWN


def _vllm(
    generation: str, attention: GroupedAttention | LatentAttention, kv: Precision, release: Release | None
) -> AttentionKernel:
    capability = capability_of(generation)
    if capability is None:
        return _vllm_elsewhere(generation, attention, release)
    if isinstance(attention, GroupedAttention):
        return _vllm_grouped(capability, attention, kv)
    if capability // 10 in (9, 10):
        return _FLASH_MLA if capability // 10 == 9 else _BLACKWELL_MLA
    return _TRITON_MLA if release is None or release >= _TRITON_MLA_ROWS else _TRITON_MLA_PROJECTED


def _vllm_grouped(capability: int, attention: GroupedAttention, kv: Precision) -> AttentionKernel:
    """platforms/cuda.py `_get_backend_priorities`, less what each backend refuses."""
    if capability // 10 == 10:
        return _FLASHINFER
    if capability // 10 == 9:
        return _FLASH_3
    is_refused = attention.sinks or kv.name.startswith("fp8")
    if capability >= 80 and not is_refused and max(attention.key_dim, attention.value_dim) <= 256:
        return _FLASH_2
    if capability >= 80 and not attention.sinks and attention.key_dim in (64, 128, 256, 512):
        return _FLASHINFER
    return _TRITON


def _vllm_elsewhere(
    generation: str, attention: GroupedAttention | LatentAttention, release: Release | None
) -> AttentionKernel:
    """On AMD's CDNA, servers run with and without AITER, whose kernels differ; attention with sinks is AITER's."""
    if not isinstance(attention, GroupedAttention):
        return UNKNOWN
    if generation.startswith("bmg"):
        return _XPU_SPLIT if release is None or release >= _XPU_ROWS else _XPU_PREFILL
    if generation.startswith("gfx9"):
        return _AITER if attention.sinks else _ROCM
    if generation.startswith("gfx"):
        return _TRITON_AMD if attention.sinks or attention.key_dim > 256 else _PREFIX_PREFILL
    return UNKNOWN


def _sglang(generation: str, attention: GroupedAttention | LatentAttention) -> AttentionKernel:
    capability = capability_of(generation)
    if capability is None:
        return _AITER if generation.startswith("gfx9") else UNKNOWN
    if capability // 10 == 9:
        return _SGLANG_FLASH
    if capability // 10 == 10:
        return _SGLANG_TRTLLM
    if isinstance(attention, GroupedAttention) and capability >= 80 and not attention.sinks:
        return _SGLANG_FLASHINFER
    return _EXTEND


def device_kernel(
    engine: str, device: Device, attention: Attention, kv: Precision, release: Release | None = None, build: str = ""
) -> AttentionKernel:
    return attention_kernel(engine, device.architecture or "", attention, kv, release, build)
