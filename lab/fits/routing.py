"""Fit the bundled routing profiles to published curves: four numbers per layer and category.

    python -m lab.fits.routing             # writes catalog/routing; needs scipy

Popularity is fitted to the distinct experts of 2 to 256 independent tokens under the published shares; m(2) and the
growth of m(q) to the published depth curve (lab/data/published). The package has the fitted numbers only.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from rich.progress import track
from scipy.optimize import least_squares

from lab import CATALOG, PUBLISHED
from specmargin.architecture.types import ExpertPool
from specmargin.routing.curves import effective_positions, popularity
from specmargin.step import FloatArray

TARGET = CATALOG / "routing"
INDEPENDENT_TOKENS = np.array([2, 4, 8, 16, 64, 256])
MODELS = {
    "qwen3.6-35b-a3b": ("", ExpertPool(experts=256, experts_per_token=8), (1, 2, 3, 4, 6, 8, 12, 16)),
    "deepseek-v4-flash": ("deepseek-v4-flash/", ExpertPool(experts=256, experts_per_token=6), (1, 2, 3, 4)),
}
SOURCE = (
    "specdec-calibration captures (Apache-2.0), popularity and width-against-depth curves by layer, "
    "fitted by this project"
)


def main() -> None:
    shares = json.loads((PUBLISHED / "expert-popularity-per-layer.json").read_text())
    curves = json.loads((PUBLISHED / "width-vs-depth-per-layer.json").read_text())
    for model, (prefix, pool, runs) in MODELS.items():
        keys = [key for key in curves if (key.startswith(prefix) if prefix else not key.startswith("deepseek"))]
        categories = {}
        for key in track(keys, description=model):
            numbers, errors = fit_category(np.array(shares[key]), np.array(curves[key]["depth"]), pool, runs)
            name = key.removeprefix(prefix).removeprefix("speedbench/")
            categories[name] = {"by_layer": numbers.tolist(), "longest_run": runs[-1]} | errors
            print(model, name, errors)
        write(model, pool, categories)


def independent_positions(popularity_by_layer_expert: FloatArray, distinct_by_layer: FloatArray) -> FloatArray:
    """m by layer: how many independent positions touch this many experts, Σ_e 1 − (1 − p_e)^m, by bisection."""
    miss = np.log1p(-np.minimum(popularity_by_layer_expert, 1.0 - 1e-12))
    low, high = np.zeros(distinct_by_layer.shape), np.full(distinct_by_layer.shape, 1e5)
    for _ in range(60):
        middle = (low + high) / 2.0
        is_low = -np.expm1(middle[:, np.newaxis] * miss).sum(axis=1) < distinct_by_layer
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return np.asarray((low + high) / 2.0)


def fit_category(
    shares: FloatArray, depth: FloatArray, pool: ExpertPool, runs: tuple[int, ...]
) -> tuple[FloatArray, dict[str, float]]:
    p = np.minimum(shares / shares.sum(axis=1, keepdims=True) * pool.experts_per_token, 1.0)
    shape = np.array([fit_popularity(layer, pool) for layer in p])
    fitted = popularity(shape[:, 0], shape[:, 1], pool)
    wanted = np.array([independent_positions(fitted, distinct) for distinct in depth.T])  # (runs, layers)
    growth = np.array([fit_growth(m, runs) for m in wanted.T])
    numbers = np.round(np.concatenate([shape, growth], axis=1), 4)
    effective = effective_positions(numbers[:, 2], numbers[:, 3])[np.array(runs) - 1]
    predicted = distinct_experts(popularity(numbers[:, 0], numbers[:, 1], pool), effective)
    depth_error = np.abs(predicted.mean(axis=1) / depth.mean(axis=0) - 1.0).max()
    width_error = np.abs(coverage(fitted, 16.0).mean() / coverage(p, 16.0).mean() - 1.0)
    return numbers, {"depth_error": round(float(depth_error), 4), "width_error": round(float(width_error), 4)}


def fit_popularity(p: FloatArray, pool: ExpertPool) -> FloatArray:
    published = np.array([coverage(p[np.newaxis], t)[0] for t in INDEPENDENT_TOKENS])

    def residuals(logs: FloatArray) -> FloatArray:
        fitted = popularity(np.exp(logs[:1]), np.exp(logs[1:]), pool)
        return np.asarray(np.array([coverage(fitted, t)[0] for t in INDEPENDENT_TOKENS]) / published - 1.0)

    return np.asarray(np.exp(least_squares(residuals, [1.0, 0.0], bounds=(-3.0, 4.0)).x))


def fit_growth(m: FloatArray, runs: tuple[int, ...]) -> FloatArray:
    """m(2) as published; beyond it a power of the run length."""
    second = float(m[runs.index(2)])
    longer = np.array([run for run in runs if run > 2])
    logs = np.log(np.array([m[runs.index(run)] for run in longer]) / second)
    log_lengths = np.log(longer / 2.0)
    return np.array([second, float(np.clip((logs @ log_lengths) / (log_lengths @ log_lengths), 0.0, 1.0))])


def coverage(p: FloatArray, positions: float) -> FloatArray:
    return np.asarray((1.0 - (1.0 - p) ** positions).sum(axis=1))


def distinct_experts(p: FloatArray, effective_by_run_layer: FloatArray) -> FloatArray:
    return np.array([(1.0 - (1.0 - p) ** m[:, np.newaxis]).sum(axis=1) for m in effective_by_run_layer])


def write(model: str, pool: ExpertPool, categories: dict[str, Any]) -> None:
    body = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in categories.items())
    head = {
        "schema": "specmargin.routing-curves/1",
        "model": model,
        "source": SOURCE,
        "experts": pool.experts,
        "experts_per_token": pool.experts_per_token,
        "numbers": ["rate", "shape", "second", "growth"],
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    (TARGET / f"{model}.json").write_text(f'{{\n{lines},\n  "categories": {{\n{body}\n  }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
