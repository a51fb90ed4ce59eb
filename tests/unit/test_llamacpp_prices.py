"""llama.cpp verifies a few positions at more than the price of one, in block formats only."""

from __future__ import annotations

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
from specmargin.prices.llamacpp import STEP_FACTORS, LlamaCppPrices, integer_ratio, step_factor
from specmargin.verbs.plan.request_schema import PlanRequest


def test_factors_are_those_of_the_published_rates() -> None:
    """RTX 3090, Q4_0: 156.56 tokens per second one at a time, 583.77 eight at a time (llama.cpp pull request 15802)."""
    assert STEP_FACTORS[0] == 1.0
    assert STEP_FACTORS[7] == pytest.approx(np.mean([8 * 156.56 / 583.77, 8 * 105.29 / 406.71]))
    assert (np.diff(STEP_FACTORS) > 0).all()
    assert step_factor(np.array([1.0, 2.5, 100.0]), 1.0).tolist() == pytest.approx(
        [1.0, (STEP_FACTORS[1] + STEP_FACTORS[2]) / 2, STEP_FACTORS[7]]
    )


def test_integer_operations_per_byte_decide_how_much_a_position_adds() -> None:
    """An RTX 3090 is the reference; an RTX 4090 has 2.2 times its ratio, an A100 half, an M3 Ultra 0.46."""
    ratios = {name: integer_ratio(find_device(name)) for name in ("rtx-3090", "rtx-4090", "a100", "m3-ultra")}
    assert ratios == pytest.approx({"rtx-3090": 1.0, "rtx-4090": 2.16, "a100": 0.504, "m3-ultra": 0.457}, rel=0.01)


def test_an_apple_gpu_as_published() -> None:
    """M1 Pro, llama 3B Q4_0: 72.07, 89.35, 125.13, 140.56 tokens per second at 1 to 4 (llama.cpp pull 10581)."""
    measured = np.array([2, 3, 4]) * 72.07 / np.array([89.35, 125.13, 140.56])
    ratio = (5.2e12 / 200e9) / (71e12 / 936e9)  # M1 Pro: 5.2 TFLOP/s, 200 GB/s
    assert step_factor(np.array([2.0, 3.0, 4.0]), ratio) == pytest.approx(measured, rel=0.17)
    assert (step_factor(np.array([2.0, 3.0, 4.0]), 1.0) < 0.72 * measured).all()  # the RTX 3090's own are too low


@given(positions=st.floats(1.0, 64.0), ratio=st.floats(0.05, 20.0))
def test_a_factor_grows_with_positions_and_falls_with_integer_operations(positions: float, ratio: float) -> None:
    factor = float(step_factor(np.array(positions), ratio))
    assert factor >= 1.0
    assert factor <= float(step_factor(np.array(positions + 1.0), ratio)) + 1e-9
    assert factor >= float(step_factor(np.array(positions), 1.5 * ratio)) - 1e-9
    assert factor <= 1.0 + positions / ratio  # never more than the integer work itself adds


@pytest.mark.parametrize(("weights", "grows"), [("q4_k", True), (None, False)])
def test_three_positions_cost_more_than_one_in_block_formats(weights: str | None, grows: bool) -> None:
    """Published for a 27B model at depth 2: a round takes 1.67 plain steps; verifying alone is priced at 1.2."""
    request = {"model": "qwen3.6-27b", "gpu": "rtx-3090", "engine": "llamacpp"}
    asked = read_request(PlanRequest, request | ({"weights": weights} if weights else {}))
    verify = Pricer(scenario_of(asked)[1]).grid([1], 2).verify_seconds[0]
    assert verify[2] / verify[0] == pytest.approx(1.2 if grows else 1.0, abs=0.05)


def test_other_engines_and_whole_step_rooflines_have_no_factor() -> None:
    device = find_device("rtx-5090")
    assert isinstance(find_prices("datasheet", device, "llamacpp", RooflineForm.PER_COMPONENT), LlamaCppPrices)
    assert not isinstance(find_prices("datasheet", device, "vllm", RooflineForm.PER_COMPONENT), LlamaCppPrices)
    whole = find_prices("datasheet", device, "llamacpp", RooflineForm.WHOLE_STEP)
    assert whole.name == "datasheet"
