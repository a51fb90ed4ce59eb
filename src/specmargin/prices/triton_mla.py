"""vLLM's Triton kernel for MLA, by its own grid: rows x blocks of 16 heads x splits of the context.

What it reaches is from public rows of whole modules that ran it (aiconfigurator-core 0.12.0, vLLM 0.24, RTX PRO 6000
and L40S, 1 to 128 heads): with enough blocks of threads 0.70 and 0.76 of the memory bandwidth in bf16, 0.55 in fp8
(converted element by element), and 0.145 of the matrix rate (128 heads). A last wave of blocks that is not full takes
as long as a full one: 128, 256 and 512 blocks on 188 multiprocessors read at 0.6 to 0.7, 0.7 and 0.95 TB/s, 4,096 at
1.27.

In a CUDA graph the splits are those of the longest context that was captured; `_splits` follows the context at hand.
"""

from __future__ import annotations

import numpy as np

from specmargin.architecture.precision import Arithmetic, Precision
from specmargin.architecture.types import LatentAttention
from specmargin.hardware.device import Device
from specmargin.prices.kernels.law import knee
from specmargin.prices.model import WorkPrice
from specmargin.sources import Source, SourceKind
from specmargin.step import FloatArray, Step

_HEADS_PER_BLOCK = 16  # BLOCK_H, v1/attention/ops/triton_decode_attention.py:512
_TOKENS_PER_SPLIT = 512.0  # _MIN_WORK_PER_SPLIT, v1/attention/backends/mla/triton_mla.py:38
_SPLITS_PER_PROCESSOR = 2.0  # _SPLIT_OCCUPANCY_MULTIPLIER
_BANDWIDTH_SHARE, _FP8_BANDWIDTH_SHARE = 0.73, 0.55
_RATE_SHARE = 0.145
_FIXED_SECONDS = 10e-6  # two kernels in a graph: the second joins the splits
_SOURCE = Source(
    kind=SourceKind.SCALED,
    detail="Triton MLA by its grid, bandwidth and rate shares of vLLM 0.24's module rows on RTX PRO 6000 and L40S",
    spread=0.25,
)


def triton_mla_price(device: Device, attention: LatentAttention, rows: Step, *, kv: Precision, ranks: int) -> WorkPrice:
    """One layer; `rows` has one query per sequence."""
    heads = attention.heads / ranks
    blocks = np.ceil(heads / _HEADS_PER_BLOCK)
    padded = max(heads, blocks * _HEADS_PER_BLOCK)
    tokens = rows.total(rows.context_by_class + rows.run_by_class)
    entry = (attention.latent_dim + attention.rope_dim) * kv.bytes_per_parameter
    share = _FP8_BANDWIDTH_SHARE if kv.name.startswith("fp8") else _BANDWIDTH_SHARE
    idle = idle_factor(device.multiprocessors or 1, rows, float(blocks))
    memory = tokens * entry / (device.bandwidth_bytes_per_second * share) * idle
    operations = tokens * 2.0 * padded * (2 * attention.latent_dim + attention.rope_dim)
    compute = operations / (device.rate(Arithmetic.BF16) * _RATE_SHARE)
    return WorkPrice(
        seconds=np.asarray(_FIXED_SECONDS + knee(memory, compute)),
        memory_seconds=np.asarray(memory),
        compute_seconds=np.asarray(compute),
        fixed_seconds=np.asarray(_FIXED_SECONDS + 0.0 * memory),
        source=_SOURCE,
    )


def idle_factor(processors: int, rows: Step, blocks: float) -> FloatArray:
    """Multiprocessors of all waves over blocks of threads: what the unfilled part of the last wave costs."""
    longest = np.max(np.where(rows.count_by_class > 0, rows.context_by_class, 0.0), axis=-1)
    grid = np.maximum(rows.sequences, 1.0) * blocks * _splits(longest, processors)
    return np.asarray(np.ceil(grid / processors) * processors / grid)


def _splits(context: FloatArray, processors: int) -> FloatArray:
    """The kernel rounds to a power of two, which moves its splits to between 384 and 1,023 tokens; not followed."""
    wanted = np.maximum(context / _TOKENS_PER_SPLIT, 1.0)
    return np.asarray(np.minimum(wanted, _SPLITS_PER_PROCESSOR * processors))
