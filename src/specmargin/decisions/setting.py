"""A setting: how deep the engine was told to draft at each batch, and which depths it can run at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specmargin.decisions.grid import Grid
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import DepthTable, Schedule, spread
from specmargin.errors import ScenarioError, ScheduleError
from specmargin.limits import MAX_DEPTH
from specmargin.step import ArrayLike, BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """With a schedule, the engine drafts the depths of the schedule; without one, the best allowed depth at each batch.

    A schedule may leave the CUDA graphs where its engine has no finer ranges. A best depth never does.
    """

    max_depth: int  # the deepest draft considered
    graph_limit: int | None = None  # positions of the largest CUDA graph; None: a graph for every step
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_depth <= MAX_DEPTH:
            raise ScenarioError(f"depth must lie in 0..{MAX_DEPTH}, got {self.max_depth}")
        if self.schedule is not None and self.schedule.max_depth > self.max_depth:
            raise ScheduleError(f"the schedule drafts {self.schedule.max_depth} tokens, more than {self.max_depth}")

    @classmethod
    def of(cls, scenario: Scenario, *, max_depth: int) -> Setting:
        """The best depths among those that the scenario's drafter and engine can run."""
        limits = (limit for limit in (scenario.drafter.max_depth, scenario.longest_draft) if limit is not None)
        return cls(max_depth=min([max_depth, *limits]), graph_limit=scenario.engine_time.graph_limit)

    @classmethod
    def fixed(cls, depth: int) -> Setting:
        """One depth at every batch; 0: an engine without speculation."""
        return cls(max_depth=depth, schedule=Schedule.fixed(depth, last=1))

    def with_schedule(self, schedule: Schedule) -> Setting:
        return replace(self, schedule=schedule)

    def without_graph_limit(self) -> Setting:
        return replace(self, graph_limit=None)

    # --- what the engine can run ---

    def in_graphs(self, grid: Grid) -> BoolArray:
        """By batch and depth: whether the engine has a CUDA graph for the positions of the step."""
        positions = grid.positions_per_rank
        return np.asarray(positions <= (np.inf if self.graph_limit is None else self.graph_limit))

    def allowed(self, grid: Grid) -> BoolArray:
        """By batch and depth: what the engine can run in a CUDA graph. Depth 0 is always allowed."""
        return np.asarray((self.in_graphs(grid) & (grid.depths <= self.max_depth)) | (grid.depths == 0))

    def best_depths(self, grid: Grid) -> IntArray:
        """By batch: the allowed depth of the highest goodput, whatever the schedule says."""
        return np.asarray(np.where(self.allowed(grid), grid.goodput, -np.inf).argmax(axis=1))

    def depth_table(self, pricer: Pricer, *, max_batch: int) -> DepthTable:
        """What a schedule up to `max_batch` is made from."""
        grid = pricer.grid(spread(max_batch), self.max_depth)
        fits = np.array([pricer.largest_batch(depth) for depth in range(self.max_depth + 1)])
        return DepthTable.of(grid, self.allowed(grid), fits)

    # --- what it was told ---

    @property
    def configured(self) -> bool:
        """Whether the engine has speculation configured at all."""
        return self.schedule is None or self.schedule.max_depth > 0

    def depths(self, grid: Grid) -> IntArray:
        """The depth at each batch of the grid."""
        return self.best_depths(grid) if self.schedule is None else self.schedule.depths_at(grid.batches)

    def depths_at(self, pricer: Pricer, batches: ArrayLike) -> IntArray:
        """The same without a grid; nothing is priced where a schedule knows."""
        if self.schedule is not None:
            return self.schedule.depths_at(batches)
        return self.best_depths(pricer.grid(batches, self.max_depth))

    def held_depth(self, grid: Grid) -> int:
        """The deepest draft that the engine reserves memory for, if it serves the batches of the grid."""
        return int(self.best_depths(grid).max()) if self.schedule is None else self.schedule.max_depth

    def largest_batch(self, pricer: Pricer, held_depth: int) -> int:
        """Sequences that fit with memory for drafts of `held_depth`, or without speculation if none is configured."""
        return pricer.largest_batch(held_depth) if self.configured else pricer.no_spec_largest_batch

    # --- what it gives ---

    def goodput(self, grid: Grid) -> FloatArray:
        """Committed tokens per second at each batch of the grid."""
        return self.goodput_at(grid, self.depths(grid))

    def goodput_at(self, grid: Grid, depths: IntArray) -> FloatArray:
        """The same at these depths; that of an engine without speculation if none is configured."""
        if not self.configured:
            return grid.no_spec_goodput
        return np.asarray(grid.goodput[np.arange(depths.size), depths])
