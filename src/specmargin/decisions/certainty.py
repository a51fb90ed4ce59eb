"""How sure a speed-up is: an 80% range, made of what each input could be.

Prices: errors of predicted speed-ups against published ones, by how prices are known, and what is uncertain about each
component by itself (`decisions/unknowns.py`). Acceptance: the standard error of a bank, the spread between benchmarks
for a curve of this model, the spread of published drafters for a borrowed one. Routing that is assumed: as far as
uniform routing lies, on both sides. Parts are independent, so their logarithms add in quadrature, on each side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.decisions.plan import Plan
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.unknowns import PriceUnknown, price_unknowns
from specmargin.prices.accuracy import PriceErrors
from specmargin.prices.work import Component
from specmargin.routing.profile import UNIFORM
from specmargin.sources import SourceKind

PRICES, ACCEPTANCE, ROUTING = "prices", "acceptance", "routing"
#: By engine: what measures prices of one's own. The kernels of llama.cpp are not measured: its server is.
_BENCHMARK = "the benchmark that --explain prints"
_MEASURES = {
    "vllm": "specmargin measure vllm",
    "sglang": "specmargin measure gpu",
    "trtllm": "specmargin measure gpu",
    "llamacpp": "specmargin measure llamacpp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """One input: where it comes from, and the factors by which it could change the speed-up."""

    name: str
    origin: str  # in a word or two
    phrase: str  # in a sentence: "step times"
    low: float
    high: float
    narrow: str  # how to know it better; "" if it is as good as it gets
    parts: tuple[InputRange, ...] = ()  # uncertain components of prices, which low and high include

    @property
    def width(self) -> float:
        return math.log(self.high / self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRange:
    low: float
    high: float
    inputs: tuple[InputRange, ...]

    @classmethod
    def around(cls, speedup: float, inputs: tuple[InputRange, ...]) -> SpeedupRange:
        below = math.hypot(*(math.log(entry.low) for entry in inputs))
        above = math.hypot(*(math.log(entry.high) for entry in inputs))
        return cls(low=speedup * math.exp(-below), high=speedup * math.exp(above), inputs=inputs)

    @property
    def spans_one(self) -> bool:
        """Whether a gain and a loss are both within the range. Without drafts nothing is predicted."""
        return bool(self.inputs) and self.low <= 1.0 <= self.high

    @property
    def largest_unknown(self) -> InputRange | None:
        """The input that widens the range most, among those that can be known better."""
        return max((entry for entry in self.inputs if entry.narrow), key=lambda entry: entry.width, default=None)


def speedup_ranges(plan: Plan, errors: PriceErrors, *, own_acceptance: bool) -> tuple[SpeedupRange, ...]:
    """The range of each row of the plan. A row without drafts has none: it predicts plain decoding alone."""
    drafting = [row for row in plan.rows if row.depth > 0]
    batches, depths = [row.batch for row in drafting], [row.depth for row in drafting]
    by_batch = {}
    for row, (prices, *routing) in zip(drafting, step_inputs(plan.pricer, errors, batches, depths), strict=True):
        acceptance = acceptance_range(plan.scenario.survival, row.depth, own=own_acceptance)
        by_batch[row.batch] = SpeedupRange.around(row.speedup, (prices, acceptance, *routing))
    return tuple(
        by_batch[row.batch] if row.depth > 0 else SpeedupRange(low=row.speedup, high=row.speedup, inputs=())
        for row in plan.rows
    )


def step_inputs(
    pricer: Pricer, errors: PriceErrors, batches: Sequence[int], depths: Sequence[int]
) -> list[tuple[InputRange, ...]]:
    """At each of these points, with drafts: prices, and the routing of a model that has experts."""
    if not batches:
        return []
    scenario, moved = pricer.scenario, routing_shifts(pricer, batches, depths)
    unknowns = price_unknowns(pricer, batches, depths)
    prices = [prices_range(scenario, errors, unknowns, point) for point in range(len(batches))]
    if not scenario.architecture.is_moe:
        return [(each,) for each in prices]
    shifts: Sequence[float | None] = [None] * len(batches) if moved is None else moved
    return [(each, routing_range(scenario, shift)) for each, shift in zip(prices, shifts, strict=True)]


def routing_shifts(pricer: Pricer, batches: Sequence[int], depths: Sequence[int]) -> list[float] | None:
    """How far uniform routing would move the logarithm of each speed-up; None where routing is not assumed."""
    if not borrowed_routing(pricer.scenario):
        return None
    grids = [each.grid(batches, max(depths)) for each in (pricer, pricer.under_uniform_routing())]
    at = (np.arange(len(batches)), np.asarray(depths))
    here, uniform = (grid.speedup[at] for grid in grids)
    return [float(shift) for shift in np.abs(np.log(uniform / here))]


def borrowed_routing(scenario: Scenario) -> bool:
    """Whether the model has experts, and a routing that was measured on another."""
    borrowed = scenario.routing.source.kind is SourceKind.ASSUMED and scenario.routing is not UNIFORM
    return scenario.architecture.is_moe and borrowed


_KERNELS = "measured kernels"
_PRICE_ORIGINS = {
    "tables": _KERNELS,
    "laws": _KERNELS,
    "scaled": "scaled kernels",
    "datasheet": "datasheet",
    "processor": "published kernel rates",
    "llamacpp": "llama.cpp kernels",
    "mlx": "MLX kernels",
}
_COMPONENT_ORIGINS = {
    SourceKind.MEASURED: "measured elsewhere",
    SourceKind.SILICON: "public kernel tables",
    SourceKind.PUBLISHED: "published figures",
    SourceKind.SCALED: "scaled",
    SourceKind.DATASHEET: "datasheet",
    SourceKind.ASSUMED: "assumed",
}


def prices_range(
    scenario: Scenario, errors: PriceErrors, unknowns: Sequence[PriceUnknown] = (), point: int = 0
) -> InputRange:
    """The error of prices of this kind, and what is uncertain about single components at one `point` of them.

    Where a component is more uncertain than prices of this kind are, it is named.
    """
    origin = _PRICE_ORIGINS.get(scenario.prices.name, "yours")
    general = InputRange(
        name=PRICES,
        origin=origin,
        phrase="step times",
        low=math.exp(min(errors.low, 0.0)),
        high=math.exp(max(errors.high, 0.0)),
        narrow="" if origin == "yours" else _MEASURES.get(scenario.engine, _BENCHMARK),
    )
    parts = [
        _component_range(unknown, point, narrow=_MEASURES.get(scenario.engine, _BENCHMARK)) for unknown in unknowns
    ]
    parts = sorted((part for part in parts if part.width > 0.0), key=lambda part: -part.width)
    if not parts:
        return general
    both = SpeedupRange.around(1.0, (general, *parts))
    named = max(general, parts[0], key=lambda part: part.width)
    return replace(named, name=PRICES, origin=origin, low=both.low, high=both.high, parts=tuple(parts))


def _component_range(unknown: PriceUnknown, point: int, *, narrow: str) -> InputRange:
    origin = _COMPONENT_ORIGINS[unknown.source.kind]
    return InputRange(
        name=str(unknown.component),
        origin=origin,
        phrase=_NAMES.get(unknown.component, str(unknown.component)),
        low=math.exp(float(unknown.low.flat[point])),
        high=math.exp(float(unknown.high.flat[point])),
        narrow=narrow,
    )


_NAMES = {Component.ENGINE: "the engine's own time", Component.LAUNCHES: "kernel launches"}


def acceptance_range(survival: Survival, depth: int, *, own: bool) -> InputRange:
    committed = 1.0 + float(survival.up_to(depth).sum())
    low, high = (
        (1.0 + float(survival.shifted(shift, depth).by_depth.sum())) / committed for shift in survival.shift_range
    )
    if own:
        origin, narrow = "yours", ""
    else:
        origin = "borrowed" if survival.source.kind is SourceKind.ASSUMED else "benchmark"
        narrow = "specmargin profile acceptance"
    return InputRange(name=ACCEPTANCE, origin=origin, phrase=ACCEPTANCE, low=low, high=high, narrow=narrow)


def routing_range(scenario: Scenario, factor: float | None) -> InputRange:
    """Assumed routing lies halfway between uniform routing and another model's, so both are equally far.

    `factor`: how far, as a logarithm; None where routing is not assumed.
    """
    if factor is None:
        origin = "uniform" if scenario.routing is UNIFORM else "captured"
        return InputRange(name=ROUTING, origin=origin, phrase=ROUTING, low=1.0, high=1.0, narrow="")
    return InputRange(
        name=ROUTING,
        origin="borrowed",
        phrase=ROUTING,
        low=math.exp(-factor),
        high=math.exp(factor),
        narrow="specmargin profile routing",
    )


def inputs_text(of: SpeedupRange) -> str:
    """Where each input comes from, in one line."""
    return "; ".join(f"{entry.name}: {entry.origin}" for entry in of.inputs)
