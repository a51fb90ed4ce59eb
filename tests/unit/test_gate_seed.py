"""The gate on the device: what vLLM's estimator starts from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specmargin.acceptance.calibration import Logistic, Tokens, logit
from specmargin.live.vllm.gate import choice, seed
from tests.unit.live import DEPTH


def test_the_seed_is_the_calibrators_where_it_has_the_same_form() -> None:
    weights = np.zeros(2 * DEPTH + 15)
    weights[:DEPTH] = [-0.1, -0.3, -0.6, -1.0]
    weights[DEPTH] = 4.0 * 0.6
    slope, intercepts = seed.projection(Logistic(weights=weights, depths=DEPTH), DEPTH)
    assert slope == pytest.approx(0.6, rel=1e-3)
    assert intercepts == pytest.approx([-0.1, -0.3, -0.6, -1.0], abs=5e-3)


def test_the_seed_is_near_a_calibrator_with_more_features() -> None:
    """The bundled one: at usual confidences, within 0.15 of its probability on average."""
    root = Path(choice.__file__).parents[3]
    given = json.loads((root / "catalog" / "acceptance" / "reference-moe.acceptance.json").read_text())["calibrator"]
    calibrator = Logistic(weights=np.array(given["weights"]), depths=given["depths"])
    slope, intercepts = seed.projection(calibrator, given["depths"])
    odds = np.linspace(-2.0, 4.0, 13)
    confidence = 1.0 / (1.0 + np.exp(-odds))
    errors = []
    for depth in range(given["depths"]):
        tokens = Tokens(
            depth=np.full(13, depth),
            confidence=confidence,
            history=np.zeros(13),
            before=odds if depth else np.zeros(13),
            accepted=np.zeros(13, dtype=np.bool_),
            round=np.zeros(13, dtype=np.int64),
        )
        exact = calibrator.probability(tokens)
        errors.append(np.abs(1.0 / (1.0 + np.exp(-(slope * odds + intercepts[depth]))) - exact).mean())
    assert np.mean(errors) < 0.15
    assert slope > 0.0
    assert np.isfinite(logit(confidence)).all()


def test_a_depth_beyond_the_calibrator_has_the_seed_of_its_last() -> None:
    weights = np.zeros(2 * DEPTH + 15)
    weights[DEPTH] = 2.0
    _, intercepts = seed.projection(Logistic(weights=weights, depths=DEPTH), DEPTH + 3)
    assert intercepts[DEPTH:] == pytest.approx(np.full(3, intercepts[DEPTH - 1]))
