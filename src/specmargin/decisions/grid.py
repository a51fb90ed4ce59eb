"""Prices of every batch and depth, and the best depths under them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.step import BoolArray, FloatArray, IntArray


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
    def tpot_seconds(self) -> FloatArray:
        """Seconds between tokens of one sequence, by batch and depth."""
        return self.round_seconds / self.committed


def allowed_depths(grid: Grid, graph_limit: int | None) -> BoolArray:
    """True where the engine has a graph for batch × (depth + 1). Depth 0 is always allowed."""
    positions = grid.positions_per_rank
    within = np.ones(positions.shape, dtype=bool) if graph_limit is None else positions <= graph_limit
    within[:, 0] = True
    return np.asarray(within)


def best_depths(grid: Grid, graph_limit: int | None = None) -> IntArray:
    """argmax of goodput over the allowed depths, by batch."""
    goodput = np.where(allowed_depths(grid, graph_limit), grid.goodput, -np.inf)
    return np.asarray(goodput.argmax(axis=1))
