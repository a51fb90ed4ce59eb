"""Prices of every batch and depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.step import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Prices over (batch, depth), from depth 0: speculation configured but off."""

    batches: FloatArray
    depths: FloatArray
    verify_seconds: FloatArray
    draft_seconds: FloatArray
    round_seconds: FloatArray
    committed: FloatArray  # tokens per sequence and round, by depth
    no_spec_seconds: FloatArray  # by batch: a step of an engine without speculation configured
    full_round_seconds: FloatArray  # rounds in which no draft stops early
    sequence_ranks: int = 1  # GPUs that the sequences are spread over

    @property
    def positions_per_rank(self) -> FloatArray:
        """Positions per step that one engine process sees: what its CUDA graphs must hold."""
        return np.asarray(np.ceil(self.batches / self.sequence_ranks)[:, np.newaxis] * (self.depths + 1.0))

    @property
    def goodput(self) -> FloatArray:
        """Committed tokens per second, by batch and depth."""
        return self.batches[:, np.newaxis] * self.committed / self.round_seconds

    @property
    def no_spec_goodput(self) -> FloatArray:
        """Tokens per second without speculation, by batch."""
        return self.batches / self.no_spec_seconds

    @property
    def speedup(self) -> FloatArray:
        """Goodput over that without speculation, by batch and depth."""
        return self.goodput / self.no_spec_goodput[:, np.newaxis]

    @property
    def tpot_seconds(self) -> FloatArray:
        """Seconds between tokens of one sequence, by batch and depth."""
        return self.round_seconds / self.committed
