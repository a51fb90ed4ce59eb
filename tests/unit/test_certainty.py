"""How sure a speed-up is: ranges from the errors of prices, from acceptance and from routing."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specmargin
from specmargin.acceptance.survival import Survival, parse_acceptance
from specmargin.answers.request_schema import read_request
from specmargin.catalog.accuracy import price_errors
from specmargin.sources import assumed
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.plan.values import plan_values
from tests.command_line import run


def planned(model: str, gpu: str = "h200", **options: Any) -> DrafterPlan:
    request = {"model": model, "gpu": gpu, "prices": "laws", "batch": "1,16,64", **options}
    given_ones = {name: value for name, value in request.items() if value is not None}
    return drafter_plans(read_request(PlanRequest, given_ones))[0]


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
    def width(prices: str, gpu: str) -> float:
        errors = price_errors(prices, gpu)
        return errors.high - errors.low

    assert width("my.json", "b200") == width("laws", "h200") < width("laws", "b200") < width("datasheet", "h200")


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
    assert re.match(
        r"Yes, up to batch 256: \d\.\d\d× as fast at batch 1 with eagle, likely \d\.\d\d–\d\.\d\d×\. ", text
    )
    assert "Largest uncertainty: acceptance; narrow it with specmargin profile acceptance." in text
    payload = json.loads(run(*options, "--json").out)
    assert payload["rows"][0]["speedup_low"] < payload["rows"][0]["speedup"] < payload["rows"][0]["speedup_high"]
    assert [entry["name"] for entry in payload["inputs"]] == ["prices", "acceptance", "routing"]


# --- advice ---


def judged(speedups: dict[int, tuple[float, float, float]], **options: Any) -> tuple[DrafterPlan, dict[str, Any]]:
    """A real plan whose rows get these speed-ups and ranges, by batch."""
    answer = planned("qwen3-30b-a3b", drafter="eagle", batch=",".join(map(str, speedups)), **options)
    rows = [replace(row, speedup=speedups[row.batch][0], depth=max(row.depth, 1)) for row in answer.plan.rows]
    ranges = [
        replace(sure, low=speedups[row.batch][1], high=speedups[row.batch][2], inputs=answer.ranges[0].inputs)
        for row, sure in zip(rows, answer.ranges, strict=True)
    ]
    known, batches = np.log(list(speedups)), answer.plan.payoff.batches
    gains = np.interp(np.log(batches), known, [each[0] for each in speedups.values()])
    drafts = answer.plan.setting.depths_at(answer.plan.pricer, batches) > 0
    payoff = replace(answer.plan.payoff, speedups=np.where(drafts, gains, 0.99))
    plan = replace(answer.plan, rows=tuple(rows), payoff=payoff)
    changed = replace(answer, plan=plan, ranges=tuple(ranges))
    return changed, plan_values([changed])


def test_a_range_above_one_is_a_gain() -> None:
    answer, values = judged({1: (1.5, 1.2, 1.8), 64: (1.4, 1.1, 1.7)})
    assert values["advice"] == "speculate" and values["verdict"].startswith(
        "Yes, up to batch 256: 1.50× as fast at batch 1 with eagle, likely 1.20–1.80×.\n"
    )
    assert values["surely_pays_at_batches"] == values["pays_at_batches"] and values["uncertain_at_batches"] == []
    assert "The gain is" not in values["verdict"] and "clearly" not in " ".join(values["verdict_details"])
    assert answer.headline_range is not None and not answer.headline_range.spans_one


def test_a_range_that_spans_one_is_uncertain_and_says_what_to_measure() -> None:
    answer, values = judged({1: (1.1, 0.8, 1.4), 64: (1.05, 0.8, 1.3)})
    assert values["advice"] == "uncertain"
    first, second, *_ = values["verdict"].splitlines()
    assert first == "Uncertain: 1.10× as fast at batch 1 with eagle, likely 0.80–1.40×."
    assert second == "Largest uncertainty: acceptance; narrow it with specmargin profile acceptance."
    assert "The gain is" not in values["verdict"] and "\nDraft to try: " in values["verdict"]
    assert "It is clearly faster, with an 80% range above 1, at no batch." in values["verdict_details"]
    assert values["surely_pays_at_batches"] == [] and values["uncertain_at_batches"] == values["pays_at_batches"]
    assert values["config"] == answer.config.text != ""  # the schedule is written all the same


def test_the_verdict_says_at_which_batches_it_is_clear() -> None:
    _, values = judged({1: (1.1, 0.9, 1.3), 16: (1.6, 1.3, 1.9), 64: (1.1, 0.9, 1.3)})
    ((first, last),) = values["surely_pays_at_batches"]
    assert 1 < first < 16 < last < 64
    answer, second, *_ = values["verdict"].splitlines()
    assert answer == f"Yes at batch {first}–{last}: 1.60× as fast at batch 16 with eagle, likely 1.30–1.90×."
    assert re.match(rf"The gain is not certain at batch 1(–{first - 1})? and {last + 1}–", second)
    assert values["advice"].startswith("speculate") and values["headline"]["batch"] == 16
    _, at_one = judged({1: (1.1, 0.9, 1.3), 16: (1.6, 1.3, 1.9), 64: (1.1, 0.9, 1.3)}, at_batch=1)
    answer, second, *_ = at_one["verdict"].splitlines()
    assert answer.startswith("Uncertain: 1.10× as fast at batch 1 with eagle, ")
    assert second == f"The gain is clear only at batch {first}–{last}."


def test_the_verdict_says_at_which_batches_it_is_not() -> None:
    _, values = judged({1: (1.6, 1.3, 1.9), 16: (1.1, 0.9, 1.3), 64: (1.6, 1.3, 1.9)})
    ((first, last),) = values["uncertain_at_batches"]
    assert values["verdict"].splitlines()[1] == f"The gain is not certain at batch {first}–{last}."


def test_a_plan_is_judged_by_its_first_gain() -> None:
    _, values = judged({1: (0.9, 0.8, 1.1), 16: (1.6, 1.3, 1.9)})
    assert (
        values["advice"] == "speculate"
        and "1.60× as fast at batch 16 with eagle, likely 1.30–1.90×" in values["verdict"]
    )
    _, values = judged({1: (0.9, 0.8, 0.95), 16: (1.1, 0.9, 1.3)})
    assert values["advice"] == "uncertain"
    assert values["verdict"].startswith("Uncertain: 1.10× as fast at batch 16 with eagle, likely 0.90–1.30×")
    _, values = judged({1: (0.9, 0.8, 1.1), 16: (0.95, 0.9, 1.3)})
    assert values["advice"] == "do-not-speculate" and values["verdict"].startswith("No: ")


@settings(max_examples=25, deadline=None)
@given(
    speedup=st.floats(0.5, 3.0),
    below=st.floats(0.01, 0.8),
    above=st.floats(0.01, 0.8),
    engine=st.sampled_from(["vllm", "sglang"]),
)
def test_a_range_that_spans_one_never_advises_to_speculate(
    speedup: float, below: float, above: float, engine: str
) -> None:
    low, high = speedup * math.exp(-below), speedup * math.exp(above)
    _, values = judged({1: (speedup, low, high)}, engine=engine)
    assert values["verdict"].startswith("Yes") == (values["advice"] == "speculate") == (low > 1.0)
    assert values["verdict"].startswith("Uncertain") == (values["advice"] == "uncertain") == (low <= 1.0 < speedup)


def test_a_service_whose_range_spans_one_is_uncertain() -> None:
    load: dict[str, Any] = {"concurrency": 64, "isl": 4096, "osl": 64, "batch": None}
    answer = planned("llama-3.1-8b", drafter="eagle", **load)
    assert answer.service is not None and answer.service_range is not None
    low, high = answer.service_range
    service = plan_values([answer])["service"]
    assert (service["speedup_low"], service["speedup_high"]) == (low, high)
    wide = replace(answer, ranges=tuple(replace(each, low=0.3) for each in answer.ranges))
    assert wide.service_range is not None and wide.service_range[0] < 1.0 < answer.service.speedup
    values = plan_values([wide])
    assert values["advice"] == "uncertain" and values["verdict"].startswith("Uncertain: ")
    assert " at concurrency 64 with eagle, likely 0." in values["verdict"].splitlines()[0]


def test_larger_graphs_are_named_only_where_graphs_are_the_limit() -> None:
    """At ten sequences a graph holds every draft: what ends the gain there is FlashAttention 2 at a long context."""
    values = specmargin.plan(
        "qwen3.8-27b", gpu="a100", weights="int4-g128", drafter="mtp", context="29k", prices="laws"
    ).to_dict()
    assert values["loses_at_batches"]
    assert "With CUDA graphs of more than" not in " ".join(values["verdict_details"])
    beyond = specmargin.plan("deepseek-v3", gpu="h200", gpus=8, parallel="ep", prices="laws").to_dict()
    assert "With CUDA graphs of more than 512 positions" in " ".join(beyond["verdict_details"])
