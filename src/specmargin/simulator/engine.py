"""The simulated engine: vLLM V1's limits, and the KV blocks that fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.errors import ScenarioError
from specmargin.modes import Scheduling

BLOCK_TOKENS = 16
_FAR = 1 << 20  # tokens: longer than any sliding window, so that the cache grows linearly or not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Named as in vLLM. Defaults are vLLM's for an online server on a large GPU."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    limits_per_rank: bool = True  # both are of each data-parallel rank; False: of all of them
    kv_blocks: int | None = None  # None: as many as fit in memory
    cudagraph_capture_sizes: tuple[int, ...] | None = None  # None: vLLM's default
    prefix_cache: bool = True  # requests with block hashes find the blocks that earlier ones computed
    prefix_hit: float = 0.0  # of requests without hashes: share of each prompt in the cache; blocks are not shared
    kv_arrives: bool = False  # prompts are read elsewhere, all but their last token
    scheduling: Scheduling = Scheduling.FCFS

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"engine: {name} must be at least 1, got {getattr(self, name)}")
        if self.kv_blocks is not None and self.kv_blocks < 1:
            raise ScenarioError(f"engine: kv_blocks must be at least 1, got {self.kv_blocks}")
        if not 0.0 <= self.prefix_hit < 1.0:
            raise ScenarioError(f"engine: prefix_hit must lie in 0..1, got {self.prefix_hit}")


class KvBudget(NamedTuple):
    """KV blocks of the whole engine, or of one rank behind a router.

    Recurrent states and windows are a fixed number of blocks per sequence.
    """

    blocks: int
    blocks_per_sequence: int
    block_tokens: int
    lookahead_tokens: int  # reserved per sequence for drafts

    def needed(self, tokens: int) -> int:
        return -(-(tokens + self.lookahead_tokens) // self.block_tokens) + self.blocks_per_sequence


def kv_budget(pricer: Pricer, settings: EngineSettings, *, held_depth: int | None, own_rank: bool = False) -> KvBudget:
    """`held_depth`: draft tokens with reserved room; None: an engine without speculation. `own_rank`: of one rank."""
    free_bytes = pricer.memory.free_bytes + (pricer.memory.drafter_bytes if held_depth is None else 0.0)
    token_bytes, fixed_bytes = _sequence_bytes(pricer, held_depth)
    if token_bytes > 0:
        block_bytes, per_sequence, block_tokens = token_bytes * BLOCK_TOKENS, 0, BLOCK_TOKENS
        per_sequence = int(np.ceil(fixed_bytes / block_bytes - 1e-9))
    else:  # the cache does not grow: one block per sequence
        block_bytes, per_sequence, block_tokens = max(fixed_bytes, 1.0), 0, _FAR * _FAR
    ranks = 1 if own_rank else pricer.scenario.layout.sequence_ranks
    blocks = int(free_bytes * ranks // block_bytes) if settings.kv_blocks is None else settings.kv_blocks
    return KvBudget(
        blocks=max(blocks, 0),
        blocks_per_sequence=per_sequence,
        block_tokens=block_tokens,
        lookahead_tokens=held_depth or 0,
    )


def _sequence_bytes(pricer: Pricer, held_depth: int | None) -> tuple[float, float]:
    """Bytes per token, and bytes per sequence independent of its length. Sliding windows count as full."""
    near, far = (pricer.sequence_bytes(held_depth, tokens) for tokens in (_FAR, 2 * _FAR))
    per_token = (far - near) / _FAR
    return per_token, max(near - per_token * (_FAR + 1 + (held_depth or 0)), 0.0)
