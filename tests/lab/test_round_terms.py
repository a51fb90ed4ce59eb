"""Terms of a round fitted to measured speed-ups: what the fit recovers, and what it leaves to the prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from lab.validation.round_terms import RoundRow, engine_fits, fit_terms, prior_terms, show_fits
from rich.console import Console

from specmargin.step import FloatArray
from specmargin.validation.points_schema import Point
from specmargin.validation.speedups import PredictedPoint
from specmargin.validation.whole_requests import Loop
from tests.scenarios import pricer

PRIOR = np.array([1.4e-3, 40e-6, 50e-6])
PLAIN = 8e-3
ACCEPT_LENGTH = 2.0


def row(
    batch: int,
    depth: int,
    terms: FloatArray,
    *,
    model: str = "m",
    gpu: str = "g",
    engine: str = "sglang",
    source: str = "s",
) -> RoundRow:
    """Predicted with the prior, measured on an engine with other terms."""
    counts = (1.0, float(batch), float(depth))
    speedup = round_speedup(counts, terms)
    point = Point(
        id=f"{model} {gpu} {batch} {depth}",
        source=source,
        model=model,
        gpu=gpu,
        engine=engine,
        drafter="mtp",
        depth=depth,
        batch=batch,
        accept_length=ACCEPT_LENGTH,
        speedup=speedup,
    )
    predicted = PredictedPoint(
        point=point,
        pricer=pricer(),
        no_spec_seconds=PLAIN,
        round_speedup=round_speedup(counts, PRIOR),
        datasheet_speedup=1.0,
        loop=None,
    )
    return RoundRow(predicted=predicted, counts=counts, priced=tuple(PRIOR.tolist()))


def round_speedup(counts: tuple[float, float, float], terms: FloatArray) -> float:
    return float(PLAIN / ((1.2 * PLAIN + np.dot(counts, terms)) / ACCEPT_LENGTH))


def rows(terms: FloatArray, models: Sequence[str] = ("a", "b", "c"), **changes: str) -> list[RoundRow]:
    return [
        row(batch, depth, terms, model=model, **changes)
        for model in models
        for batch in (1, 8, 64)
        for depth in (1, 3, 7)
    ]


def test_rows_of_the_prior_leave_the_prior() -> None:
    np.testing.assert_allclose(fit_terms(rows(PRIOR), PRIOR), PRIOR, rtol=1e-3)
    np.testing.assert_array_equal(fit_terms([], PRIOR), PRIOR)


def test_terms_move_towards_those_of_the_rows_and_not_beyond() -> None:
    own = np.array([0.5e-3, 90e-6, 250e-6])
    few = fit_terms(rows(own, ["a"]), PRIOR)
    many = fit_terms([one for source in range(40) for one in rows(own, ["a"], source=str(source))], PRIOR)
    assert (np.abs(few - own) < np.abs(PRIOR - own)).all()
    assert np.abs(np.log(many / own)).sum() < np.abs(np.log(few / own)).sum()
    np.testing.assert_allclose(many, own, rtol=0.25)


def test_rows_of_one_source_count_less_than_rows_of_several() -> None:
    own = np.array([0.5e-3, 40e-6, 50e-6])
    alike = fit_terms([one for _ in range(16) for one in rows(own, ["a"])], PRIOR)
    apart = fit_terms([one for source in range(16) for one in rows(own, ["a"], source=str(source))], PRIOR)
    assert abs(apart[0] - own[0]) < abs(alike[0] - own[0]) < abs(PRIOR[0] - own[0])


def test_terms_are_never_negative() -> None:
    """A round that is faster than its kernels cannot be explained by engine time."""
    fitted = fit_terms(rows(np.array([-5e-3, 0.0, 0.0]), [f"m{i}" for i in range(40)]), PRIOR)
    assert (fitted >= 0.0).all()
    assert fitted[0] < 0.1 * PRIOR[0]


def test_the_only_source_is_left_to_the_prior_and_models_are_predicted_by_the_others() -> None:
    (fit,) = engine_fits(rows(np.array([3e-3, 40e-6, 50e-6]))).fits
    by_source, by_model = fit.held_out
    assert (by_source.by, by_source.groups, by_model.by, by_model.groups) == ("source", 1, "model", 3)
    assert by_source.median_error == by_source.prior_median_error
    assert by_model.median_error < by_model.prior_median_error
    assert fit.fitted[0] > fit.prior[0]


def test_a_model_that_differs_from_the_others_shows_that_own_terms_do_not_carry_over() -> None:
    mixed = rows(np.array([6e-3, 40e-6, 50e-6]), ["slow"]) + rows(prior_terms("sglang"), ["as priced"])
    (fit,) = engine_fits(mixed).fits
    assert fit.held_out[1].median_error > 0.0
    assert fit.low[0] < fit.fitted[0] < fit.high[0]


def test_gpus_are_left_out_where_there_are_more_of_them() -> None:
    those = [one for gpu in ("x", "y", "z") for one in rows(PRIOR, ["m"], gpu=gpu, engine="llamacpp")]
    (fit,) = engine_fits(those).fits
    assert (fit.held_out[1].by, fit.held_out[1].groups) == ("GPU", 3)
    np.testing.assert_array_equal(fit.prior, prior_terms("vllm"))  # llama.cpp has no bundled terms


def test_measured_engines_are_not_fitted_and_too_few_rows_are_named() -> None:
    those = [*rows(PRIOR, engine="vllm"), row(1, 3, PRIOR, engine="trtllm")]
    fits = engine_fits(those)
    assert fits.fits == ()
    assert fits.not_fitted == {"trtllm": "1 row of 1 model"}


def test_the_tables_say_that_nothing_bundled_is_fitted() -> None:
    out = Console(record=True, width=100)
    fits = engine_fits(rows(np.array([3e-3, 40e-6, 50e-6])))
    show_fits(out, fits)
    text = " ".join(out.export_text().split())
    assert "no term is fitted to these rows" in text
    assert "its only source: the prior alone" in text
    assert "1.366 →" in text


def test_other_terms_change_a_row_as_pricing_them_would() -> None:
    terms = np.array([1e-3, 2e-5, 1e-4])
    assert row(8, 3, PRIOR).speedup(terms) == pytest.approx(round_speedup((1.0, 8.0, 3.0), terms))


def test_a_closed_loop_changes_with_the_terms_of_a_round() -> None:
    one = row(8, 3, PRIOR)
    looped = replace(one, predicted=replace(one.predicted, loop=Loop(speedup=1.2, prefill_share=0.3)))
    assert looped.speedup(PRIOR) == pytest.approx(1.2)
    terms = np.array([3e-3, 40e-6, 50e-6])
    assert looped.speedup(terms) / 1.2 == pytest.approx(one.speedup(terms) / one.speedup(PRIOR))


def test_a_round_has_one_verify_step_its_sequences_and_its_passes() -> None:
    """Of the scenario's engine; a block head drafts in one pass."""
    drafted = {"mtp": 3.0, "dflash": 1.0, "ngram": 0.0}
    for drafter, passes in drafted.items():
        priced = replace(row(8, 3, PRIOR).predicted, pricer=pricer(drafter=drafter))
        assert RoundRow.of(priced).counts == (1.0, 8.0, passes)
