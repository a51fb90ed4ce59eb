"""Prices on a processor: llama.cpp's CPU kernels, where experts are in main memory or the device is a processor.

A product takes the longer of two times: its weights over the bandwidth that main memory sustains, or its work over
what the kernels reach (`cpu_kernels.py`). Weights of an expert are read once per step, however many positions chose it:
tiles of 16 rows stay in cache for up to 16 positions (ggml/src/ggml-cpu/ggml-cpu.c:1480-1525). Work is done per pair of
position and expert. So bytes follow distinct experts, and work follows pairs.

Bandwidth: memory tests read 79 to 83% of the channels' rate (i9-12900K, i9-13900K, Ryzen 7950X: RMMT in Mynavi's review
of 2023-04-05; Threadripper PRO 7965WX 77%, Xeon 6980P 83%: ik_llama.cpp pull request 534), and llama.cpp decodes at 84
to 91% of what such a test reads (llama.cpp issue 26484); 60 GB/s of a Ryzen 7950X's 83 (Q8_0: ik_llama.cpp pull request
54) are 72%. Every operation of the graph ends with a barrier of all threads: 0.47, 0.62, 0.75 and 1.04 µs per operation
with 1, 2, 4 and 8 threads on an i9-13900K (llama.cpp pull request 9461), 2.5 and 3.2 with 4 and 8 on an EPYC of several
dies (pull request 9598): so much more each time that threads double.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.architecture.types import ExpertBlock
from specmargin.hardware.processor import Processor
from specmargin.prices.cpu_kernels import attention_cycles, dot_cycles, matrix_cycles
from specmargin.prices.model import WorkPrice
from specmargin.prices.work import Collective, Component, Work
from specmargin.sources import Source, SourceKind
from specmargin.step import FloatArray

READ_SHARE = 0.81  # of the channels' rate that a memory test reads
DECODE_SHARE = 0.88  # of what such a test reads, while llama.cpp decodes
_OPERATION_SECONDS = 1e-6  # of a small operation by itself, beside its barrier (assumed)
_BARRIER_SECONDS = {False: (0.47e-6, 0.19e-6), True: (1.2e-6, 0.65e-6)}  # of one thread, and per doubling; by dies
_FEW_DIES = 16  # cores
_PRODUCTS_PER_EXPERT = 3.0  # gate, up and down, each with a barrier of its own before it
SPREAD = 0.45  # whole steps of a small mixture: medians of 17 to 42% (`python -m lab.validation.cpu_steps`)
#: Operations of llama.cpp's graph per layer beside products (src/llama-graph.cpp): norms, rope, cache, gates, sums.
_OTHER_OPERATIONS = {
    Component.ATTENTION: 14.0,
    Component.ROUTER: 8.0,
    Component.ROUTED_EXPERTS: 5.0,
    Component.HOST_EXPERTS: 1.0,  # weighting and summing are done on the GPU
    Component.DENSE_FFN: 3.0,
    Component.SHARED_EXPERTS: 3.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorPrices:
    """Prices every work on the processor: a price model of its own for a machine without a GPU.

    `repacks`: weights are stored as tiles need them, which llama.cpp does not do beside a GPU.
    """

    processor: Processor
    repacks: bool = True
    name: str = "processor"

    @property
    def sustained_bytes_per_second(self) -> float:
        processor = self.processor
        read = processor.measured_bytes_per_second or processor.bandwidth_bytes_per_second * READ_SHARE
        return read * DECODE_SHARE

    @property
    def source(self) -> Source:
        sustained = f"{self.sustained_bytes_per_second / 1e9:.0f} GB/s sustained"
        detail = f"llama.cpp's CPU kernels on {self.processor.title}, {sustained}: rates that its pull requests state"
        return Source(kind=SourceKind.PUBLISHED, detail=detail, spread=SPREAD)

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        return tuple(self._price(work) for work in works)

    def _price(self, work: Work) -> WorkPrice:
        memory = work.bytes * (work.count / self.sustained_bytes_per_second)
        per_second = self.processor.cores * self.processor.clock_hz
        compute = np.asarray(work.count * self._cycles(work) / per_second)
        fixed = np.asarray(work.count * _operations(work) * self._operation_seconds)
        return WorkPrice(
            seconds=np.maximum(memory, compute) + fixed,
            memory_seconds=memory,
            compute_seconds=compute,
            fixed_seconds=fixed,
            source=self.source,
        )

    @property
    def _operation_seconds(self) -> float:
        cores = self.processor.cores
        one, doubling = _BARRIER_SECONDS[cores > _FEW_DIES]
        return _OPERATION_SECONDS + one + doubling * math.log2(cores)

    def _cycles(self, work: Work) -> FloatArray:
        """Of one core."""
        match work.subject:
            case ExpertBlock() as block:
                return work.pairs * sum(dot_cycles(matrix, self.processor) for matrix in block.expert)
            case tuple() as matrices:
                cycles = [
                    matrix_cycles(matrix, work.positions, self.processor, repacks=self.repacks) for matrix in matrices
                ]
                return np.asarray(sum(cycles, start=np.zeros(())))
            case None | Collective():
                return np.zeros(())
            case attention:
                return attention_cycles(attention, work.flops, self.processor)


def _operations(work: Work) -> float:
    """Operations of the graph per piece of work."""
    others = _OTHER_OPERATIONS.get(work.component, 0.0)
    match work.subject:
        case ExpertBlock() as block:
            sums = 0.0 if work.component is Component.HOST_EXPERTS else block.pool.experts_per_token
            return others + 2.0 * _PRODUCTS_PER_EXPERT + sums
        case tuple() as matrices:
            return others + len(matrices)
        case _:
            return others + 1.0
