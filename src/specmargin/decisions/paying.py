"""Where a setting pays and where it loses: ranges of batch sizes, and the context at which it stops paying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.decisions.grid import allowed_depths
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import setting_depths, setting_goodput
from specmargin.decisions.schedule import Schedule, spread
from specmargin.step import ArrayLike, BoolArray, FloatArray

Ranges = tuple[tuple[int, int], ...]  # first and last batch of each
SEARCHED_CONTEXTS = 2.0 ** np.arange(7, 21, 0.5)  # for the one at which a setting stops paying


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Batch sizes at which a setting is slower than no speculation, and the worst of them."""

    ranges: Ranges
    worst_batch: int
    worst_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Speed-ups of a setting at batches 1 to `up_to`."""

    batches: FloatArray
    speedups: FloatArray

    @property
    def up_to(self) -> int:
        return int(self.batches[-1])

    @property
    def paying(self) -> Ranges:
        return self._where(self.speedups > 1.0)

    @property
    def loss(self) -> Loss | None:
        losing = self.speedups < 1.0
        if not losing.any():
            return None
        worst = int(self.speedups.argmin())
        return Loss(
            ranges=self._where(losing),
            worst_batch=int(self.batches[worst]),
            worst_speedup=float(self.speedups[worst]),
        )

    def _where(self, chosen: BoolArray) -> Ranges:
        flags, batches = chosen.astype(np.int8), self.batches.astype(np.int64).tolist()
        starts, ends = np.flatnonzero(np.diff(flags, prepend=0) > 0), np.flatnonzero(np.diff(flags, append=0) < 0)
        return tuple((batches[first], batches[last]) for first, last in zip(starts, ends, strict=True))


def outcome(
    pricer: Pricer, *, up_to: int, max_depth: int, graph_limit: int | None, schedule: Schedule | None
) -> Outcome:
    """Every batch where the setting changes or its gain turns to a loss is priced; the others are smooth."""

    def speedups(batches: FloatArray) -> FloatArray:
        return speedup_by_batch(pricer, batches, max_depth=max_depth, graph_limit=graph_limit, schedule=schedule)

    ends = np.array([] if schedule is None else [entry.last for entry in schedule.ranges])
    turns = np.concatenate([ends, ends + 1])
    batches = np.union1d(spread(up_to), turns[turns <= up_to]).astype(np.float64)
    gains = speedups(batches)
    sides = np.sign(gains - 1.0)
    changes = np.flatnonzero(sides[:-1] != sides[1:])
    between = np.concatenate([np.arange(batches[i] + 1, batches[i + 1]) for i in changes] or [np.zeros(0)])
    if between.size:
        batches, gains = np.concatenate([batches, between]), np.concatenate([gains, speedups(between)])
        order = np.argsort(batches)
        batches, gains = batches[order], gains[order]
    return Outcome(batches=batches, speedups=gains)


def speedup_by_batch(
    pricer: Pricer,
    batches: FloatArray,
    *,
    max_depth: int,
    graph_limit: int | None,
    schedule: Schedule | None,
    context: ArrayLike | None = None,
) -> FloatArray:
    """Goodput under the schedule over an engine without speculation; without one, of the best depth from 1 on."""
    grid = pricer.grid(batches, max_depth, context)
    if schedule is None:
        allowed = allowed_depths(grid, graph_limit)[:, 1:]
        goodput = np.where(allowed, grid.goodput[:, 1:], 0.0).max(axis=1, initial=0.0)
    else:
        goodput = setting_goodput(grid, setting_depths(grid, graph_limit, schedule), schedule)
    return np.asarray(goodput / grid.no_spec_goodput)


def stops_at_context(
    pricer: Pricer, batch: int, *, max_depth: int, graph_limit: int | None, schedule: Schedule | None
) -> int | None:
    """The context from which on the setting does not pay at this batch, to the nearest power of √2.

    None where it still pays at the model's limit, and where it pays at no context at all.
    """
    longest = pricer.scenario.architecture.max_context or 1_048_576
    if max_depth == 0:
        return None
    contexts = np.unique(np.minimum(SEARCHED_CONTEXTS, longest))
    gains = speedup_by_batch(
        pricer,
        np.full(contexts.shape, float(batch)),
        max_depth=max_depth,
        graph_limit=graph_limit,
        schedule=schedule,
        context=contexts,
    )
    pays = gains > 1.0
    if pays[-1] or not pays.any():
        return None
    return int(contexts[np.flatnonzero(pays)[-1] + 1])
