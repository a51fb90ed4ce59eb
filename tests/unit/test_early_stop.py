"""llama.cpp's `--draft-p-min`: drafts that stop at the first token of low confidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import betainc

from specmargin.acceptance.bank import Rounds
from specmargin.acceptance.early_stop import CONCENTRATION, EarlyStop, assumed_stop, stop_of_rounds
from specmargin.acceptance.survival import parse_acceptance
from specmargin.answers.request_schema import read_request
from specmargin.cli.main import run
from specmargin.decisions.pricer import Pricer
from specmargin.errors import AcceptanceError, ScenarioError
from specmargin.verbs.plan.drafter_plan import drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.scenarios import pricer

CURVE = parse_acceptance("0.78,0.58,0.44,0.36")
DEPTH = 6


def stopping(p_min: float, drafter: str = "mtp", **changes: Any) -> Pricer:
    return pricer(drafter=drafter, acceptance=CURVE, early_stop=assumed_stop(CURVE, p_min), **changes)


# --- lengths ---


@pytest.mark.parametrize("p_min", [0.05, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("acceptance", [0.02, 0.5, 0.78, 0.99])
def test_the_assumed_confidence_is_a_calibrated_beta_distribution(acceptance: float, p_min: float) -> None:
    """Against scipy's incomplete beta function."""
    stop = assumed_stop(parse_acceptance(str(acceptance)), p_min)
    a, b = CONCENTRATION * acceptance, CONCENTRATION * (1 - acceptance)
    assert stop.drafted.by_depth[0] == pytest.approx(1 - betainc(a, b, p_min), rel=1e-3, abs=1e-6)
    assert stop.accepted.by_depth[0] == pytest.approx(acceptance * (1 - betainc(a + 1, b, p_min)), rel=1e-3, abs=1e-6)


def test_no_threshold_is_no_early_stop() -> None:
    stop = assumed_stop(CURVE, 0.0)
    assert stop.drafted.up_to(DEPTH).tolist() == [1.0] * DEPTH
    np.testing.assert_allclose(stop.accepted.up_to(DEPTH), CURVE.up_to(DEPTH))


