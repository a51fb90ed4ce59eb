"""How sure a speed-up is: ranges from the errors of prices, from acceptance and from routing."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from specmargin.acceptance.survival import Survival, parse_acceptance
from specmargin.answers.request_schema import read_request
from specmargin.catalog.accuracy import price_errors
from specmargin.sources import assumed
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.command_line import run


def planned(model: str, gpu: str = "h200", **options: Any) -> DrafterPlan:
    request = {"model": model, "gpu": gpu, "prices": "laws", "batch": "1,16,64", **options}
    return drafter_plans(read_request(PlanRequest, request))[0]


def test_every_row_with_drafts_has_a_range_around_its_speedup() -> None:
    answer = planned("qwen3-30b-a3b", drafter="eagle")
    for row, sure in zip(answer.plan.rows, answer.ranges, strict=True):
        assert row.depth == 0 or sure.low < row.speedup < sure.high
        assert row.depth > 0 or (sure.low, sure.high) == (row.speedup, row.speedup)


def test_your_own_acceptance_narrows_the_range_to_prices_and_routing() -> None:
    borrowed = planned("qwen3-30b-a3b", drafter="eagle").headline_range
    own = planned("qwen3-30b-a3b", drafter="eagle", acceptance="0.749,0.561,0.420").headline_range
    assert borrowed is not None and own is not None
    assert own.high / own.low < borrowed.high / borrowed.low
    assert {entry.name: entry.origin for entry in own.inputs}["acceptance"] == "yours"
    assert borrowed.largest_unknown is not None and borrowed.largest_unknown.name == "acceptance"
    assert own.largest_unknown is not None and own.largest_unknown.name == "prices"


def test_parts_add_in_quadrature() -> None:
    sure = planned("qwen3-30b-a3b", drafter="eagle").headline_range
    assert sure is not None
    speedup = planned("qwen3-30b-a3b", drafter="eagle").headline_row.speedup
    assert math.log(sure.high / speedup) == pytest.approx(
        math.sqrt(sum(math.log(entry.high) ** 2 for entry in sure.inputs))
    )


def test_routing_of_the_model_itself_adds_nothing_and_a_dense_model_has_none() -> None:
    own, dense = planned("qwen3.6-35b-a3b").headline_range, planned("llama-3.1-8b").headline_range
    assert own is not None and dense is not None
    (routing,) = [entry for entry in own.inputs if entry.name == "routing"]
    assert (routing.low, routing.high) == (1.0, 1.0)
    assert "routing" not in {entry.name for entry in dense.inputs}


def test_worse_prices_give_wider_ranges() -> None:
    widths = {name: price_errors(name).high - price_errors(name).low for name in ("laws", "datasheet", "my.json")}
    assert widths["my.json"] < widths["laws"] < widths["datasheet"]


def test_a_shifted_curve_stays_a_survival_curve() -> None:
    curve = parse_acceptance("0.78,0.58,0.44")
    for shift in (-0.9, -0.1, 0.0, 0.1, 0.9):
        shifted = curve.shifted(shift, 6).by_depth
        assert np.all(np.diff(shifted) <= 0) and shifted[0] == pytest.approx(min(max(0.78 + shift, 0.0), 1.0))
    assert np.allclose(curve.shifted(0.0, 3).by_depth, [0.78, 0.58, 0.44])
    zero = Survival.constant(0.0, assumed("nothing is accepted"), 3)
    assert np.allclose(zero.shifted(0.1, 3).by_depth[0], 0.1)


def test_the_answer_says_how_sure_it_is() -> None:
    options = ["plan", "qwen3-30b-a3b", "--gpu", "h200", "--prices", "laws", "--drafter", "eagle"]
    text = " ".join(run(*options).out.split())
    assert "80% range at batch 1:" in text
    assert (
        "the largest unknown is acceptance, borrowed from other models (to narrow it: specmargin profile acceptance)"
        in text
    )
    payload = json.loads(run(*options, "--json").out)
    assert payload["rows"][0]["speedup_low"] < payload["rows"][0]["speedup"] < payload["rows"][0]["speedup_high"]
    assert [entry["name"] for entry in payload["inputs"]] == ["prices", "acceptance", "routing"]
