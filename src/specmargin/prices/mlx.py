"""MLX on Apple GPUs: its quantised matrix kernels, its gathered experts, and what every dependent kernel costs.

Read in MLX 0.32.2 (backend/metal/quantized.cpp, scaled_dot_product_attention.cpp) and mlx-lm 0.32.

Matrices in groups (mlx-4bit, mxfp4 and the like): one position runs `qmv`. From two on, `qmv_wide` on M3 and later, and
for floating-point formats on all, reads the weights once per tile of up to five positions. On M1 and M2 groups with a
scale and a bias stay on `qmv`, whose grid has a block per position: each reads the weights again, from a cache where
that holds them. From `get_qmv_batch_limit` positions on `qmm` multiplies tiles of 32 rows.

Routed experts run `gather_qmv`: one read per position and expert, not per distinct expert, until there are four
positions per expert. That is why two positions can cost twice one (github.com/jundot/omlx/issues/2077).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import ExpertBlock, LinearAttention, Matrix
from specmargin.hardware.device import Device
from specmargin.prices.adjusted import AdjustedPrices
from specmargin.prices.model import WorkPrice
from specmargin.prices.work import Collective, Component, Subject, Work
from specmargin.sources import Source, SourceKind, weakest
from specmargin.step import FloatArray

# Share of the datasheet's bandwidth. One die: 100 of 120 GB/s on an M4 (arXiv 2502.05317, STREAM on the GPU). Two dies:
# 32 experts of 14.2 MB less 8 of them in 0.836 - 0.292 ms on an M3 Ultra: 626 of 819 GB/s (mlx issue 4509).
_SHARE, _ULTRA_SHARE = 0.83, 0.76
# Of vector attention, which has a block of threads per head and query: assumed, for want of a measurement.
_ATTENTION_SHARE = 0.5
# Seconds of a dependent kernel that does almost nothing: 8.8 ms for 3,200 on an M3 Ultra (mlx issue 4521). One die has
# half of the cores to start and to wait for: assumed to take half.
_ULTRA_KERNEL_SECONDS = 8.8e-3 / 3200
# What a gathered product takes beyond its bytes: three of them 0.292 ms for 8 experts, of which 0.181 ms are reading
# at the rate above (the same rows of issue 4509). One die: assumed half.
_ULTRA_GATHER_SECONDS = (0.292e-3 - 8 * 14.2e6 / 626e9) / 3
_GATHERS = 3

# Steps of several positions over steps of one, on an M4 Pro with MLX 0.32.0: mean of four matrices of 4 bits in groups
# of 64 (mlx issue 3839). Beyond eight positions the last slope is kept: every tile reads the weights again.
_WIDE = ((1.0, 1.0), (2.0, 1.165), (3.0, 1.3625), (4.0, 1.425), (6.0, 1.895), (8.0, 2.2225))
# The same with `qmv` alone (MLX 0.31.2, the same issue): 1.89 and 3.44 for 4 and 8 positions, 0.33 per position where
# caches serve an M4 Pro. Without any reuse it would be 1. M1 and M2 are between: the middle, as an assumption.
_NARROW_SLOPE = 0.65
_NARROW_SPREAD = 0.3
# On NVIDIA GPUs fewer than eight rows run `qmv` one by one: 69, 140 and 270 ms for 1, 2 and 4 positions on a GB10
# (github.com/lablup/mlxcel/issues/735; backend/cuda/quantized/quantized.cpp).
_CUDA_SLOPE = 1.0
_CUDA_LIMIT = 8.0
# 16-bit weights: up to 15 rows `gemv_wide` reads them once, on M3 and later (mlx pull request 3888, July 2026). Without
# it tiles of 64 rows take so many times as long, on an M5 Max, an M3 Ultra and an M4 Pro (the same: a head of 2,048).
_GEMV_ROWS = 15.0
_PADDED, _ULTRA_PADDED, _PADDED_ELSEWHERE = {"apple10": 1.4}, 1.7, 2.2
# A GB10 reads 201 to 214 of 273 GB/s in these kernels, and takes 19 ms per step of a model of 48 dense layers for all
# others (github.com/lablup/mlxcel/pull/684); other NVIDIA GPUs are assumed to launch alike.
_CUDA_SHARE = 0.76
_CUDA_KERNEL_SECONDS = 19e-3 / (48 * 18)
# Positions from which `qmm` runs, for sides up to 2,048, up to 4,096 and beyond (`get_qmv_batch_limit`). MLX changes
# over where both take as long, so `qmm` is taken to cost what the vector kernel costs there, or its arithmetic.
_LIMITS = {
    "apple7": (14.0, 10.0, 6.0),
    "apple8": (14.0, 10.0, 6.0),
    "apple9": (13.0, 15.0, 13.0),
    "apple10": (33.0, 25.0, 13.0),
}
_ULTRA_LIMITS = (32.0, 18.0, 12.0)
_TILE_ROWS = 32.0
_QMM_SHARE = 0.8  # of the matrix rate: assumed
_REPEATED = 0.5  # what reading an expert again costs, of reading it first: from none (cached) to all; assumed
_SORTED_FROM = 4.0  # positions per expert from which one kernel reads every expert once

# Kernels that mlx-lm launches, one after another: models/qwen3_moe.py, switch_layers.py, gated_delta.py.
_KERNELS = {
    Component.ATTENTION_PROJECTIONS: 9,  # norm, three products (two wait), two norms, two rotations, output, sum
    Component.ATTENTION: 3,  # cache writes, attention
    Component.DENSE_FFN: 6,  # norm, two products, activation, product, sum
    Component.ROUTER: 8,  # product, softmax, partition, choice, sum, division
    Component.SHARED_EXPERTS: 5,
    Component.ROUTED_EXPERTS: 4,  # activation, weighting, sums; the products have a time of their own
    Component.LM_HEAD: 4,
}
_FLOATING = ("mxfp", "nvfp")  # scales without a bias
_NARROW_GENERATIONS = ("apple7", "apple8")  # M1 and M2: generations 13 and 14 in `use_qmv_wide`
_RECURRENT_KERNELS = 16  # convolution with its state, gates, norms, the recurrence, which loops over the positions
_SPREAD = 0.25
_SOURCE = Source(
    kind=SourceKind.PUBLISHED,
    detail="MLX 0.32 kernels: times of several positions on an M4 Pro, experts and launches on an M3 Ultra (mlx issues "
    "3839, 4509, 4521); other chips by bandwidth, one die assumed to launch twice as fast as two",
    spread=_SPREAD,
)


class MlxPrices(AdjustedPrices):
    """A roofline, adjusted to MLX's kernels."""

    @property
    def name(self) -> str:
        return "mlx"

    def adjusted(self, work: Work, price: WorkPrice) -> WorkPrice:
        if work.subject is None or isinstance(work.subject, Collective):
            return price
        busy = self._busy_seconds(work, work.subject, price)
        fixed = np.asarray(work.count * self._fixed_seconds(work) + 0.0 * busy)
        return replace(
            price,
            seconds=busy + fixed,
            memory_seconds=busy,
            fixed_seconds=fixed,
            source=weakest([price.source, self._source(work)]),
        )

    def _busy_seconds(self, work: Work, subject: Subject, price: WorkPrice) -> FloatArray:
        match subject:
            case ExpertBlock():
                return self._expert_seconds(work, subject, price)
            case tuple():
                return self._matrix_seconds(work, subject, price)
            case LinearAttention():
                return np.asarray(price.seconds / self._share)
            case _:
                return np.asarray(price.seconds / _ATTENTION_SHARE)

    def _matrix_seconds(self, work: Work, matrices: tuple[Matrix, ...], price: WorkPrice) -> FloatArray:
        reading = work.bytes * (work.count / (self.device.bandwidth_bytes_per_second * self._share))
        if not any(_in_groups(matrix) for matrix in matrices):
            return np.asarray(np.maximum(reading * self._padding(work.positions), price.compute_seconds))
        total = sum(matrix.read_bytes(work.ranks) for matrix in matrices)
        factors = [self._factor(matrix, work.positions) * matrix.read_bytes(work.ranks) / total for matrix in matrices]
        return np.asarray(reading * np.sum(factors, axis=0))

    def _padding(self, positions: FloatArray) -> FloatArray:
        """Of a product of 16-bit weights with several rows, over one row: `gemv_wide` up to 15, else padded tiles."""
        if self.device.vendor != "apple":
            return np.ones(())
        padded = _ULTRA_PADDED if self._is_ultra else _PADDED.get(self.device.architecture or "", _PADDED_ELSEWHERE)
        fewest = 2.0 if self.device.architecture in _NARROW_GENERATIONS else _GEMV_ROWS + 1.0
        return np.where(positions >= fewest, padded, 1.0)

    def _factor(self, matrix: Matrix, positions: FloatArray) -> FloatArray:
        """Of a step of so many positions over a step of one."""
        limit = _vector_limit(matrix, self.device)
        tiles = np.ceil(positions / _TILE_ROWS) * _TILE_ROWS
        product_seconds = tiles * matrix.flops_per_position() / (self.device.rate(Arithmetic.BF16) * _QMM_SHARE)
        reading_seconds = matrix.read_bytes() / (self.device.bandwidth_bytes_per_second * self._share)
        product = np.maximum(product_seconds / reading_seconds, self._vector_factor(matrix, np.asarray(limit)))
        return np.where(positions < limit, self._vector_factor(matrix, positions), product)

    def _vector_factor(self, matrix: Matrix, positions: FloatArray) -> FloatArray:
        """The same in the kernels for vectors."""
        if self._is_narrow(matrix):
            slope = _CUDA_SLOPE if self.device.vendor == "nvidia" else _NARROW_SLOPE
            return np.asarray(1.0 + slope * (positions - 1.0))
        known, factors = np.array(_WIDE).T
        beyond = np.maximum(positions - known[-1], 0.0) * (factors[-1] - factors[-2]) / (known[-1] - known[-2])
        return np.asarray(np.interp(positions, known, factors) + beyond)

    def _expert_seconds(self, work: Work, block: ExpertBlock, price: WorkPrice) -> FloatArray:
        """Every read of an expert, the repeated ones from a cache as far as that holds them."""
        repeated = np.maximum(work.pairs - work.distinct, 0.0)
        several = 1.0 + _REPEATED * repeated / np.maximum(work.distinct, 1e-9)
        reading = price.memory_seconds / self._share
        sorted_rows = work.pairs >= _SORTED_FROM * block.pool.experts
        return np.where(sorted_rows, np.maximum(reading, price.compute_seconds / _QMM_SHARE), reading * several)

    def _fixed_seconds(self, work: Work) -> float:
        kernels = _RECURRENT_KERNELS if isinstance(work.subject, LinearAttention) else _KERNELS.get(work.component, 0)
        gathers = _GATHERS if work.component is Component.ROUTED_EXPERTS else 0
        if self.device.vendor == "nvidia":
            return (kernels + gathers) * _CUDA_KERNEL_SECONDS
        dies = 2.0 if self._is_ultra else 1.0
        return (kernels * _ULTRA_KERNEL_SECONDS + gathers * _ULTRA_GATHER_SECONDS) * dies / 2.0

    def _source(self, work: Work) -> Source:
        matrices = work.subject if isinstance(work.subject, tuple) and np.any(work.positions > 1.0) else ()
        narrow = any(_in_groups(matrix) and self._is_narrow(matrix) for matrix in matrices)
        return replace(_SOURCE, spread=_NARROW_SPREAD) if narrow else _SOURCE

    @property
    def _is_ultra(self) -> bool:
        return is_ultra(self.device)

    @property
    def _share(self) -> float:
        if self.device.vendor == "nvidia":
            return _CUDA_SHARE
        return _ULTRA_SHARE if self._is_ultra else _SHARE

    def _is_narrow(self, matrix: Matrix) -> bool:
        floating = matrix.precision.name.startswith(_FLOATING)
        return self.device.vendor == "nvidia" or (self.device.architecture in _NARROW_GENERATIONS and not floating)


def is_ultra(device: Device) -> bool:
    """Two dies, whose halves a kernel waits for."""
    return "Ultra" in device.title


def _vector_limit(matrix: Matrix, device: Device) -> float:
    """Positions from which `qmm` multiplies, by the matrix's larger side: `get_qmv_batch_limit`."""
    largest = max(matrix.inputs, matrix.outputs)
    size = 0 if largest <= 2048 else 1 if largest <= 4096 else 2
    if device.vendor == "nvidia":
        return _CUDA_LIMIT
    if is_ultra(device):
        return _ULTRA_LIMITS[size]
    return _LIMITS.get(device.architecture or "", _LIMITS["apple9"])[size]


def _in_groups(matrix: Matrix) -> bool:
    return matrix.precision.name.startswith(("mlx-", "int4", *_FLOATING))
