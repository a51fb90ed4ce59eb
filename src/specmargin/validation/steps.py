"""Whole verify steps of a real engine on a real GPU, over batch and draft depth: ours, with their conditions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
from scipy.optimize import nnls

from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.catalog.prices import find_prices
from specmargin.decisions.scenario import Scenario
from specmargin.prices.drafters import FREE
from specmargin.prices.model import EngineTime
from specmargin.prices.roofline import RooflineForm
from specmargin.routing.profile import UNIFORM
from specmargin.sources import Source, SourceKind
from specmargin.step import BoolArray, FloatArray, Step

CAPTURED = 512  # positions of the largest captured graph in these runs
_PROMPT = 512
_CONTEXT = _PROMPT + 8.0  # half of the tokens that were generated while it was timed
_FILE = "vllm-h200-qwen3-30b-a3b"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    batch: FloatArray
    depth: FloatArray
    seconds: FloatArray
    conditions: dict[str, str]

    @property
    def captured(self) -> BoolArray:
        return np.asarray(self.batch * (self.depth + 1.0) <= CAPTURED)


def measured_steps(mode: str = "") -> MeasuredSteps:
    """`mode`: "" for full graphs, "-piecewise" for graphs of pieces only."""
    text = (files("specmargin.catalog") / "measurements" / f"{_FILE}{mode}.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    batch, depth, milliseconds = (
        np.array([row[name] for row in values["rows"]], dtype=np.float64)
        for name in ("batch", "draft_depth", "step_ms")
    )
    return MeasuredSteps(batch=batch, depth=depth, seconds=milliseconds * 1e-3, conditions=values["meta"])


def step_scenario(prices: str, engine_time: EngineTime | None = None) -> Scenario:
    device = bundled_device("h200")
    return Scenario(
        architecture=bundled_model("qwen3-30b-a3b"),
        device=device,
        prices=find_prices(prices, device, "vllm", RooflineForm.PER_COMPONENT),
        routing=UNIFORM,
        drafter=FREE,
        survival=parse_acceptance("0", max_depth=8),
        context=_CONTEXT,
        engine_time=engine_time or EngineTime(),
    )


def predicted_seconds(steps: MeasuredSteps, prices: str, engine_time: EngineTime | None = None) -> FloatArray:
    grid = Step.uniform(batch=steps.batch, depth=steps.depth, context=_CONTEXT)
    return step_scenario(prices, engine_time).verify(grid).total_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTime:
    """Engine time fitted to measured steps, and how far it moves when any one batch size is left out."""

    time: EngineTime
    step_range: tuple[float, float]
    sequence_range: tuple[float, float]


def measured_engine_time(prices: str) -> MeasuredTime:
    """The constant and the part a sequence that explain these steps best, and what leaving the graph costs a layer."""
    steps = measured_steps()
    missing = steps.seconds - predicted_seconds(steps, prices)
    best = _constant_and_slope(steps, missing, steps.captured)
    others = [
        _constant_and_slope(steps, missing, steps.captured & (steps.batch != batch)) for batch in np.unique(steps.batch)
    ]
    layers = bundled_model("qwen3-30b-a3b").layers
    beyond = (missing - best[0] - best[1] * steps.batch)[~steps.captured]
    time = EngineTime(
        step_seconds=best[0],
        sequence_seconds=best[1],
        captured_positions=CAPTURED,
        eager_layer_seconds=float(np.median(beyond)) / layers,
        source=Source(kind=SourceKind.MEASURED, detail=f"{steps.conditions['engine']}; {steps.conditions['measure']}"),
    )
    constants, slopes = zip(*others, strict=True)
    return MeasuredTime(
        time=time, step_range=(min(constants), max(constants)), sequence_range=(min(slopes), max(slopes))
    )


def _constant_and_slope(steps: MeasuredSteps, missing: FloatArray, rows: BoolArray) -> tuple[float, float]:
    """Seconds a step and a sequence, neither below zero, with the least squared relative error."""
    scale = 1.0 / steps.seconds[rows]
    features = np.stack([scale, scale * steps.batch[rows]], axis=1)
    (constant, slope), _ = nnls(features, missing[rows] * scale)
    return float(constant), float(slope)


def piecewise_engine_time(full: EngineTime) -> EngineTime:
    """Graphs of pieces: no step is shorter than the host needs to launch the attention of every layer."""
    steps = measured_steps("-piecewise")
    small = steps.batch * (steps.depth + 1.0) <= 16  # where kernels are far shorter than the host's time
    floor = float(np.median(steps.seconds[small])) / bundled_model("qwen3-30b-a3b").layers
    return replace(full, floor_layer_seconds=floor)
