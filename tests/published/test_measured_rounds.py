"""Whole rounds of vLLM 0.32 on an H200 (`lab/data/measurements/vllm-0.32-h200-rounds.json`), drafting included."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lab.validation.rounds import measured as rounds

from lab import DATA
from specmargin.catalog.lookup import bundled_model
from specmargin.prices.model import EngineTime
from specmargin.routing.profile import UNIFORM
from specmargin.step import Step

LINES = {(line.source, line.rounds): line for line in rounds.round_lines()}
DOCUMENT = json.loads((DATA / "measurements" / "vllm-0.32-h200-rounds.json").read_text())


@pytest.mark.parametrize(("source", "median", "worst"), [("tables", 0.025, 0.15), ("laws", 0.035, 0.17)])
def test_one_set_of_terms_prices_three_models(source: str, median: float, worst: float) -> None:
    """A mixture with EAGLE-3, a dense model with EAGLE-3 and a hybrid mixture with MTP; batch 1 to 256, depth 0 to 7.

    The worst round is the hybrid's at batch 256 and depth 1, whose kernels are priced too slow.
    """
    for name in ("all three models, depth 0 and 1", "all three models, deeper"):
        line = LINES[source, name]
        assert line.median_error <= median
        assert line.worst_error <= worst
    assert LINES[source, "all three models, depth 0 and 1"].count == 57


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "llama-3.1-8b", "qwen3.6-35b-a3b"])
def test_terms_carry_over_to_a_model_that_they_were_not_fitted_to(model: str) -> None:
    line = LINES["tables", f"{model}, terms fitted without it"]
    assert line.median_error <= 0.06


def test_an_earlier_run_on_another_day_agrees() -> None:
    line = LINES["tables", "an earlier run, depth 0, 1 (not fitted)"]
    assert line.count == 8
    assert line.median_error <= 0.05
    assert line.worst_error <= 0.12


def test_counted_experts_are_those_of_uniform_routing() -> None:
    """Random drafts choose experts independently, so what rounds take beyond kernels is not routing.

    Dummy weights route alike in all layers, so a count is the mean of four draws.
    """
    pool = bundled_model("qwen3-30b-a3b").pools[0]
    for row in DOCUMENT["distinct_experts"]["rows"]:
        step = Step.uniform(batch=row["batch"], depth=row["depth"])
        assert float(UNIFORM.mean(pool, step)) == pytest.approx(row["distinct_experts"], rel=0.05)


def test_a_fit_finds_the_terms_that_made_the_rounds() -> None:
    """Rounds predicted with known terms, with 1% noise."""
    time = EngineTime(step_seconds=4e-4, verify_step_seconds=6e-4, draft_pass_seconds=2e-4, off_step_seconds=5e-4)
    generator = np.random.default_rng(0)
    made = []
    for engine in rounds.measured_rounds():
        seconds = rounds.predicted_seconds(engine, "laws", time) * generator.normal(1.0, 0.01, engine.batch.size)
        made.append(
            rounds.MeasuredRounds(
                name=engine.name,
                model=engine.model,
                drafter=engine.drafter,
                batch=engine.batch,
                depth=engine.depth,
                context=engine.context,
                seconds=seconds,
            )
        )
    fit = rounds.fitted_engine_time("laws", made)
    for name in rounds.TERMS:
        value = getattr(time, name)
        assert getattr(fit, name) == pytest.approx(
            value, rel=0.25, abs=5e-5 if name.endswith("_step_seconds") else 8e-6
        )
