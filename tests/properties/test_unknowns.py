"""Uncertain components and the range of a speed-up: what a wider spread may and may not do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmargin.answers.request_schema import read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.accuracy import price_errors
from specmargin.decisions.certainty import SpeedupRange, speedup_ranges
from specmargin.decisions.plan import make_plan
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.decisions.unknowns import RoundLedger, price_unknowns
from specmargin.prices.model import PriceModel, WorkPrice
from specmargin.prices.work import Component, Work
from specmargin.sources import Source, SourceKind, weakest
from specmargin.verbs.plan.request_schema import PlanRequest

CASES = [
    ("qwen3-30b-a3b", "h200", "eagle", 1),
    ("deepseek-v3", "h200", "mtp", 8),
    ("llama-3.1-8b", "rtx-4090", "model:llama-3.2-1b", 1),
]
BATCHES = [1, 8, 64]
KERNELS = [Component.ATTENTION, Component.ATTENTION_PROJECTIONS, Component.LM_HEAD]


@dataclass(frozen=True, kw_only=True)
class Uncertain:
    """Prices of another model, some components of which are said to be uncertain, or taken for longer."""

    inner: PriceModel
    spreads: Mapping[Component, float]
    factors: Mapping[Component, float]

    @property
    def name(self) -> str:
        return self.inner.name

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        prices = zip(works, self.inner.price(works), strict=True)
        return tuple(self._marked(work.component, price) for work, price in prices)

    def _marked(self, component: Component, price: WorkPrice) -> WorkPrice:
        source = replace(price.source, spread=self.spreads.get(component, 0.0))
        return replace(price.scaled(np.asarray(self.factors.get(component, 1.0))), source=source, parts_spread=None)


@cache
def scenario(case: tuple[str, str, str, int]) -> Scenario:
    model, gpu, drafter, gpus = case
    asked: dict[str, Any] = {"model": model, "gpu": gpu, "drafter": drafter, "gpus": gpus}
    if gpus > 1:
        asked["parallel"] = "tp"
    return scenario_of(read_request(PlanRequest, asked))[1]


def pricer(
    case: tuple[str, str, str, int],
    spreads: Mapping[Component, float],
    factors: Mapping[Component, float] | None = None,
    engine: float = 0.0,
) -> Pricer:
    of = scenario(case)
    prices = Uncertain(inner=of.prices, spreads=spreads, factors=factors or {})
    time = replace(of.engine_time, launch_source=None, source=replace(of.engine_time.source, spread=engine))
    return Pricer(replace(of, prices=prices, engine_time=time))


def ranges_of(priced: Pricer) -> tuple[SpeedupRange, ...]:
    plan = make_plan(priced, BATCHES, Setting.fixed(2))
    return speedup_ranges(plan, price_errors("laws", "h200"), own_acceptance=True)


@settings(max_examples=12, deadline=None)
@given(
    case=st.sampled_from(CASES),
    component=st.sampled_from(KERNELS),
    spread=st.floats(0.01, 0.6),
    wider=st.floats(1.0, 2.0),
)
def test_a_wider_spread_never_narrows_a_range(
    case: tuple[str, str, str, int], component: Component, spread: float, wider: float
) -> None:
    known = ranges_of(pricer(case, {}))
    narrow = ranges_of(pricer(case, {component: spread}))
    wide = ranges_of(pricer(case, {component: spread * wider}))
    for none, less, more in zip(known, narrow, wide, strict=True):
        assert more.low <= less.low * (1 + 1e-12) and less.low <= none.low * (1 + 1e-12)
        assert more.high >= less.high * (1 - 1e-12) and less.high >= none.high * (1 - 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_without_spreads_the_range_is_that_of_its_kind_of_prices(case: tuple[str, str, str, int]) -> None:
    errors = price_errors("laws", "h200")
    assert not price_unknowns(pricer(case, {}), BATCHES, 2)
    for sure in ranges_of(pricer(case, {})):
        prices = sure.inputs[0]
        assert prices.parts == ()
        assert (np.log(prices.low), np.log(prices.high)) == pytest.approx((errors.low, errors.high))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("component", KERNELS)
def test_an_unknown_moves_the_speedup_as_pricing_the_component_anew_does(
    case: tuple[str, str, str, int], component: Component
) -> None:
    """Plain step, verify step, drafter and launches at both ends of the range."""
    spread, depth = 0.4, 2
    (unknown,) = price_unknowns(pricer(case, {component: spread}), BATCHES, depth)
    moves = []
    for side in (-1, 1):
        anew = pricer(case, {}, {component: float(np.exp(side * spread))})
        grids = [each.grid(BATCHES, depth).speedup[:, depth] for each in (anew, pricer(case, {}))]
        moves.append(np.log(grids[0] / grids[1]))
    np.testing.assert_allclose(unknown.low, np.minimum(np.min(moves, axis=0), 0.0), atol=1e-9)
    np.testing.assert_allclose(unknown.high, np.maximum(np.max(moves, axis=0), 0.0), atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_an_uncertain_engine_widens_the_range(case: tuple[str, str, str, int]) -> None:
    (unknown,) = price_unknowns(pricer(case, {}, engine=0.3), BATCHES, 2)
    assert unknown.component is Component.ENGINE
    assert np.all(unknown.high - unknown.low > 0.0)


def test_launches_with_a_source_of_their_own_move_steps_and_drafts_together() -> None:
    """A draft model without graphs: both ends of the range, priced anew."""
    of = scenario(("qwen3-14b", "h200", "model:qwen3-0.6b", 1))
    assert of.engine_time.launch_source is not None
    spread, batches, depth = of.engine_time.launch_source.spread, [1], 5
    unknowns = {each.component: each for each in price_unknowns(Pricer(of), batches, depth)}
    unknown = unknowns[Component.LAUNCHES]
    times = [of.engine_time.with_launches(float(np.exp(side * spread))) for side in (0, -1, 1)]
    here, less, more = (Pricer(replace(of, engine_time=t)).grid(batches, depth).speedup[:, depth] for t in times)
    np.testing.assert_allclose(unknown.low, np.log(more / here), atol=1e-9)
    np.testing.assert_allclose(unknown.high, np.log(less / here), atol=1e-9)


def test_parts_of_a_component_are_weighted_by_their_time() -> None:
    """A component of which one part is uncertain is less uncertain than that part."""
    case = CASES[0]
    ledger = RoundLedger.of(pricer(case, {Component.ATTENTION: 0.2, Component.LM_HEAD: 0.1}), [1.0], [2.0])
    spreads = {line.component: line.spread for line in ledger.target.components}
    assert np.allclose(spreads[Component.ATTENTION], 0.2) and np.allclose(spreads[Component.LM_HEAD], 0.1)
    assert not np.any(spreads[Component.ATTENTION_PROJECTIONS])


def test_what_a_round_grows_by_adds_up_to_the_round() -> None:
    for case in CASES:
        priced = pricer(case, {})
        grown = sum(RoundLedger.of(priced, BATCHES, 2).growth().values())
        grid = priced.grid(BATCHES, 2)
        np.testing.assert_allclose(grown, grid.full_round_seconds[:, 2] - grid.no_spec_seconds)


def test_the_most_uncertain_of_sources_of_one_kind_is_named() -> None:
    sure, unsure = (Source(kind=SourceKind.SCALED, detail=str(s), spread=s) for s in (0.0, 0.3))
    assert weakest([sure, unsure]) is unsure and weakest([unsure, sure]) is unsure
