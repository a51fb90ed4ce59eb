"""Kernels of a layer in llama.cpp, counted from its graph of August 2026 with the fusions of each backend.

CUDA and HIP run one kernel after another (ggml-cuda.cu, ggml_cuda_try_fuse): the norm with its weight, queries and keys
with their norm, rotation and cache write, router softmax with top-k, and for a single token gate, up and activation as
one; every product with quantised weights has a kernel before it that quantises its input (mmvq.cu). CUDA graphs hold
the steps, those with drafts too (mul_mat_id needs no synchronisation on its vector and tile kernels). Metal and Vulkan
run independent kernels at the same time (ggml-metal-ops.cpp, concurrency by memory ranges), so groups count.
"""

from __future__ import annotations

from typing import NamedTuple

from specmargin.architecture.types import GroupedAttention, LatentAttention, LinearAttention
from specmargin.prices.llamacpp.backends import Backend
from specmargin.prices.work import Component, Work
from specmargin.step import FloatArray


class _Count(NamedTuple):
    one: float  # with one position
    more: float  # with several


def _same(count: float) -> _Count:
    return _Count(count, count)


_SERIAL = {
    Component.ATTENTION: _same(2),  # over parts of the cache, and their sum
    Component.DENSE_FFN: _Count(6, 9),
    Component.ROUTER: _same(3),
    Component.ROUTED_EXPERTS: _Count(7, 10),
    Component.SHARED_EXPERTS: _Count(5, 8),
    Component.LM_HEAD: _same(6),  # with the embedding, the selection of rows and the last norm
}
_SERIAL_MIXER = {GroupedAttention: 13, LatentAttention: 20, LinearAttention: 20}

_METAL = {
    Component.ATTENTION: _same(2),
    Component.DENSE_FFN: _same(5),
    Component.ROUTER: _same(8),
    Component.ROUTED_EXPERTS: _same(6),
    Component.SHARED_EXPERTS: _same(3),
    Component.LM_HEAD: _same(4),
}
_METAL_MIXER = {GroupedAttention: 7, LatentAttention: 13, LinearAttention: 14}

_VULKAN = {**_METAL, Component.ROUTER: _same(3), Component.ROUTED_EXPERTS: _same(5)}
_VULKAN_MIXER = {GroupedAttention: 6, LatentAttention: 12, LinearAttention: 13}

_COUNTS = {
    Backend.CUDA: (_SERIAL, _SERIAL_MIXER),
    Backend.HIP: (_SERIAL, _SERIAL_MIXER),
    Backend.METAL: (_METAL, _METAL_MIXER),
    Backend.VULKAN: (_VULKAN, _VULKAN_MIXER),
}


def kernels_of_work(backend: Backend, work: Work, several: FloatArray) -> FloatArray | float:
    """Kernels, or groups of them, of one of the work's `count` pieces. `several`: 1 where positions are more than one.

    The mixer of a layer (norm, projections, rotation, cache) counts with its projections.
    """
    counts, mixers = _COUNTS[backend]
    if work.component is Component.ATTENTION_PROJECTIONS:
        kind = type(work.module.attention) if work.module is not None else GroupedAttention
        return float(mixers.get(kind, mixers[LatentAttention]))
    count = counts.get(work.component, _same(0.0))
    return count.one + (count.more - count.one) * several if count.one != count.more else count.one
