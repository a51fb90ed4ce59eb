"""The answer to a `price` request: the ledger of one step and of its drafting, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from specmargin.answers.scenarios import scenario_of
from specmargin.answers.stamp import stamped
from specmargin.app.unverified import round_json
from specmargin.app.verbs_schema import PriceRequest
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component, rounded_seconds
from specmargin.decisions.unverified import UnverifiedRound, unverified_seconds
from specmargin.decisions.warnings import price_warnings
from specmargin.prices.drafters import round_seconds
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.step import Step
from specmargin.words import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    request: PriceRequest
    pricer: Pricer
    now: StepPrice
    more: StepPrice  # with one position more
    drafting: StepPrice | None

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
        return (float(self.more.total_seconds) - self.verify_seconds) / ranks

    @property
    def components(self) -> list[tuple[ComponentPrice, float]]:
        """Each component with the time that one more position adds to it."""
        ranks = self.pricer.scenario.layout.sequence_ranks
        added = marginal_by_component(self.now, self.more, positions=ranks)
        return [(line, rounded_seconds(float(seconds))) for line, seconds in added]

    @property
    def bound(self) -> UnverifiedRound | None:
        """The round without verification; None without drafts."""
        depth, scenario = self.request.depth, self.pricer.scenario
        if depth == 0:
            return None
        step = Step.uniform(batch=self.request.batch, depth=0, context=scenario.context)
        plain = self.pricer.verify(step).total_seconds
        return UnverifiedRound(
            depth=depth,
            drafted=float(depth),
            plain_seconds=float(plain),
            round_seconds=self.round_seconds,
            unverified_seconds=float(unverified_seconds(scenario.drafter, plain, np.asarray(self.draft_seconds))),
        )

    @property
    def verdict(self) -> str:
        batch, depth, verify = self.request.batch, self.request.depth, self.verify_seconds
        share = self.marginal_seconds / (verify / (batch * (depth + 1)))
        return (
            f"A step of {batch} sequences × {depth + 1} positions takes {duration(verify)}; one more position adds "
            f"{duration(self.marginal_seconds)}, {share:.0%} of the average position."
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        return price_warnings(self.pricer, batch=self.request.batch, depth=self.request.depth)


def ledger_of(request: PriceRequest) -> Ledger:
    _, scenario = scenario_of(request)
    pricer = Pricer(scenario)
    pricer.check_memory()
    now, more = pricer.marginal(_step(request, scenario.context))
    drafting = pricer.draft_ledger(request.batch, request.depth)
    return Ledger(request=request, pricer=pricer, now=now, more=more, drafting=drafting)


def _step(request: PriceRequest, context: float) -> Step:
    return Step.uniform(batch=request.batch, depth=request.depth, context=context)


def ledger_json(ledger: Ledger) -> dict[str, Any]:
    """The JSON of `specmargin price --json`."""
    scenario, request = ledger.pricer.scenario, ledger.request
    distinct = ledger.pricer.distinct_experts(_step(request, scenario.context))
    drafted = [] if ledger.drafting is None else [_line(line, None) for line in ledger.drafting.components]
    bound = ledger.bound
    values = {
        "schema": "specmargin.price/1",
        "model": scenario.architecture.name,
        "gpu": scenario.device.name,
        "gpus": scenario.layout.gpus,
        "parallel": str(scenario.layout.parallel),
        "batch": request.batch,
        "depth": request.depth,
        "context": scenario.context,
        "distinct_experts": None if distinct is None else float(distinct),
        "components": [_line(line, added) for line, added in ledger.components],
        "total_seconds": ledger.verify_seconds,
        "draft": {
            "drafter": scenario.drafter.name,
            "components": drafted,
            "total_seconds": ledger.draft_seconds,
        },
        "round_seconds": ledger.round_seconds,
        "unverified": None if bound is None else round_json(bound),
        "prices": scenario.prices.name,
        "warnings": list(ledger.warnings),
        "sources": {name: str(source) for name, source in ledger.pricer.sources.items() if name != "acceptance"},
    }
    return stamped(values, request, scenario)


def _line(line: ComponentPrice, marginal: float | None) -> dict[str, Any]:
    return {
        "name": str(line.component),
        "seconds": float(line.seconds),
        "bytes": float(line.bytes),
        "flops": float(line.flops),
        "marginal_seconds": marginal,
        "bound_by": str(line.resource()),
        "source": str(line.source),
    }
