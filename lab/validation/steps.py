"""Measured verify steps of a real engine on a real GPU, over batch and draft depth, with their conditions.

python -m lab.validation.steps
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from scipy.optimize import nnls

from lab import DATA
from lab.terminal import console, note, run, table
from lab.validation import precisions
from lab.validation.accuracy import Accuracy, median_and
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.engine_times import NO_ENGINE_TIME
from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.catalog.prices import find_prices
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import FREE
from specmargin.prices.model import EngineTime
from specmargin.routing.profile import UNIFORM
from specmargin.sources import Source, SourceKind
from specmargin.step import BoolArray, FloatArray, Step

GRAPH_LIMIT = 512  # positions of the largest CUDA graph in these runs
_PROMPT = 512
_CONTEXT = _PROMPT + 8.0  # 8: half of the tokens that were generated during the timing
_FILE = "vllm-h200-qwen3-30b-a3b"
SECOND_RUN = "a second run, more batches (nothing fitted)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    batch: FloatArray
    depth: FloatArray
    seconds: FloatArray
    conditions: dict[str, str]

    @property
    def captured(self) -> BoolArray:
        return np.asarray(self.batch * (self.depth + 1.0) <= GRAPH_LIMIT)


def measured_steps(run: str = "") -> MeasuredSteps:
    """`run`: "" for full graphs, "-piecewise" for piecewise graphs only, "-alike" for a second run with full graphs."""
    text = (DATA / "measurements" / f"{_FILE}{run}.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    time_key = "strangers_ms" if run == "-alike" else "step_ms"
    batch, depth, milliseconds = (
        np.array([row[name] for row in values["rows"]], dtype=np.float64) for name in ("batch", "draft_depth", time_key)
    )
    return MeasuredSteps(batch=batch, depth=depth, seconds=milliseconds * 1e-3, conditions=values["meta"])


def step_scenario(prices: str, engine_time: EngineTime) -> Scenario:
    device = bundled_device("h200")
    return Scenario(
        architecture=bundled_model("qwen3-30b-a3b"),
        device=device,
        prices=find_prices(prices, device, "vllm", RooflineForm.PER_COMPONENT),
        routing=UNIFORM,
        drafter=FREE,
        survival=parse_acceptance("0"),
        context=_CONTEXT,
        engine_time=engine_time,
    )


def predicted_seconds(steps: MeasuredSteps, prices: str, engine_time: EngineTime = NO_ENGINE_TIME) -> FloatArray:
    grid = Step.uniform(batch=steps.batch, depth=steps.depth, context=_CONTEXT)
    return Pricer(step_scenario(prices, engine_time)).verify(grid).total_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTime:
    """Engine time fitted to measured steps, and its ranges when any one batch size is left out."""

    time: EngineTime
    step_range: tuple[float, float]
    sequence_range: tuple[float, float]


def measured_engine_time(prices: str) -> MeasuredTime:
    """Constant and time per sequence with the least error on these steps, and extra time per layer without a graph."""
    steps = measured_steps()
    unexplained = steps.seconds - predicted_seconds(steps, prices)
    best = _constant_and_slope(steps, unexplained, steps.captured)
    others = [
        _constant_and_slope(steps, unexplained, steps.captured & (steps.batch != batch))
        for batch in np.unique(steps.batch)
    ]
    layers = bundled_model("qwen3-30b-a3b").layers
    beyond = (unexplained - best[0] - best[1] * steps.batch)[~steps.captured]
    time = EngineTime(
        step_seconds=best[0],
        sequence_seconds=best[1],
        graph_limit=GRAPH_LIMIT,
        eager_layer_seconds=float(np.median(beyond)) / layers,
        source=Source(kind=SourceKind.MEASURED, detail=f"{steps.conditions['engine']}; {steps.conditions['measure']}"),
    )
    constants, slopes = zip(*others, strict=True)
    return MeasuredTime(
        time=time, step_range=(min(constants), max(constants)), sequence_range=(min(slopes), max(slopes))
    )


def _constant_and_slope(steps: MeasuredSteps, unexplained: FloatArray, rows: BoolArray) -> tuple[float, float]:
    """Seconds per step and per sequence, both non-negative, with the least squared relative error."""
    scale = 1.0 / steps.seconds[rows]
    features = np.stack([scale, scale * steps.batch[rows]], axis=1)
    (constant, slope), _ = nnls(features, unexplained[rows] * scale)
    return float(constant), float(slope)


def piecewise_engine_time(full: EngineTime) -> EngineTime:
    """Piecewise graphs: a step takes at least the time that the host needs to launch the attention of every layer."""
    steps = measured_steps("-piecewise")
    small = steps.batch * (steps.depth + 1.0) <= 16  # where kernels are far shorter than the host's time
    floor = float(np.median(steps.seconds[small])) / bundled_model("qwen3-30b-a3b").layers
    return replace(full, floor_layer_seconds=floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One line of the report: the steps, the price source and its errors."""

    steps: str
    source: str
    count: int
    median_error: float
    worst_error: float


def step_lines() -> Iterator[StepLine]:
    """Tables and laws with fitted engine time; the datasheet roofline without it."""
    full, second, pieces = measured_steps(), measured_steps("-alike"), measured_steps("-piecewise")
    for source in ("tables", "laws", "datasheet"):
        time = NO_ENGINE_TIME if source == "datasheet" else measured_engine_time(source).time
        piecewise_time = time if source == "datasheet" else piecewise_engine_time(time)
        error = _errors(full, source, time)
        yield _line("full graphs, within the graph limit (fitted here)", source, error[full.captured])
        yield _line("full graphs, beyond the graph limit (eager time fitted here)", source, error[~full.captured])
        yield _line(SECOND_RUN, source, _errors(second, source, time))
        error = _errors(pieces, source, piecewise_time)
        yield _line("piecewise graphs, within the graph limit (one number fitted)", source, error[pieces.captured])
        yield _line("piecewise graphs, beyond the graph limit (nothing fitted)", source, error[~pieces.captured])


def _errors(steps: MeasuredSteps, source: str, time: EngineTime) -> FloatArray:
    return np.asarray(np.abs(predicted_seconds(steps, source, time) / steps.seconds - 1.0))


def _line(steps: str, source: str, errors: FloatArray) -> StepLine:
    return StepLine(
        steps=steps,
        source=source,
        count=int(errors.size),
        median_error=float(np.median(errors)),
        worst_error=float(errors.max()),
    )


# --- the report ---


def report(out: Console) -> list[Accuracy]:
    lines = list(step_lines())
    sources = tuple(dict.fromkeys(line.source for line in lines))
    shown = table("vLLM: median (worst) error of whole steps", ("verify steps, depth 0 to 7",), ("steps", *sources))
    groups: dict[str, list[StepLine]] = {}
    for line in lines:
        groups.setdefault(line.steps, []).append(line)
    for name, group in groups.items():
        cells = [f"{line.median_error:.1%} ({line.worst_error:.1%})" for line in group]
        shown.add_row(name, str(group[0].count), *cells)
    out.print(shown)
    conditions = measured_steps().conditions
    note(out, f"{conditions['engine']}; {conditions['gpu']}; {conditions['model']}")
    out.print()
    unfitted = groups[SECOND_RUN]
    accuracy = Accuracy(
        what="verify steps, nothing fitted (worst)",
        count=unfitted[0].count,
        errors={line.source: median_and(line.median_error, line.worst_error) for line in unfitted},
    )
    return [accuracy, *precisions.report(out)]


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
