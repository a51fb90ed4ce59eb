"""llama.cpp verifies a few positions at more than the price of one, in block formats only."""

from __future__ import annotations

import numpy as np
import pytest

from specmargin.app.request_schema import read_request
from specmargin.app.scenarios import scenario_of
from specmargin.app.verbs_schema import PlanRequest
from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import find_prices
from specmargin.decisions.pricer import Pricer
from specmargin.modes import RooflineForm
from specmargin.prices.llamacpp import STEP_FACTORS, LlamaCppPrices, step_factor


def test_factors_are_those_of_the_published_rates() -> None:
    """RTX 3090, Q4_0: 156.56 tokens per second one at a time, 583.77 eight at a time (llama.cpp pull request 15802)."""
    assert STEP_FACTORS[0] == 1.0
    assert STEP_FACTORS[7] == pytest.approx(np.mean([8 * 156.56 / 583.77, 8 * 105.29 / 406.71]))
    assert (np.diff(STEP_FACTORS) > 0).all()
    assert step_factor(np.array([1.0, 2.5, 100.0])).tolist() == pytest.approx(
        [1.0, (STEP_FACTORS[1] + STEP_FACTORS[2]) / 2, STEP_FACTORS[7]]
    )


@pytest.mark.parametrize(("weights", "grows"), [("q4_k", True), (None, False)])
def test_three_positions_cost_more_than_one_in_block_formats(weights: str | None, grows: bool) -> None:
    """Published for a 27B model at depth 2: a round takes 1.41 plain steps; verifying alone is priced at 1.2."""
    request = {"model": "qwen3.6-27b", "gpu": "rtx-5090", "engine": "llamacpp"}
    asked = read_request(PlanRequest, request | ({"weights": weights} if weights else {}))
    verify = Pricer(scenario_of(asked)[1]).grid([1], 2).verify_seconds[0]
    assert verify[2] / verify[0] == pytest.approx(1.2 if grows else 1.0, abs=0.05)


def test_other_engines_and_whole_step_rooflines_have_no_factor() -> None:
    device = find_device("rtx-5090")
    assert isinstance(find_prices("datasheet", device, "llamacpp", RooflineForm.PER_COMPONENT), LlamaCppPrices)
    assert not isinstance(find_prices("datasheet", device, "vllm", RooflineForm.PER_COMPONENT), LlamaCppPrices)
    whole = find_prices("datasheet", device, "llamacpp", RooflineForm.WHOLE_STEP)
    assert whole.name == "datasheet"
