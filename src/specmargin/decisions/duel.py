"""Width against depth: is one more position better spent on another sequence or on a draft token?

A third side is a bound, not a choice: the draft token committed without verification (`decisions/unverified.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from specmargin.decisions.plan import check_range
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.unverified import unverified_seconds
from specmargin.errors import AcceptanceError
from specmargin.limits import MAX_BATCH
from specmargin.prices.drafters import round_seconds
from specmargin.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    goodput_tokens_per_second: float
    distinct_experts: float | None
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    batch: int
    alpha: float
    width: Side
    depth: Side
    unverified: Side  # an upper bound, lossy: the draft token is committed without verification
    turning_alpha: float  # the acceptance at which both give the same goodput; above 1 where depth cannot win

    @property
    def winner(self) -> str:
        return "depth" if self.depth.goodput_tokens_per_second > self.width.goodput_tokens_per_second else "width"


def duel(pricer: Pricer, *, batch: int, alpha: float) -> Duel:
    """One more position next to `batch` plain sequences: another sequence, or a draft token of one of them."""
    check_range("batch", [batch], 1, MAX_BATCH)
    if not 0.0 <= alpha <= 1.0:
        raise AcceptanceError(f"--alpha must lie in 0..1, got {alpha:g}")
    scenario = pricer.scenario
    plain = Step.uniform(batch=batch, depth=0, context=scenario.context)
    wider = Step.uniform(batch=batch + 1, depth=0, context=scenario.context)
    deeper = plain.one_position_more()
    width_seconds = float(pricer.verify(wider).total_seconds)
    more_local = plain.divided(scenario.layout.sequence_ranks).one_position_more()
    verify_seconds = pricer.verify(deeper, more_local).total_seconds
    draft_seconds = pricer.draft_seconds(1, 1, scenario.context)
    depth_seconds = float(round_seconds(scenario.drafter, verify_seconds, draft_seconds))
    plain_seconds = pricer.verify(plain).total_seconds
    bound_seconds = float(unverified_seconds(scenario.drafter, plain_seconds, draft_seconds))
    return Duel(
        batch=batch,
        alpha=alpha,
        width=_side(pricer, wider, tokens=batch + 1, seconds=width_seconds),
        depth=_side(pricer, deeper, tokens=batch + alpha, seconds=depth_seconds),
        unverified=_side(pricer, plain, tokens=batch + 1, seconds=bound_seconds),
        turning_alpha=(batch + 1) / width_seconds * depth_seconds - batch,
    )


def _side(pricer: Pricer, step: Step, *, tokens: float, seconds: float) -> Side:
    distinct = pricer.distinct_experts(step)
    return Side(
        goodput_tokens_per_second=tokens / seconds,
        distinct_experts=None if distinct is None else float(distinct),
        step_seconds=seconds,
    )