def test_a_higher_threshold_drafts_and_accepts_less_but_a_larger_share() -> None:
    stops = [assumed_stop(CURVE, p_min) for p_min in (0.0, 0.3, 0.6, 0.9)]
    drafted = [stop.mean_drafted(DEPTH) for stop in stops]
    accepted = [float(stop.accepted.accepted_by_depth(DEPTH)[-1]) for stop in stops]
    assert drafted == sorted(drafted, reverse=True)
    assert accepted == sorted(accepted, reverse=True)
    shares = [one / other for one, other in zip(accepted, drafted, strict=True)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.9


@pytest.mark.parametrize("acceptance", ["0", "1"])
def test_certain_acceptance_and_none(acceptance: str) -> None:
    stop = assumed_stop(parse_acceptance(acceptance), 0.5)
    assert stop.mean_drafted(4) == pytest.approx(4 * float(acceptance), abs=1e-3)


def _rounds(confidence: list[list[float]], accepted: list[int], drafted: list[int]) -> Rounds:
    count = len(accepted)
    return Rounds(
        category_by_round=("all",) * count,
        prompt_by_round=np.arange(count),
        round_index=np.zeros(count, dtype=np.int64),
        drafted_by_round=np.array(drafted),
        accepted_by_round=np.array(accepted),
        confidence_by_round_depth=np.array(confidence),
        speculator="mtp",
        source="four rounds",
    )


def test_a_bank_gives_the_lengths_itself() -> None:
    """Thresholds hold for each token: the third round stops at its second token though its third is confident."""
    confidence = [[0.9, 0.8, 0.7], [0.9, 0.4, 0.9], [0.9, 0.2, 0.9], [0.3, 0.9, 0.9]]
    stop = stop_of_rounds(_rounds(confidence, [3, 1, 0, 2], [3, 3, 3, 3]), 0.5)
    np.testing.assert_allclose(stop.drafted.by_depth, [0.75, 0.25, 0.25])
    np.testing.assert_allclose(stop.accepted.by_depth, [0.5, 0.25, 0.25])


def test_rounds_that_drafted_less_are_censored() -> None:
    nan = float("nan")
    confidence = [[0.9, 0.9], [0.9, nan], [0.9, 0.1], [0.1, 0.1]]
    stop = stop_of_rounds(_rounds(confidence, [2, 1, 1, 0], [2, 1, 2, 2]), 0.5)
    np.testing.assert_allclose(stop.drafted.by_depth, [0.75, 0.375])  # one of the two that went on


def test_a_bank_without_confidences_is_refused() -> None:
    with pytest.raises(AcceptanceError, match="has no confidences"):
        stop_of_rounds(_rounds([[float("nan")]], [1], [1]), 0.5)
    with pytest.raises(AcceptanceError, match="at least 0 and below 1"):
        replace(assumed_stop(CURVE, 0.5), p_min=1.0)


# --- prices ---


def test_a_threshold_of_zero_prices_as_without_one() -> None:
    plain, zero = pricer(drafter="mtp", acceptance=CURVE).grid([1, 8], DEPTH), stopping(0.0).grid([1, 8], DEPTH)
    for name in ("verify_seconds", "draft_seconds", "round_seconds", "full_round_seconds", "committed"):
        np.testing.assert_allclose(getattr(zero, name), getattr(plain, name), rtol=1e-9)


def test_at_batch_one_a_round_is_the_mean_over_lengths() -> None:
    """Every length with its probability: its verify step, and one more pass than tokens unless it reached the end."""
    stop, full = assumed_stop(CURVE, 0.6), pricer(drafter="mtp", acceptance=CURVE).grid([1], DEPTH)
    reached = np.concatenate([[1.0], stop.drafted.up_to(DEPTH), [0.0]])
    probability = reached[:-1] - reached[1:]
    passes = np.minimum(np.arange(DEPTH + 1) + 1, DEPTH)
    grid = stopping(0.6).grid([1], DEPTH)
    assert probability.sum() == pytest.approx(1.0)
    assert grid.verify_seconds[0, DEPTH] == pytest.approx(float(probability @ full.verify_seconds[0]))
    assert grid.draft_seconds[0, DEPTH] == pytest.approx(float(probability @ full.draft_seconds[0, passes]))


@pytest.mark.parametrize("drafter", ["mtp", "dflash", "model:qwen3-0.6b", "free"])
def test_stopping_never_costs_more_and_keeps_what_no_draft_changes(drafter: str) -> None:
    batches = [1, 4, 64]
    full, grid = (
        one.grid(batches, DEPTH) for one in (pricer(drafter=drafter, acceptance=CURVE), stopping(0.5, drafter))
    )
    assert (grid.round_seconds <= full.round_seconds * (1 + 1e-9)).all()
    assert (grid.committed[1:] < full.committed[1:]).all()
    np.testing.assert_array_equal(grid.no_spec_seconds, full.no_spec_seconds)
    np.testing.assert_array_equal(grid.full_round_seconds, full.round_seconds)
    assert (np.diff(grid.round_seconds, axis=1) >= -1e-12).all()


def test_a_block_head_drafts_its_block_whatever_it_keeps() -> None:
    full, grid = (one.grid([8], DEPTH) for one in (pricer(drafter="dflash"), stopping(0.9, "dflash")))
    np.testing.assert_allclose(grid.draft_seconds, full.draft_seconds)


def test_other_acceptance_takes_its_own_early_stop() -> None:
    first = stopping(0.5)
    assert first.with_survival(CURVE).scenario.early_stop is None
    other = assumed_stop(CURVE, 0.9)
    assert first.with_survival(CURVE, other).grid([1], DEPTH).committed[-1] < first.grid([1], DEPTH).committed[-1]


# --- requests ---

_ASKED = {"model": "qwen3.6-27b", "gpu": "rtx-5090", "weights": "q4_k", "engine": "llamacpp", "batch": "1"}


def _plan(**changes: Any) -> Any:
    return drafter_plans(read_request(PlanRequest, _ASKED | changes))[0]


def test_the_flags_hold_the_threshold_that_was_priced() -> None:
    text = _plan(draft_p_min=0.65).config.text
    assert "--spec-draft-p-min 0.65" in text
    stop = _plan(draft_p_min=0.65).plan.scenario.early_stop
    assert isinstance(stop, EarlyStop)
    assert "assumed" in str(stop.source)
    assert any("tokens per draft" in note for note in _plan(draft_p_min=0.65).config.notes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "vllm"}, "an option of llama.cpp, not of vLLM"),
        ({"engine": "sglang"}, "an option of llama.cpp, not of SGLang"),
        ({"drafter": "ngram"}, "n-gram drafts have no confidence"),
        ({"draft_p_min": 1.0}, "must be below 1"),
    ],
)
def test_refusals_are_one_sentence(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        _plan(**({"draft_p_min": 0.5} | changes))


def test_a_scenario_file_cannot_simulate_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'model = "qwen3.6-27b"\ngpu = "rtx-5090"\nengine = "llamacpp"\nweights = "q4_k"\n'
        "draft_p_min = 0.5\nrequests = 2\nisl = 20\nosl = 4\nqps = 4\n"
    )
    with pytest.raises(ScenarioError, match="policies decide here how long drafts are"):
        run("simulate", [str(path), "--policy", "fixed:2", "--json"])


def test_all_drafters_are_ranked_and_look_up_drafts_do_not_stop() -> None:
    ranked = drafter_plans(read_request(PlanRequest, _ASKED | {"drafter": "all", "draft_p_min": 0.5}))
    stops = {entry.choice.kind: entry.plan.scenario.early_stop for entry in ranked}
    assert stops.pop("ngram") is None
    assert stops and all(stop is not None and stop.p_min == 0.5 for stop in stops.values())
