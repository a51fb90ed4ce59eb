"""llama.cpp's matrices in block formats (q4_k and the like): a few positions are not verified for the price of one.

Up to eight positions llama.cpp multiplies with a matrix-vector kernel, which does integer work for every position on
the vector units; weights are still read once. The factors are those of whole steps on an RTX 3090, mean of two formats:
Q4_0 of an 8B model (github.com/ggml-org/llama.cpp/pull/15802) and Q2_K of a 7B model (pull/5434). A GPU with more
integer operations per byte of bandwidth does the work of more positions in the same time: each position after the
first counts as that many fewer. Published, against this rule: an M1 Pro, at 0.34 of the RTX 3090's ratio, takes 1.61,
1.73 and 2.05 plain steps for 2, 3 and 4 positions (pull/10581; the rule: 1.39, 1.92, 2.37); an RTX 4090, at 2.2 times
the ratio, takes 8.2 ms for 10 positions of the 8B model, the RTX 3090 13.7 ms for 8 (pull/15131). K-quants with
older kernels and on AMD GPUs are up to 1.7 times as slow (P40: pull/5434, MI100: pull/23227), which is not modelled.
Beyond eight positions matrix kernels take over; the last factor is kept there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import Matrix
from specmargin.hardware.device import Device
from specmargin.prices.adjusted import AdjustedPrices
from specmargin.prices.model import WorkPrice
from specmargin.prices.work import Work
from specmargin.sources import Source, SourceKind, weakest
from specmargin.step import FloatArray

#: Tokens per second of prompts read 1 to 8 at a time.
_Q4_0 = (156.56, 279.89, 390.96, 470.48, 509.70, 541.57, 559.30, 583.77)
_Q2_K = (105.29, 190.78, 250.60, 284.61, 341.47, 367.78, 377.19, 406.71)
_POSITIONS = np.arange(1.0, 9.0)
STEP_FACTORS = np.mean([_POSITIONS * rates[0] / np.array(rates) for rates in (_Q4_0, _Q2_K)], axis=0)
_SOURCE = Source(
    kind=SourceKind.PUBLISHED,
    detail="llama.cpp matrix-vector kernels on an RTX 3090, 1 to 8 positions (llama.cpp pull requests 15802 and 5434), "
    "scaled by integer operations per byte",
)
_INTEGER_OPERATIONS_PER_BYTE = 71e12 / 0.936e12  # RTX 3090: 82 SMs of 64 integer lanes at 1.7 GHz, 8 operations each


class LlamaCppPrices(AdjustedPrices):
    """With llama.cpp's factors on matrices in block formats. Routed experts have none."""

    def adjusted(self, work: Work, price: WorkPrice) -> WorkPrice:
        if not isinstance(work.subject, tuple) or not _in_block_format(work.subject):
            return price
        factor = step_factor(work.positions, integer_ratio(self.device))
        return replace(
            price,
            seconds=price.seconds * factor,
            memory_seconds=price.memory_seconds * factor,
            source=weakest([price.source, _SOURCE]),
        )


def _in_block_format(matrices: tuple[Matrix, ...]) -> bool:
    return any(matrix.precision.name.startswith("q") for matrix in matrices)


def integer_ratio(device: Device) -> float:
    """Integer operations per byte of bandwidth, those of an RTX 3090 being 1."""
    return device.rate(Arithmetic.DP4A) / device.bandwidth_bytes_per_second / _INTEGER_OPERATIONS_PER_BYTE


def step_factor(positions: FloatArray, ratio: float) -> FloatArray:
    """Seconds of a step over those of one position, on a device with this ratio of integer operations to bandwidth."""
    alike = 1.0 + (np.minimum(positions, _POSITIONS[-1]) - 1.0) / ratio  # positions of an RTX 3090
    beyond = np.maximum(alike - _POSITIONS[-1], 0.0) * (STEP_FACTORS[-1] - STEP_FACTORS[-2])  # limited by integers
    return np.asarray(np.interp(alike, _POSITIONS, STEP_FACTORS) + beyond)
