"""Prices of rounds whose drafts stop early: expectations over the length of a draft.

A verify step is the mean over lengths, as if all sequences of a batch stopped alike: exact at batch 1. Drafting follows
each pass: a sequence leaves the drafter's batch with its first token below the threshold, which is dropped although its
pass was run; a pass is not run once all have left. A block head has one pass whatever it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from specmargin.acceptance.early_stop import EarlyStop
from specmargin.decisions.grid import Grid
from specmargin.prices.drafters import Drafter, round_seconds
from specmargin.step import FloatArray

#: Seconds of drafting for batches and depths, which broadcast against each other.
DraftSeconds = Callable[[FloatArray, FloatArray], FloatArray]


def stopped(grid: Grid, stop: EarlyStop, drafter: Drafter, draft_seconds: DraftSeconds) -> Grid:
    """The grid in which each depth is the longest draft, not the length of all."""
    depth = grid.depths.size - 1
    if depth == 0:
        return grid
    reached = np.concatenate([[1.0], stop.drafted.up_to(depth)])  # by depth, from 0
    verify = _verify(grid.verify_seconds, reached)
    draft = _draft(grid.batches, reached, draft_seconds)
    return replace(
        grid,
        verify_seconds=verify,
        draft_seconds=draft,
        round_seconds=round_seconds(drafter, verify, draft),
        committed=1.0 + stop.accepted.accepted_by_depth(depth),
    )


def _verify(seconds: FloatArray, reached: FloatArray) -> FloatArray:
    """Each token adds its price in the rounds that reach it."""
    added = np.diff(seconds, axis=1) * reached[1:]
    return np.concatenate([seconds[:, :1], seconds[:, :1] + np.cumsum(added, axis=1)], axis=1)


def _draft(batches: FloatArray, reached: FloatArray, draft_seconds: DraftSeconds) -> FloatArray:
    """Pass d drafts for the sequences whose draft has d − 1 tokens, and runs if there is one."""
    passes = np.arange(1.0, reached.size)
    batch = batches[:, np.newaxis]
    runs = 1.0 - (1.0 - reached[:-1]) ** batch
    size = np.where(runs > 0.0, batch * reached[:-1] / np.maximum(runs, 1e-300), 1.0)
    added = runs * (draft_seconds(size, passes) - draft_seconds(size, passes - 1.0))
    return np.concatenate([np.zeros((batches.size, 1)), np.cumsum(added, axis=1)], axis=1)
