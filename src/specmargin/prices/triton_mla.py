"""vLLM's Triton kernel for MLA, by its own grid: rows x blocks of 16 heads x splits of the context.

    t = fixed + join · splits + knee(memory, walk)

A block of threads takes 85 ns per cached token in bf16, 107 ns in fp8 (converted element by element), whatever its
heads; blocks beyond the multiprocessors wait. A last wave that is not full takes as long as a full one; on an A100 two
blocks share a multiprocessor's local memory, and there are no waves. Memory is read at 0.73 of its bandwidth.

Evidence: an H200 (`lab/data/measurements/vllm-0.32-h200-kernels.json`: median error 10% over 228 points of 1 to 256
rows, 1k to 128k tokens and 8, 16 and 128 heads, where rows of the same sequence take as long as others), and what
public modules that ran it take beyond three cached tokens (aiconfigurator-core 0.12.0, vLLM 0.24: RTX PRO 6000 and
L40S, 4 to 18%).

In a CUDA graph the splits are those of the longest context that the server takes (vLLM 0.32,
v1/worker/gpu/model_states/default.py:198): more splits to join and shorter ones. `_splits` follows the context at hand.
"""

from __future__ import annotations

import numpy as np

from specmargin.architecture.precision import Precision
from specmargin.architecture.types import LatentAttention
from specmargin.hardware.device import Device
from specmargin.prices.kernels.law import knee
from specmargin.prices.model import WorkPrice
from specmargin.sources import Source, SourceKind
from specmargin.step import FloatArray, Step

_HEADS_PER_BLOCK = 16  # BLOCK_H, v1/attention/ops/triton_decode_attention.py:512
_TOKENS_PER_SPLIT = 512.0  # _MIN_WORK_PER_SPLIT, v1/attention/backends/mla/triton_mla.py:38
_SPLITS_PER_PROCESSOR = 2.0  # _SPLIT_OCCUPANCY_MULTIPLIER
_TOKEN_SECONDS, _FP8_TOKEN_SECONDS = 85e-9, 107e-9
_BANDWIDTH_SHARE = 0.73
_MOST_IDLE_MEMORY = 2.0  # a few blocks read faster than their share of the bandwidth
_FIXED_SECONDS = 10e-6  # two kernels in a graph
_JOIN_SECONDS = 0.25e-6  # the second joins the splits of a row one after another
_SHARED = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_107")  # 164 KB and more of local memory: two blocks of 74 KB
_SOURCE = Source(
    kind=SourceKind.SCALED,
    detail="Triton MLA by its grid: 85 ns per token and block of heads (fp8 107), 0.73 of the bandwidth "
    "(H200 with vLLM 0.32; module rows of vLLM 0.24 on RTX PRO 6000 and L40S)",
    spread=0.2,
)


def triton_mla_price(device: Device, attention: LatentAttention, rows: Step, *, kv: Precision, ranks: int) -> WorkPrice:
    """One layer; `rows` has one query per sequence."""
    processors = device.multiprocessors or 1
    blocks = np.ceil(attention.heads / ranks / _HEADS_PER_BLOCK)
    tokens = rows.total(rows.context_by_class + rows.run_by_class)
    splits = _splits(np.max(np.where(rows.count_by_class > 0, rows.context_by_class, 0.0), axis=-1), processors)
    idle = _idle_factor(device, processors, np.maximum(rows.sequences, 1.0) * blocks * splits)
    entry = (attention.latent_dim + attention.rope_dim) * kv.bytes_per_parameter
    memory = tokens * entry / (device.bandwidth_bytes_per_second * _BANDWIDTH_SHARE)
    memory = memory * np.minimum(idle, _MOST_IDLE_MEMORY)
    token_seconds = _FP8_TOKEN_SECONDS if kv.name.startswith("fp8") else _TOKEN_SECONDS
    walk = tokens * blocks * token_seconds / processors * idle
    fixed = _FIXED_SECONDS + _JOIN_SECONDS * splits
    return WorkPrice(
        seconds=np.asarray(fixed + knee(memory, walk)),
        memory_seconds=np.asarray(memory),
        compute_seconds=np.asarray(walk),
        fixed_seconds=np.asarray(fixed + 0.0 * memory),
        source=_SOURCE,
    )


def _idle_factor(device: Device, processors: int, grid: FloatArray) -> FloatArray:
    """Multiprocessors of all waves over blocks of threads."""
    waves = np.maximum(grid / processors, 1.0) if device.architecture in _SHARED else np.ceil(grid / processors)
    return np.asarray(waves * processors / grid)


def _splits(context: FloatArray, processors: int) -> FloatArray:
    """The kernel rounds to a power of two, which moves its splits to between 384 and 1,023 tokens; not followed."""
    wanted = np.maximum(context / _TOKENS_PER_SPLIT, 1.0)
    return np.asarray(np.minimum(wanted, _SPLITS_PER_PROCESSOR * processors))
