"""The step of the busiest rank: what one GPU runs of a step, and the positions whose experts it reads.

Data-parallel ranks run in lockstep and pad their positions to those of the largest (vLLM's `dispatch_cg_and_sync_dp`),
and an expert-parallel rank reads the experts of all ranks' positions. So a step takes as long as the busiest rank's.
Plan, simulator and a vote among live ranks price steps through this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specmargin.errors import ScenarioError
from specmargin.hardware.layout import Layout
from specmargin.step import Step


class RankStep(NamedTuple):
    whole: Step  # of all data-parallel ranks that run at the same time
    local: Step  # of the busiest of them


def rank_step(step: Step, layout: Layout, local: Step | None = None) -> RankStep:
    """Sequences spread evenly over stages and ranks; `local` where the busiest rank's part is known."""
    return RankStep(step.divided(layout.stages), step.divided(layout.sequence_ranks) if local is None else local)


def lockstep(steps: Sequence[Step]) -> RankStep:
    """Ranks with different steps, each of one point: `local` has a row for each rank, padded to the largest.

    The price of the step is the maximum over these rows. Padding has no context, so it costs no attention; it is taken
    to route nowhere, as in kernels that mask it.
    """
    if not steps or any(step.run_by_class.ndim != 1 for step in steps):
        raise ScenarioError("a lockstep takes one step of each rank, not a grid")
    whole = steps[0]
    for step in steps[1:]:
        whole = whole.joined(step)
    largest = max(float(step.positions) for step in steps)
    padded = [_padded(step, largest) for step in steps]
    classes = max(step.run_by_class.size for step in padded)
    rows = [_widened(step, classes) for step in padded]
    return RankStep(whole, Step(**{name: np.stack([getattr(row, name) for row in rows]) for name in _ARRAYS}))


_ARRAYS = ("run_by_class", "context_by_class", "count_by_class", "prompt_by_class")


def _padded(step: Step, positions: float) -> Step:
    """With sequences of one position and no context, up to so many positions."""
    return step.joined(Step.ragged(depths=[0], contexts=0.0).times(positions - float(step.positions)))


def _widened(step: Step, classes: int) -> Step:
    """With empty classes, so that ranks with different sequences are rows of one array."""
    empty = classes - step.run_by_class.size
    return step if empty == 0 else step.joined(Step.ragged(depths=[0] * empty, contexts=0.0).times(0.0))
