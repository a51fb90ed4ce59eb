"""llama.cpp's matrices in block formats (q4_k and the like): a few positions are not verified for the price of one.

Up to eight positions llama.cpp multiplies with a matrix-vector kernel, which does integer work for every position;
weights are still read once. The factors are those of whole steps on an RTX 3090, mean of two formats: Q4_0 of an 8B
model (github.com/ggml-org/llama.cpp/pull/15802) and Q2_K of a 7B model (pull/5434). Other GPUs are assumed alike.
Beyond eight positions matrix kernels take over; the last factor is kept there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.architecture.types import Matrix
from specmargin.prices.model import PriceModel, WorkPrice
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
    detail="llama.cpp matrix-vector kernels on an RTX 3090, 1 to 8 positions (llama.cpp pull requests 15802 and 5434)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppPrices:
    """Prices of another model, with llama.cpp's factors on matrices in block formats. Routed experts have none."""

    inner: PriceModel

    @property
    def name(self) -> str:
        return self.inner.name

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        return tuple(_adjusted(work, price) for work, price in zip(works, self.inner.price(works), strict=True))


def _adjusted(work: Work, price: WorkPrice) -> WorkPrice:
    if not isinstance(work.subject, tuple) or not _in_block_format(work.subject):
        return price
    factor = step_factor(work.positions)
    return replace(
        price,
        seconds=price.seconds * factor,
        memory_seconds=price.memory_seconds * factor,
        source=weakest([price.source, _SOURCE]),
    )


def _in_block_format(matrices: tuple[Matrix, ...]) -> bool:
    return any(matrix.precision.name.startswith("q") for matrix in matrices)


def step_factor(positions: FloatArray) -> FloatArray:
    """Seconds of a step over those of one position."""
    return np.asarray(np.interp(positions, _POSITIONS, STEP_FACTORS))
