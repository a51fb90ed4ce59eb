"""vLLM's int4 matrices on AMD RDNA GPUs: more than one position can take another, slower kernel.

vLLM multiplies int4 weights on gfx11 and gfx12 with a matrix-vector kernel while there are at most five positions and
its inputs fit in a workgroup's 64 KiB of local memory; otherwise with a Triton kernel
(`rdna_hybrid_w4a16.py`, vLLM 0.26). A down-projection from 17,408 inputs leaves the fast kernel at two positions, so a
verify step takes longer than a plain one whatever its depth. On a gfx1151 the Triton kernel reads at 28 to 65% of the
memory bandwidth, the other one at 88 to 92% since it was tuned, which made decoding 17% faster: at 76% before
(github.com/ROCm/vllm/pull/1076). A matrix that leaves the Triton kernel becomes 1.67 to 1.90 times as fast, and 1.31 to
1.52 times again once tuned (pull/1305): the Triton kernel reads it at 36%. gfx1100 has a kernel of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specmargin.architecture.types import Matrix, Split
from specmargin.hardware.device import Device
from specmargin.prices.adjusted import AdjustedPrices
from specmargin.prices.kernels.weight_only import OTHER_READING
from specmargin.prices.model import WorkPrice
from specmargin.prices.work import Work
from specmargin.sources import Source, SourceKind, weakest
from specmargin.step import FloatArray

_MOST_POSITIONS = 5
_LOCAL_ELEMENTS = 32_768  # 64 KiB of 16-bit inputs
_BANDWIDTH_SHARE = 0.36  # of the Triton kernel
_SOURCE = Source(
    kind=SourceKind.PUBLISHED,
    detail=f"vLLM's Triton kernel for int4 on RDNA at {_BANDWIDTH_SHARE:.0%} of the bandwidth (28 to 65%: ROCm/vllm "
    f"pull requests 1076 and 1305), the matrix-vector kernel at {OTHER_READING:.0%}",
    spread=0.3,
)


def has_hybrid_kernels(device: Device) -> bool:
    name = device.architecture or ""
    return name.startswith(("gfx11", "gfx12")) and name != "gfx1100"


class RdnaPrices(AdjustedPrices):
    """With the time that int4 matrices take longer in the slower kernel."""

    @property
    def _priced_share(self) -> float:
        """Of the bandwidth, in the price that is adjusted."""
        return 1.0 if self.inner.name == "datasheet" else OTHER_READING

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
        priced_seconds = work.count * slow_bytes / (bandwidth * self._priced_share)
        longer = priced_seconds * (OTHER_READING / _BANDWIDTH_SHARE - 1.0)
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
