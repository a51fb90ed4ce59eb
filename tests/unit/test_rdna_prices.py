"""vLLM's int4 kernels on RDNA GPUs: which matrices leave the fast kernel, and what that adds to a verify step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.answers.request_schema import read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import find_prices
from specmargin.decisions.pricer import Pricer
from specmargin.modes import RooflineForm
from specmargin.prices.model import StepPrice
from specmargin.prices.rdna import RdnaPrices
from specmargin.prices.work import Component
from specmargin.step import Step
from specmargin.verbs.plan.request_schema import PlanRequest


def pricer(gpu: str = "strix-halo", weights: str | None = "int4-g128", engine: str = "vllm") -> Pricer:
    request = {"model": "qwen3.6-27b", "gpu": gpu, "engine": engine, "prices": "datasheet"}
    return Pricer(scenario_of(read_request(PlanRequest, request | ({"weights": weights} if weights else {})))[1])


def without(of: Pricer) -> Pricer:
    prices = of.scenario.prices
    assert isinstance(prices, RdnaPrices)
    return Pricer(replace(of.scenario, prices=prices.inner))


def seconds_of(price: StepPrice, component: Component) -> float:
    return next(float(np.ravel(line.seconds)[0]) for line in price.components if line.component is component)


def longer(of: Pricer, positions: int, component: Component = Component.DENSE_FFN) -> float:
    step = Step.uniform(batch=positions, context=64.0)
    return seconds_of(of.verify(step), component) - seconds_of(without(of).verify(step), component)


def test_two_positions_do_not_fit_a_wide_down_projection() -> None:
    """17,408 inputs: two positions are 34,816 values, more than the 32,768 that fit; 5,120 inputs fit five times."""
    slower = 0.76 / 0.36 - 1.0  # shares of the bandwidth in the two kernels
    down = 64 * 5120 * 17408 * (0.5 + 2 / 128) * slower  # of the bytes of all layers
    up = 2 * down
    bandwidth = 0.256e12
    assert longer(pricer(), 1) == 0.0
    assert longer(pricer(), 2) == pytest.approx(down / bandwidth, rel=1e-6)
    assert longer(pricer(), 5) == pytest.approx(down / bandwidth, rel=1e-6)
    assert longer(pricer(), 6) == pytest.approx((down + up) / bandwidth, rel=1e-6)


def test_verify_steps_take_longer_as_published() -> None:
    """Measured with vLLM 0.26 on this GPU: a round of depth 1, 2 and 3 takes 1.58, 1.73 and 1.89 plain steps."""
    request = {"model": "qwen3.6-27b", "gpu": "strix-halo", "weights": "int4-g128", "drafter": "mtp", "context": 402}
    grid = Pricer(scenario_of(read_request(PlanRequest, request))[1]).grid([1], 3)
    rounds = grid.round_seconds[0, 1:] / grid.no_spec_seconds[0]
    assert rounds == pytest.approx([1.58, 1.73, 1.89], rel=0.12)


def test_other_weights_gpus_and_engines_are_as_they_were() -> None:
    assert longer(pricer(weights=None), 4) == 0.0
    form = RooflineForm.PER_COMPONENT
    for gpu, engine in (("rx-7900-xtx", "vllm"), ("rtx-5090", "vllm"), ("strix-halo", "llamacpp")):
        assert not isinstance(find_prices(None, find_device(gpu), engine, form), RdnaPrices)
    assert isinstance(find_prices(None, find_device("r9700"), "vllm", form), RdnaPrices)


@given(positions=st.integers(1, 64))
def test_more_positions_never_take_less(positions: int) -> None:
    of = pricer()
    assert longer(of, positions) <= longer(of, positions + 1) + 1e-12
