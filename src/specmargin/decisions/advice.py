"""What a plan advises once its ranges are known: where a range holds both a gain and a loss, it is uncertain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from specmargin.decisions.certainty import SpeedupRange
from specmargin.decisions.payoff import Spans, spans_where
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow


class Advice(StrEnum):
    SPECULATE = "speculate"
    UP_TO_BATCH = "speculate-up-to-batch"  # a gain, but larger batches lose, or fewer fit and peak throughput falls
    UNCERTAIN = "uncertain"  # the 80% range holds a gain and a loss
    DO_NOT = "do-not-speculate"
    UNSUPPORTED = "unsupported"  # it would gain, but no engine runs the drafter
    NONE_FITS = "none-fits"
    SLOWER_FIRST_TOKEN = "speculate-with-slower-first-token"  # a load gains, but its requests wait far longer
    MISSES_TARGET = "misses-target"  # a gain, with and without which the latency target is missed
    OVERLOADED = "overloaded"  # more arrives than is served, with and without speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The row by which a plan is judged, with its range, and how sure the plan is at each batch that it covers."""

    row: PlanRow  # that of the batch asked about, or the first whose gain is clear, or that gains; else the best draft
    range: SpeedupRange
    drafts: bool  # whether the plan drafts there; if not, the row is of the best draft, which the plan does not use
    surely_paying: Spans  # batches at which the range of the speed-up lies above 1
    uncertain: Spans  # batches with drafts at which it spans 1
    surely_losing: Spans  # batches at which the setting is slower, and the range does not span 1
    advice: Advice


def judge(
    plan: Plan,
    ranges: Sequence[SpeedupRange],
    *,
    supported: bool = True,
    refused: tuple[PlanRow, SpeedupRange] | None = None,
    at_batch: int | None = None,
) -> Judgement:
    """`ranges`: one per row of the plan. Between its rows the width of the range is interpolated.

    `at_batch`: the batch asked about, of which the plan has a row. `refused`: the best draft where nothing is drafted.
    """
    pairs = list(zip(plan.rows, ranges, strict=True))
    asked = [pair for pair in pairs if at_batch in (None, pair[0].batch)]
    fitting = [pair for pair in asked if pair[0].fits]
    drafting = [pair for pair in fitting if pair[0].depth > 0 and (at_batch is not None or pair[0].speedup > 1.0)]
    clear = [pair for pair in drafting if pair[1].low > 1.0]
    judged = (clear or drafting)[:1]
    row, sure = judged[0] if judged else refused or (fitting or asked)[0]
    paying, uncertain, losing = _spans(plan, [pair for pair in pairs if pair[0].depth > 0])
    return Judgement(
        row=row,
        range=sure,
        drafts=bool(drafting),
        surely_paying=paying,
        uncertain=uncertain,
        surely_losing=losing,
        advice=_advice(plan, judged, refused, supported=supported) if fitting else Advice.NONE_FITS,
    )


def _advice(
    plan: Plan,
    judged: Sequence[tuple[PlanRow, SpeedupRange]],
    refused: tuple[PlanRow, SpeedupRange] | None,
    *,
    supported: bool,
) -> Advice:
    if not judged:
        unclear = refused is not None and refused[0].speedup <= 1.0 <= refused[1].high
        return Advice.UNCERTAIN if unclear else Advice.DO_NOT
    row, sure = judged[0]
    if row.speedup <= 1.0 and not sure.spans_one:
        return Advice.DO_NOT
    if not supported:
        return Advice.UNSUPPORTED
    if sure.spans_one:
        return Advice.UNCERTAIN
    return Advice.SPECULATE if plan.limit is None else Advice.UP_TO_BATCH


def _spans(plan: Plan, drafting: Sequence[tuple[PlanRow, SpeedupRange]]) -> tuple[Spans, Spans, Spans]:
    if not drafting or not plan.setting.configured:
        return (), (), ()
    rows, ranges = zip(*drafting, strict=True)
    speedups, known = np.array([row.speedup for row in rows]), np.log([row.batch for row in rows])
    batches, by_batch = plan.payoff.batches, plan.payoff.speedups
    drafts = plan.setting.depths_at(plan.pricer, batches) > 0
    low, high = (
        by_batch * np.exp(np.interp(np.log(batches), known, np.log(np.array(ends) / speedups)))
        for ends in ([each.low for each in ranges], [each.high for each in ranges])
    )
    unsure = drafts & (low <= 1.0) & (high >= 1.0)
    kinds = drafts & (low > 1.0), unsure, (by_batch < 1.0) & ~unsure
    paying, uncertain, losing = (spans_where(batches, kind) for kind in kinds)
    return paying, uncertain, losing
