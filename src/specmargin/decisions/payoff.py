"""Where a setting pays and where it loses: ranges of batch sizes, and the context at which it stops paying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import spread
from specmargin.decisions.setting import Setting
from specmargin.step import ArrayLike, BoolArray, FloatArray

Spans = tuple[tuple[int, int], ...]  # first and last batch of each
SEARCHED_CONTEXTS = 2.0 ** np.arange(7, 21, 0.5)  # for the one at which a setting stops paying


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Batch sizes at which a setting is slower than no speculation, and the worst of them."""

    spans: Spans
    worst_batch: int
    worst_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Payoff:
    """Speed-ups of a setting by batch."""

    batches: FloatArray
    speedups: FloatArray

    @property
    def paying(self) -> Spans:
        return spans_where(self.batches, self.speedups > 1.0)

    @property
    def loss(self) -> Loss | None:
        losing = self.speedups < 1.0
        if not losing.any():
            return None
        worst = int(self.speedups.argmin())
        return Loss(
            spans=spans_where(self.batches, losing),
            worst_batch=int(self.batches[worst]),
            worst_speedup=float(self.speedups[worst]),
        )


def spans_where(batches: FloatArray, chosen: BoolArray) -> Spans:
    """The chosen ones of ascending batches, as ranges."""
    flags, whole = chosen.astype(np.int8), batches.astype(np.int64).tolist()
    starts, ends = np.flatnonzero(np.diff(flags, prepend=0) > 0), np.flatnonzero(np.diff(flags, append=0) < 0)
    return tuple((whole[first], whole[last]) for first, last in zip(starts, ends, strict=True))


def payoff(pricer: Pricer, setting: Setting, *, up_to: int) -> Payoff:
    """Every batch where the setting changes or its gain turns to a loss is priced; the others are smooth."""
    ends = np.array([] if setting.schedule is None else [entry.last for entry in setting.schedule.ranges])
    turns = np.concatenate([ends, ends + 1])
    batches = np.union1d(spread(up_to), turns[turns <= up_to]).astype(np.float64)
    gains = speedup_by_batch(pricer, setting, batches)
    sides = np.sign(gains - 1.0)
    changes = np.flatnonzero(sides[:-1] != sides[1:])
    between = np.concatenate([np.arange(batches[i] + 1, batches[i + 1]) for i in changes] or [np.zeros(0)])
    if between.size:
        gains = np.concatenate([gains, speedup_by_batch(pricer, setting, between)])
        batches = np.concatenate([batches, between])
        order = np.argsort(batches)
        batches, gains = batches[order], gains[order]
    return Payoff(batches=batches, speedups=gains)


def speedup_by_batch(
    pricer: Pricer, setting: Setting, batches: FloatArray, context: ArrayLike | None = None
) -> FloatArray:
    """Goodput under the schedule over an engine without speculation; without one, of the best depth from 1 on."""
    grid = pricer.grid(batches, setting.max_depth, context)
    if setting.schedule is None:
        goodput = np.where(setting.allowed(grid), grid.goodput, 0.0)[:, 1:].max(axis=1, initial=0.0)
    else:
        goodput = setting.goodput(grid)
    return np.asarray(goodput / grid.no_spec_goodput)


def stops_at_context(pricer: Pricer, setting: Setting, batch: int) -> int | None:
    """The context from which on the setting does not pay at this batch, to the nearest power of √2.

    None where it still pays at the model's limit, and where it pays at no context at all.
    """
    longest = pricer.scenario.architecture.max_context or 1_048_576
    if setting.max_depth == 0:
        return None
    contexts = np.unique(np.minimum(SEARCHED_CONTEXTS, longest))
    pays = speedup_by_batch(pricer, setting, np.full(contexts.shape, float(batch)), contexts) > 1.0
    if pays[-1] or not pays.any():
        return None
    return int(contexts[np.flatnonzero(pays)[-1] + 1])
