"""vLLM's Triton kernel for MLA, by its own grid: rows x blocks of 16 heads x splits of the context.

    t = fixed + join · splits + knee(memory, walk)

A block of threads takes 85 ns per cached token in bf16, 107 ns in fp8 (converted element by element), whatever its
heads; blocks beyond the multiprocessors wait. A last wave that is not full takes as long as a full one; on an A100 two
blocks share a multiprocessor's local memory, and there are no waves. Memory is read at 0.73 of its bandwidth, once for
all rows of a sequence: the grid's first axis is the row, so that those of one split run together and share the L2 cache
(triton_decode_attention.py:514).

Evidence: an H200 (`lab/data/measurements/vllm-0.32-h200-kernels.json`: median error 10% over 228 points of 1 to 256
rows, 1k to 128k tokens and 8, 16 and 128 heads, where rows of the same sequence take as long as others), and what
public modules that ran it take beyond three cached tokens (aiconfigurator-core 0.12.0, vLLM 0.24: RTX PRO 6000 and
L40S, 4 to 18%).

In a CUDA graph the splits are those of the longest context that the server takes (vLLM 0.32,
v1/worker/gpu/model_states/default.py:198): more splits to join and shorter ones. `_splits` follows the context at hand.

Another build (`by_rows`) has 64 splits, and fewer the more rows there are, whatever the context; its tuned kernel takes
80 ns per token in fp8 (local-inference-lab/rtx6kpro, patches/triton_mla_tuning.py: 72 to 84 ns over 1 to 256 rows, 13k
to 249k tokens and 16 to 128 heads on an RTX PRO 6000, the cache in L2).
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
_TUNED_FP8_TOKEN_SECONDS = 80e-9
_MOST_SPLITS, _BLOCKS_WANTED = 64.0, 576.0  # of the other build: bench/tune_triton_mla.py, _pick_num_kv_splits
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


def triton_mla_price(
    device: Device, attention: LatentAttention, step: Step, *, kv: Precision, ranks: int, by_rows: bool = False
) -> WorkPrice:
    """One layer. Every query is a row of its own; the cache of a sequence is read from memory once for its rows."""
    rows = step.flattened()
    processors = device.multiprocessors or 1
    blocks = np.ceil(attention.heads / ranks / _HEADS_PER_BLOCK)
    tokens = rows.total(rows.context_by_class + rows.run_by_class)
    longest = np.max(np.where(rows.count_by_class > 0, rows.context_by_class, 0.0), axis=-1)
    splits = _splits_of_rows(np.maximum(rows.sequences, 1.0) * blocks) if by_rows else _splits(longest, processors)
    idle = _idle_factor(device, processors, np.maximum(rows.sequences, 1.0) * blocks * splits)
    few = _idle_factor(device, processors, np.maximum(step.sequences, 1.0) * blocks * splits)  # without the other rows
    entry = (attention.latent_dim + attention.rope_dim) * kv.bytes_per_parameter
    read_tokens = step.total(step.context_by_class + step.run_by_class)
    memory = read_tokens * entry / (device.bandwidth_bytes_per_second * _BANDWIDTH_SHARE)
    memory = memory * np.minimum(few, _MOST_IDLE_MEMORY)
    fp8_seconds = _TUNED_FP8_TOKEN_SECONDS if by_rows else _FP8_TOKEN_SECONDS
    token_seconds = fp8_seconds if kv.name.startswith("fp8") else _TOKEN_SECONDS
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


def _splits_of_rows(grid: FloatArray) -> FloatArray:
    """Powers of two: 64 up to 9 blocks of rows and heads, 8 at 64 of them."""
    wanted = np.clip(np.floor(_BLOCKS_WANTED / grid), 1.0, _MOST_SPLITS)
    return np.asarray(2.0 ** np.floor(np.log2(wanted)))
