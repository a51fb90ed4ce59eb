"""How sure a speed-up is: an 80% range, made of what each input could be.

Prices: errors of predicted speed-ups against published ones, by how prices are known. Acceptance: the standard error of
a bank, the spread between benchmarks for a curve of this model, the spread of published drafters for a borrowed one.
Routing that is assumed: as far as uniform routing lies, on both sides. Parts are independent, so their logarithms add
in quadrature, on each side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specmargin.acceptance.survival import Survival
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow
from specmargin.decisions.scenario import Scenario
from specmargin.phrases import say
from specmargin.prices.accuracy import PriceErrors
from specmargin.routing.profile import UNIFORM
from specmargin.sources import SourceKind

PRICES, ACCEPTANCE, ROUTING = "prices", "acceptance", "routing"
PHRASES = {
    "certainty": (
        "80% range at batch {row_batch}: {low:.2f} to {high:.2f}×[; the largest unknown is {unknown} (to narrow it: "
        "{narrow})].",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """One input: where it comes from, and the factors by which it could change the speed-up."""

    name: str
    origin: str  # in a word or two
    phrase: str  # in a sentence: "acceptance, borrowed from other models"
    low: float
    high: float
    narrow: str  # how to know it better; "" if it is as good as it gets

    @property
    def width(self) -> float:
        return math.log(self.high / self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRange:
    low: float
    high: float
    inputs: tuple[InputRange, ...]

    @property
    def largest_unknown(self) -> InputRange | None:
        """The input that widens the range most, among those that can be known better."""
        return max((entry for entry in self.inputs if entry.narrow), key=lambda entry: entry.width, default=None)


def speedup_ranges(plan: Plan, errors: PriceErrors, *, own_acceptance: bool) -> tuple[SpeedupRange, ...]:
    """The range of each row of the plan."""
    uniform: list[float | None] = [None] * len(plan.rows)
    if borrowed_routing(plan.scenario):
        depth = max(row.depth for row in plan.rows)
        grid = plan.pricer.under_uniform_routing().grid([row.batch for row in plan.rows], depth)
        uniform = [float(grid.speedup[i, row.depth]) for i, row in enumerate(plan.rows)]
    return tuple(
        _range(plan, row, errors, other, own_acceptance=own_acceptance)
        for row, other in zip(plan.rows, uniform, strict=True)
    )


def borrowed_routing(scenario: Scenario) -> bool:
    """Whether the model has experts, and a routing that was measured on another."""
    borrowed = scenario.routing.source.kind is SourceKind.ASSUMED and scenario.routing is not UNIFORM
    return scenario.architecture.is_moe and borrowed


def _range(
    plan: Plan, row: PlanRow, errors: PriceErrors, uniform_speedup: float | None, *, own_acceptance: bool
) -> SpeedupRange:
    """A row without drafts has no range: nothing is predicted but plain decoding."""
    if row.depth == 0:
        return SpeedupRange(low=row.speedup, high=row.speedup, inputs=())
    survival = plan.scenario.survival
    inputs = [prices_range(plan.scenario, errors), acceptance_range(survival, row.depth, own=own_acceptance)]
    if plan.scenario.architecture.is_moe:
        factor = None if uniform_speedup is None else abs(math.log(uniform_speedup / row.speedup))
        inputs.append(routing_range(plan.scenario, factor))
    below = math.hypot(*(math.log(entry.low) for entry in inputs))
    above = math.hypot(*(math.log(entry.high) for entry in inputs))
    return SpeedupRange(low=row.speedup * math.exp(-below), high=row.speedup * math.exp(above), inputs=tuple(inputs))


_PRICE_ORIGINS = {
    "tables": "measured kernels",
    "laws": "measured kernels",
    "scaled": "scaled kernels",
    "datasheet": "datasheet",
}


def prices_range(scenario: Scenario, errors: PriceErrors) -> InputRange:
    origin = _PRICE_ORIGINS.get(scenario.prices.name, "yours")
    return InputRange(
        name=PRICES,
        origin=origin,
        phrase=f"prices ({origin})",
        low=math.exp(min(errors.low, 0.0)),
        high=math.exp(max(errors.high, 0.0)),
        narrow="" if origin == "yours" else "specmargin measure vllm",
    )


def acceptance_range(survival: Survival, depth: int, *, own: bool) -> InputRange:
    committed = 1.0 + float(survival.up_to(depth).sum())
    low, high = (
        (1.0 + float(survival.shifted(shift, depth).by_depth.sum())) / committed for shift in survival.shift_range
    )
    if own:
        origin, phrase, narrow = "yours", "acceptance", ""
    elif survival.source.kind is SourceKind.ASSUMED:
        origin, phrase = "borrowed", "acceptance, borrowed from other models"
        narrow = "specmargin profile acceptance"
    else:
        origin, phrase = "benchmark", "acceptance, measured on a benchmark"
        narrow = "specmargin profile acceptance"
    return InputRange(name=ACCEPTANCE, origin=origin, phrase=phrase, low=low, high=high, narrow=narrow)


def routing_range(scenario: Scenario, factor: float | None) -> InputRange:
    """Assumed routing lies halfway between uniform routing and another model's, so both are equally far.

    `factor`: how far, as a logarithm; None where routing is not assumed.
    """
    if factor is None:
        origin = "uniform" if scenario.routing is UNIFORM else "captured"
        return InputRange(name=ROUTING, origin=origin, phrase="routing", low=1.0, high=1.0, narrow="")
    return InputRange(
        name=ROUTING,
        origin="borrowed",
        phrase="routing, borrowed from another model",
        low=math.exp(-factor),
        high=math.exp(factor),
        narrow="specmargin profile routing",
    )


def certainty_text(of: SpeedupRange, batch: int) -> str:
    unknown = of.largest_unknown
    known = {} if unknown is None else {"unknown": unknown.phrase, "narrow": unknown.narrow}
    return say("certainty", PHRASES, {"row_batch": batch, "low": of.low, "high": of.high} | known) or ""


def inputs_text(of: SpeedupRange) -> str:
    """Where each input comes from, in one line."""
    return "; ".join(f"{entry.name}: {entry.origin}" for entry in of.inputs)
