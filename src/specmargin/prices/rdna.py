"""vLLM's int4 matrices on AMD RDNA GPUs: more than one position can take another, slower kernel.

vLLM multiplies int4 weights on gfx11 and gfx12 with a matrix-vector kernel while there are at most five positions and
its inputs fit in a workgroup's 64 KiB of local memory; otherwise with a Triton kernel
(`rdna_hybrid_w4a16.py`, vLLM 0.26). A down-projection from 17,408 inputs leaves the fast kernel at two positions, so a
verify step takes longer than a plain one whatever its depth. The Triton kernel reads at less than half of the memory
bandwidth on a gfx1151 (github.com/lemonade-sdk/vllm-rocm/issues/24): half is assumed. gfx1100 has a kernel of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specmargin.architecture.types import Matrix, Split
from specmargin.hardware.device import Device
from specmargin.prices.adjusted import AdjustedPrices
from specmargin.prices.model import WorkPrice
from specmargin.prices.work import Work
from specmargin.sources import Source, SourceKind, weakest
from specmargin.step import FloatArray

_MOST_POSITIONS = 5
_LOCAL_ELEMENTS = 32_768  # 64 KiB of 16-bit inputs
_BANDWIDTH_SHARE = 0.5  # of the Triton kernel
_SOURCE = Source(
    kind=SourceKind.ASSUMED,
    detail="vLLM's Triton kernel for int4 on RDNA at half of the bandwidth (less: lemonade-sdk/vllm-rocm issue 24)",
)


def has_hybrid_kernels(device: Device) -> bool:
    name = device.architecture or ""
    return name.startswith(("gfx11", "gfx12")) and name != "gfx1100"


class RdnaPrices(AdjustedPrices):
    """With the time that int4 matrices take longer in the slower kernel."""

    def adjusted(self, work: Work, price: WorkPrice) -> WorkPrice:
        if not isinstance(work.subject, tuple):
            return price
        slow_bytes = sum(
            (_slow_bytes(matrix, work) for matrix in work.subject if matrix.precision.name.startswith("int4")),
            start=np.zeros(()),
        )
        if not np.any(slow_bytes):
            return price
        bandwidth = self.device.bandwidth_bytes_per_second
        longer = work.count * slow_bytes / bandwidth * (1.0 / _BANDWIDTH_SHARE - 1.0)
        return replace(
            price,
            seconds=price.seconds + longer,
            memory_seconds=price.memory_seconds + longer,
            source=weakest([price.source, _SOURCE]),
        )


def _slow_bytes(matrix: Matrix, work: Work) -> FloatArray:
    """Bytes of the matrix where the slower kernel reads it, 0 elsewhere."""
    inputs = matrix.inputs * matrix.share(work.ranks) if matrix.split is Split.ROWS else float(matrix.inputs)
    slow = (work.positions > _MOST_POSITIONS) | (work.positions * inputs > _LOCAL_ELEMENTS)
    return np.asarray(np.where(slow, matrix.read_bytes(work.ranks), 0.0))
