"""Published routing curves (specdec-calibration captures; Cohere): given back, and put to the test."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from lab.fits.routing import independent_positions

from specmargin.architecture.types import ExpertPool
from specmargin.catalog.routing_profiles import BUNDLED, bundled_categories, bundled_routing
from specmargin.decisions.amdahl import amdahl_ratio
from specmargin.decisions.duel import duel
from specmargin.routing.local import from_curves
from specmargin.routing.profile import UNIFORM
from specmargin.sources import assumed
from specmargin.step import FloatArray, Step
from tests.command_line import payload
from tests.data import read_published
from tests.scenarios import pricer

QWEN, FLASH = ExpertPool(experts=256, experts_per_token=8), ExpertPool(experts=256, experts_per_token=6)
RUNS = np.array([1, 2, 3, 4, 6, 8, 12, 16])


@pytest.fixture(scope="module")
def curves() -> dict[str, Any]:
    return read_published("width-vs-depth-per-layer.json")


@pytest.fixture(scope="module")
def shares() -> dict[str, Any]:
    return read_published("expert-popularity-per-layer.json")


def _popularity(shares: dict[str, Any], key: str) -> FloatArray:
    pool = FLASH if key.startswith("deepseek") else QWEN
    share = np.array(shares[key])
    return np.asarray(np.minimum(share / share.sum(axis=1, keepdims=True) * pool.experts_per_token, 1.0))


def _covered(p: FloatArray, m: FloatArray) -> float:
    """Distinct experts of the mean layer, m positions by layer."""
    return float((1.0 - (1.0 - p) ** m[:, np.newaxis]).sum(axis=1).mean())


def test_popularity_alone_predicts_width_within_five_percent(curves: dict[str, Any], shares: dict[str, Any]) -> None:
    """At N = 16 (4 for DeepSeek-V4-Flash, the last that is published), over the mean layer, every category."""
    for key, curve in curves.items():
        width = np.array(curve["width"])
        last = RUNS[width.shape[1] - 1]
        p = _popularity(shares, key)
        predicted = _covered(p, np.full(p.shape[0], float(last)))
        assert predicted == pytest.approx(width[:, -1].mean(), rel=0.05), key


def _errors_from_others(
    curves: dict[str, Any], shares: dict[str, Any], keys: list[str], *, by_skew: bool
) -> tuple[float, float]:
    """Mean error of the depth curve of each category: its own popularity with m(q) of the others, and their average.

    `by_skew`: log m(q) is fitted on the others as a line over the log of the experts of four independent positions.
    """
    depth = {key: np.array(curves[key]["depth"]) for key in keys}
    p = {key: _popularity(shares, key) for key in keys}
    m = {key: np.log([independent_positions(p[key], column) for column in depth[key].T]) for key in keys}
    skew = {key: np.log((1.0 - (1.0 - p[key]) ** 4.0).sum(axis=1)) for key in keys}
    through_m, averaged = [], []
    for key in keys:
        others = [other for other in keys if other != key]
        log_m, log_width = np.array([m[other] for other in others]), np.array([skew[other] for other in others])
        apart, spread = log_m - log_m.mean(axis=0), log_width - log_width.mean(axis=0)
        slope = (
            (apart * spread[:, np.newaxis]).sum(axis=(0, 2)) / (spread**2).sum() if by_skew else np.zeros(len(m[key]))
        )
        guess = np.exp(log_m.mean(axis=0) + slope[:, np.newaxis] * (skew[key] - log_width.mean(axis=0)))
        measured = depth[key].mean(axis=0)
        through_m.append([abs(_covered(p[key], row) / measured[i] - 1.0) for i, row in enumerate(guess)])
        averaged.append(abs(np.mean([depth[other].mean(axis=0) for other in others], axis=0) / measured - 1.0))
    return float(np.mean(through_m)), float(np.mean(averaged))


def test_depth_curves_from_other_categories(curves: dict[str, Any], shares: dict[str, Any]) -> None:
    """What holds and what does not. Depth hardly differs between categories, popularity does: one m(q) for all is
    worse than averaging the others' depth curves (2.2% against 1.5%). m(q) fitted with the category's skew is better
    (1.4%) for Qwen3.6-35B-A3B; for DeepSeek-V4-Flash, with runs of four at most, it is not (1.6% against 1.5%)."""
    qwen = [key for key in curves if not key.startswith("deepseek") and key != "speedbench/all"]
    flash = [key for key in curves if key.startswith("deepseek") and not key.endswith("/all")]
    plain, averaged = _errors_from_others(curves, shares, qwen, by_skew=False)
    fitted, _ = _errors_from_others(curves, shares, qwen, by_skew=True)
    assert fitted < averaged < plain
    assert [round(error, 3) for error in (fitted, averaged, plain)] == [0.014, 0.015, 0.022]
    fitted, averaged = _errors_from_others(curves, shares, flash, by_skew=True)
    assert averaged < fitted < 1.2 * averaged


@pytest.mark.parametrize("key", ["speedbench/all", "speedbench/coding", "humaneval"])
def test_a_profile_from_curves_gives_its_inputs_back(curves: dict[str, Any], shares: dict[str, Any], key: str) -> None:
    """Depth at N = 4 and 16 to three digits, popularity as it came; uniform at 4 and 16: 30.5 and 102."""
    p = _popularity(shares, key)
    depth = np.array(curves[key]["depth"])
    by_run = np.array([independent_positions(p, depth[:, column]) for column in range(RUNS.size)])
    every = np.array([np.interp(np.arange(1, 17), RUNS, by_run[:, layer]) for layer in range(p.shape[0])]).T
    profile = from_curves(
        name=key,
        source=assumed("test"),
        pool=QWEN,
        popularity_by_layer_expert=p,
        effective_by_run_layer=every,
        captured_run=16,
    )
    for run, column in ((4, 3), (16, 7)):
        distinct = profile.mean_by_layer(Step.uniform(batch=1, depth=run - 1)).mean()
        assert float(f"{distinct:.3g}") == float(f"{depth[:, column].mean():.3g}")
    assert [float(f"{UNIFORM.mean(QWEN, Step.uniform(batch=n)):.3g}") for n in (4, 16)] == [30.5, 102]


@pytest.mark.parametrize("model", BUNDLED)
def test_bundled_profiles_follow_the_published_curves(curves: dict[str, Any], model: str) -> None:
    """Depth within 3% at every run of every category, over the mean layer; width within 5% at the last."""
    pool = FLASH if model == "deepseek-v4-flash" else QWEN
    prefix = "deepseek-v4-flash/" if pool is FLASH else ""
    for category in bundled_categories(model):
        key = next(k for k in (f"{prefix}speedbench/{category}", f"{prefix}{category}") if k in curves)
        profile = bundled_routing(model, category).local(pool)
        depth, width = np.array(curves[key]["depth"]).mean(axis=0), np.array(curves[key]["width"]).mean(axis=0)
        runs = RUNS[: depth.size]
        by_run = np.array([profile.mean_by_layer(Step.uniform(batch=1, depth=run - 1)).mean() for run in runs])
        assert by_run == pytest.approx(depth, rel=0.03)
        by_width = profile.mean_by_layer(Step.uniform(batch=int(runs[-1]))).mean()
        assert by_width == pytest.approx(width[-1], rel=0.05)


def test_effective_positions_of_qwen() -> None:
    """m(2) ≈ 1.64, m(4) ≈ 2.8, m(8) ≈ 4.7, m(16) ≈ 7.9 (from the published curves)."""
    profile = bundled_routing("qwen3.6-35b-a3b").local(QWEN)
    effective = profile.effective_positions(np.array([2.0, 4.0, 8.0, 16.0]))
    assert effective == pytest.approx([1.64, 2.8, 4.7, 7.9], rel=0.02)


def test_the_interview_question_turns_with_the_profile() -> None:
    """Two positions at batch 1: uniform says width, the profile depth (12.9 experts against 15.6)."""
    arguments = ("duel", "qwen3.6-35b-a3b", "--gpu", "h100", "--batch", "1", "--alpha", "0.9")
    duel = payload(*arguments, "--prices", "datasheet")
    assert duel["winner"] == "depth"
    assert round(duel["depth"]["distinct_experts"], 1) == 12.9
    assert round(duel["width"]["distinct_experts"], 1) == 15.6
    assert 0.0 < duel["turning_alpha"] < 0.9
    assert payload(*arguments, "--prices", "datasheet", "--routing", "uniform")["winner"] == "width"
    measured = payload(*arguments, "--prices", "laws")  # fixed time is shared by two sequences, not by two positions
    assert measured["turning_alpha"] > duel["turning_alpha"]


def test_the_duel_without_a_command_line() -> None:
    routing = bundled_routing("qwen3.6-35b-a3b")
    assert duel(pricer(gpu="h100", routing=routing), batch=1, alpha=0.9).winner == "depth"


# --- Cohere ---

COHERE = ExpertPool(experts=128, experts_per_token=8)


def test_cohere_amdahl() -> None:
    """4 positions load 20.36 experts (k = 8, n = 128): f = 0.30 gives T(4)/T(1) = 1.46; uniform would load 29.1."""
    uniform = np.full((1, 128), 8 / 128)
    m = independent_positions(uniform, np.array([20.36]))
    profile = from_curves(
        name="cohere",
        source=assumed("Cohere's depth curve"),
        pool=COHERE,
        popularity_by_layer_expert=uniform,
        effective_by_run_layer=np.array([[1.0], [1.0 + (m[0] - 1) / 3], [1.0 + 2 * (m[0] - 1) / 3], [m[0]]]),
        captured_run=4,
    )
    distinct = float(profile.mean(COHERE, Step.uniform(batch=1, depth=3)))
    assert round(distinct, 2) == 20.36
    assert round(amdahl_ratio(0.30, distinct / 8), 2) == 1.46
    assert round(float(UNIFORM.mean(COHERE, Step.uniform(batch=4))), 1) == 29.1


def _speedups(model: str, *more: str) -> list[float]:
    shared = ("--drafter", "free", "--acceptance", "0.7", "--depth", "3", "--prices", "laws")
    rows = payload("plan", model, *more, *shared, "--batch", "1,2,4,8,16,32,64")["rows"]
    return [row["speedup"] for row in rows]


def test_speedup_over_batch_dips_and_rises_for_experts_and_only_falls_for_dense() -> None:
    """Cohere: best at moderate batch for their MoE, only declining for their dense 111B."""
    moe = _speedups("qwen3-30b-a3b", "--gpu", "h100")
    dense = _speedups("command-a", "--gpu", "h100", "--gpus", "4")
    lowest = int(np.argmin(moe))
    assert 0 < lowest < len(moe) - 1
    assert max(moe[lowest:]) > moe[0]
    assert all(later < earlier for earlier, later in pairwise(dense))
