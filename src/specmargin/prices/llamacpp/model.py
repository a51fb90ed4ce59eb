"""The price of a step in llama.cpp: every matrix by the kernel that its backend chooses, and the time of each launch.

A matrix-vector kernel reads its weights once and does integer work for every position; the two overlap in part, so
they add as squares do. Matrix-matrix kernels unpack the weights once and pay for whole tiles. Routed experts are read
once per distinct expert where a cache holds the repeats (CUDA, HIP and Vulkan: one launch walks the experts of all
tokens, ggml-cuda/mmvq.cu, mul_mat_vec_q_moe); Metal reads them for every pair of token and expert
(kernel_mul_mv_id), which the steps of gpt-oss-20b on an M2 Ultra show (llama.cpp pull request 19390: 8 tokens take
25.7 ms, one 7.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from specmargin.architecture.gguf import block_bytes, blocks_of
from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import ExpertBlock, Matrix
from specmargin.hardware.device import Device
from specmargin.prices.llamacpp.backends import Backend, Kernels
from specmargin.prices.llamacpp.formats import format_work
from specmargin.prices.llamacpp.launches import kernels_of_work
from specmargin.prices.llamacpp.switches import columns_by_launch, vector_limit
from specmargin.prices.model import PriceModel, WorkPrice
from specmargin.prices.work import Collective, Component, Work
from specmargin.sources import Source, SourceKind
from specmargin.step import FloatArray

NAME = "llamacpp"
_UNQUANTIZED = ("bf16", "fp16", "fp32")
_FEW_SHARE = 0.9  # of the bandwidth share, by experts of 2 to 8 tokens: one warp per token and no fused activation
#: Of an SM: 64 integer lanes of four products; of an Apple core: 128 lanes of one.
_OPERATIONS_PER_CYCLE = {Backend.CUDA: 64 * 8, Backend.METAL: 128 * 2}
_MOST_VECTOR = 32  # no backend has a matrix-vector kernel for more positions

_SERVED_BY_METAL = {
    is_k_quant: np.array([columns_by_launch(Backend.METAL, block, n) for n in range(1, _MOST_VECTOR + 1)])
    for is_k_quant, block in ((True, "q4_k"), (False, "q8_0"))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    memory: FloatArray
    compute: FloatArray

    @property
    def seconds(self) -> FloatArray:
        return np.hypot(self.memory, self.compute)


@dataclass(frozen=True, kw_only=True)
class LlamaCppPrices:
    """`inner` prices what is no matrix: attention's traffic, logits, collectives."""

    inner: PriceModel
    device: Device
    backend: Backend
    kernels: Kernels

    @cached_property
    def source(self) -> Source:
        detail = (
            f"llama.cpp's {self.backend} kernels by position and format (its source of August 2026), "
            f"{self.kernels.bandwidth_share:.0%} of the datasheet's bandwidth and "
            f"{1e6 * self.kernel_seconds:.1f} µs per kernel (llama-bench tables of its pull requests)"
        )
        return Source(kind=SourceKind.PUBLISHED, detail=detail)

    @cached_property
    def kernel_seconds(self) -> float:
        """Of a launch: cycles of the GPU's clock, where that is known."""
        processors, each = self.device.multiprocessors, _OPERATIONS_PER_CYCLE.get(self.backend)
        if self.kernels.kernel_clock is None or processors is None or each is None:
            return self.kernels.kernel_seconds
        clock = self.device.rate(Arithmetic.DP4A) / (processors * each)
        return self.kernels.kernel_seconds * self.kernels.kernel_clock / clock

    @property
    def name(self) -> str:
        return NAME

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        return tuple(self._price(work, price) for work, price in zip(works, self.inner.price(works), strict=True))

    def _price(self, work: Work, inner: WorkPrice) -> WorkPrice:
        if isinstance(work.subject, Collective):
            return inner
        if isinstance(work.subject, ExpertBlock):
            times = [self._expert(work, matrix) for matrix in work.subject.expert]
        elif isinstance(work.subject, tuple):
            times = [self._matrix(work, matrix) for matrix in work.subject]
        else:
            share = self.kernels.attention_share if work.component is Component.ATTENTION else 1.0
            return self._launched(work, inner.seconds / share, inner.memory_seconds / share, inner.compute_seconds)
        return self._launched(
            work,
            work.count * _total([each.seconds for each in times]),
            work.count * _total([each.memory for each in times]),
            work.count * _total([each.compute for each in times]),
        )

    def _launched(self, work: Work, seconds: FloatArray, memory: FloatArray, compute: FloatArray) -> WorkPrice:
        several = np.asarray(work.positions > 1.0, dtype=float)
        launches = kernels_of_work(self.backend, work, several) * work.count * self.kernel_seconds
        return WorkPrice(
            seconds=np.asarray(seconds + launches),
            memory_seconds=np.asarray(memory),
            compute_seconds=np.asarray(compute),
            fixed_seconds=np.asarray(launches),
            source=self.source,
        )

    # --- matrices ---

    def _matrix(self, work: Work, matrix: Matrix) -> _Times:
        weights = matrix.copies * matrix.inputs * matrix.outputs * matrix.share(work.ranks)
        return _mixed([self._blocks(block, weights * share, work.positions) for block, share in _parts(matrix)])

    def _blocks(self, block: str, weights: float, positions: FloatArray) -> _Times:
        limit = vector_limit(self.backend, self.device.architecture, block, experts=False)
        vector = self._vector(block, weights, np.minimum(positions, _MOST_VECTOR))
        tiles = self._tiles(block, np.asarray(weights), weights * self._in_tiles(positions))
        return _either(positions <= limit, vector, tiles)

    def _vector(self, block: str, weights: float, positions: FloatArray) -> _Times:
        """Weights are read once; Metal's K-quants again in every pass, in which they are unpacked for one position."""
        work, passes = format_work(block), np.ones_like(positions)
        if self.backend is Backend.METAL:
            whole = np.clip(np.rint(positions).astype(int), 1, _MOST_VECTOR)
            passes = positions / _SERVED_BY_METAL[block.endswith("_k")][whole - 1]
        if self.backend is Backend.METAL and block.endswith("_k"):
            columns = self.kernels.column_work * (work.decode + work.column) * passes
            return self._times(weights * block_bytes(block) * passes, weights * columns)
        columns = self.kernels.column_work * (work.decode * np.ceil(passes) + work.column * positions)
        return self._times(np.asarray(weights * block_bytes(block)), weights * columns)

    def _tiles(self, block: str, weights: FloatArray, columns: FloatArray) -> _Times:
        """`columns`: weights times positions, whole tiles of them."""
        decode = 0.0 if block in _UNQUANTIZED else self.kernels.tile_decode_work
        work = decode * weights + self.kernels.tile_column_work * columns
        return self._times(weights * block_bytes(block), work, share=self.kernels.tile_share)

    def _in_tiles(self, positions: FloatArray) -> FloatArray:
        return np.asarray(np.ceil(positions / self.kernels.tile_columns) * self.kernels.tile_columns)

    def _times(self, read_bytes: FloatArray, work: FloatArray, *, share: float = 1.0) -> _Times:
        """`work`: weights times how often each one's bare integer operations are done."""
        bandwidth = self.device.bandwidth_bytes_per_second * self.kernels.bandwidth_share * share
        return _Times(
            memory=np.asarray(read_bytes / bandwidth),
            compute=np.asarray(2.0 * work / self.device.rate(Arithmetic.DP4A)),
        )

    # --- routed experts ---

    def _expert(self, work: Work, matrix: Matrix) -> _Times:
        weights = matrix.copies * matrix.inputs * matrix.outputs * matrix.share(work.ranks)
        return _mixed([self._expert_blocks(block, weights * share, work) for block, share in _parts(matrix)])

    def _expert_blocks(self, block: str, weights: float, work: Work) -> _Times:
        limit = vector_limit(self.backend, self.device.architecture, block, experts=True)
        each = format_work(block)
        columns = self.kernels.column_work * (each.decode + each.column) * work.pairs
        read = work.pairs if self.backend is Backend.METAL else work.distinct
        few = np.where((work.positions > 1.0) & (self.backend is not Backend.METAL), _FEW_SHARE, 1.0)
        vector = self._times(weights * block_bytes(block) * read / few, weights * columns)
        in_tiles = np.maximum(work.pairs, work.distinct * self.kernels.expert_columns)
        tiles = self._tiles(block, weights * work.distinct, weights * in_tiles)
        return _either(work.positions <= limit, vector, tiles)


def _parts(matrix: Matrix) -> tuple[tuple[str, float], ...]:
    return blocks_of(matrix.precision)


def _either(chosen: npt.NDArray[np.bool_], vector: _Times, tiles: _Times) -> _Times:
    return _Times(
        memory=np.where(chosen, vector.memory, tiles.memory), compute=np.where(chosen, vector.compute, tiles.compute)
    )


def _mixed(times: Sequence[_Times]) -> _Times:
    """Layers of one format after layers of the other."""
    if len(times) == 1:
        return times[0]
    return _Times(memory=_total([each.memory for each in times]), compute=_total([each.compute for each in times]))


def _total(parts: Sequence[FloatArray]) -> FloatArray:
    return np.asarray(sum(parts[1:], start=parts[0]))
