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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The row by which a plan is judged, with its range, and how sure the plan is at each batch that it covers."""

    row: PlanRow  # the first that fits and gains; else the best draft, which the plan does not use
    range: SpeedupRange
    surely_paying: Spans  # batches at which the range of the speed-up lies above 1
    uncertain: Spans  # batches with drafts at which it spans 1
    advice: Advice


def judge(
    plan: Plan,
    ranges: Sequence[SpeedupRange],
    *,
    supported: bool = True,
    refused: tuple[PlanRow, SpeedupRange] | None = None,
) -> Judgement:
    """`ranges`: one per row of the plan. Between its rows the width of the range is interpolated.

    `refused`: the best draft of a plan that drafts nothing.
    """
    pairs = list(zip(plan.rows, ranges, strict=True))
    fitting = [pair for pair in pairs if pair[0].fits]
    gaining = [pair for pair in fitting if pair[0].depth > 0 and pair[0].speedup > 1.0]
    row, sure = gaining[0] if gaining else refused or (fitting or pairs)[0]
    paying, uncertain = _spans(plan, [pair for pair in pairs if pair[0].depth > 0])
    if not fitting:
        advice = Advice.NONE_FITS
    elif not gaining:
        advice = Advice.UNCERTAIN if refused is not None and row.speedup <= 1.0 <= sure.high else Advice.DO_NOT
    elif not supported:
        advice = Advice.UNSUPPORTED
    elif sure.spans_one:
        advice = Advice.UNCERTAIN
    else:
        advice = Advice.SPECULATE if plan.limit is None else Advice.UP_TO_BATCH
    return Judgement(row=row, range=sure, surely_paying=paying, uncertain=uncertain, advice=advice)


def _spans(plan: Plan, drafting: Sequence[tuple[PlanRow, SpeedupRange]]) -> tuple[Spans, Spans]:
    if not drafting or not plan.setting.configured:
        return (), ()
    rows, ranges = zip(*drafting, strict=True)
    speedups, known = np.array([row.speedup for row in rows]), np.log([row.batch for row in rows])
    batches, by_batch = plan.payoff.batches, plan.payoff.speedups
    drafts = plan.setting.depths_at(plan.pricer, batches) > 0
    low, high = (
        by_batch * np.exp(np.interp(np.log(batches), known, np.log(np.array(ends) / speedups)))
        for ends in ([each.low for each in ranges], [each.high for each in ranges])
    )
    return spans_where(batches, drafts & (low > 1.0)), spans_where(batches, drafts & (low <= 1.0) & (high >= 1.0))
