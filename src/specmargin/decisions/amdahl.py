"""Cohere's decomposition: only routed experts grow with a run, so T(K+1)/T(1) = f · unique/k + (1 − f)."""

from __future__ import annotations

from dataclasses import dataclass

from specmargin.decisions.pricer import Pricer
from specmargin.errors import ScenarioError
from specmargin.prices.work import ROUTED
from specmargin.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl:
    """A run of `depth` + 1 positions against one, at one batch."""

    batch: int
    depth: int
    expert_share: float  # f: routed experts' share of the step without drafts
    expert_ratio: float  # distinct experts with drafts over those without
    predicted_ratio: float
    priced_ratio: float  # by the scenario's prices, in which every component grows


def amdahl_ratio(expert_share: float, expert_ratio: float) -> float:
    return expert_share * expert_ratio + 1.0 - expert_share


def amdahl(pricer: Pricer, *, batch: int, depth: int) -> Amdahl:
    plain, deep = (Step.uniform(batch=batch, depth=d, context=pricer.scenario.context) for d in (0, depth))
    before, after = pricer.verify(plain), pricer.verify(deep)
    distinct = [pricer.distinct_experts(step) for step in (plain, deep)]
    if distinct[0] is None or distinct[1] is None:
        raise ScenarioError(f"{pricer.scenario.architecture.name} is dense: it has no expert time to split off")
    share = sum(float(before.share(component)) for component in ROUTED)
    ratio = float(distinct[1] / distinct[0])
    return Amdahl(
        batch=batch,
        depth=depth,
        expert_share=share,
        expert_ratio=ratio,
        predicted_ratio=amdahl_ratio(share, ratio),
        priced_ratio=float(after.total_seconds / before.total_seconds),
    )
