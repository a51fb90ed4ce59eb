"""The ledger of one step: its components, what one more position adds to each, its drafting, and the whole round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component, rounded_seconds
from specmargin.decisions.unverified import UnverifiedRound, unverified_seconds
from specmargin.decisions.warnings import price_warnings
from specmargin.prices.drafters import round_seconds
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    pricer: Pricer
    batch: int
    depth: int
    now: StepPrice
    more: StepPrice  # with one position more
    drafting: StepPrice | None

    @classmethod
    def of(cls, pricer: Pricer, *, batch: int, depth: int) -> Ledger:
        now, more = pricer.marginal(Step.uniform(batch=batch, depth=depth, context=pricer.scenario.context))
        drafting = pricer.draft_ledger(batch, depth) if depth > 0 else None
        return cls(pricer=pricer, batch=batch, depth=depth, now=now, more=more, drafting=drafting)

    @property
    def distinct_experts(self) -> float | None:
        step = Step.uniform(batch=self.batch, depth=self.depth, context=self.pricer.scenario.context)
        distinct = self.pricer.distinct_experts(step)
        return None if distinct is None else float(distinct)

    @property
    def verify_seconds(self) -> float:
        return float(self.now.total_seconds)

    @property
    def draft_seconds(self) -> float:
        return 0.0 if self.drafting is None else float(self.drafting.total_seconds)

    @property
    def round_seconds(self) -> float:
        return float(
            round_seconds(self.pricer.scenario.drafter, self.now.total_seconds, np.asarray(self.draft_seconds))
        )

    @property
    def marginal_seconds(self) -> float:
        """The time that one more position adds to the step."""
        ranks = self.pricer.scenario.layout.sequence_ranks
        return rounded_seconds((float(self.more.total_seconds) - self.verify_seconds) / ranks)

    @property
    def components(self) -> list[tuple[ComponentPrice, float]]:
        """Each component with the time that one more position adds to it."""
        ranks = self.pricer.scenario.layout.sequence_ranks
        added = marginal_by_component(self.now, self.more, positions=ranks)
        return [(line, rounded_seconds(float(seconds))) for line, seconds in added]

    @property
    def bound(self) -> UnverifiedRound | None:
        """The round without verification; None without drafts."""
        depth, scenario = self.depth, self.pricer.scenario
        if depth == 0:
            return None
        step = Step.uniform(batch=self.batch, depth=0, context=scenario.context)
        plain = self.pricer.verify(step).total_seconds
        return UnverifiedRound(
            depth=depth,
            drafted=float(depth),
            plain_seconds=float(plain),
            round_seconds=self.round_seconds,
            unverified_seconds=float(unverified_seconds(scenario.drafter, plain, np.asarray(self.draft_seconds))),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        return price_warnings(self.pricer, batch=self.batch, depth=self.depth)
