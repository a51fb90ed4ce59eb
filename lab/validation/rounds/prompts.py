"""Steps of a real engine that read a prompt: what they take, and the shortest step without a CUDA graph.

The host launches the kernels of such a step one by one. While the kernels take less time than that, the step takes the
host's time, whatever its prompt; beyond, it takes the time of its kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from lab import DATA
from lab.validation.rounds.measured import RoundLine, fitted_engine_time, measured_rounds, round_line, round_pricer
from lab.validation.rounds.measured import predicted_seconds as predicted_rounds
from specmargin.architecture.types import LayerCounts
from specmargin.catalog.lookup import bundled_model
from specmargin.prices.launches import Graph, launches
from specmargin.prices.model import EngineTime
from specmargin.step import BoolArray, FloatArray, Step

_FILE = "vllm-0.32-h200-prompts.json"
_GRAPH_LIMIT = 256  # positions of the largest CUDA graph in these runs
_HOST_BOUND = 0.7  # steps whose kernels take less than this share of the measured time show the host's time
_DENSE, _MOE, _HYBRID = "llama-3.1-8b", "qwen3-30b-a3b", "qwen3.6-35b-a3b"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSteps:
    """Measured steps of one engine with one prompt each. Batch 0: nothing else decodes."""

    name: str
    model: str
    drafter: str
    batch: FloatArray
    depth: FloatArray
    prompt: FloatArray
    context: FloatArray
    seconds: FloatArray

    @property
    def captured(self) -> BoolArray:
        return np.asarray(self.batch * (self.depth + 1.0) + self.prompt <= _GRAPH_LIMIT)


@cache
def _document() -> dict[str, Any]:
    text = (DATA / "measurements" / _FILE).read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def measured_prompts() -> list[PromptSteps]:
    return [_steps(engine) for engine in _document()["engines"]]


def _steps(engine: dict[str, Any]) -> PromptSteps:
    columns = {
        key: np.array([row[key] for row in engine["rows"]], dtype=np.float64)
        for key in ("batch", "depth", "prompt", "context")
    }
    seconds = np.array([row["step_ms"] for row in engine["rows"]]) * 1e-3
    return PromptSteps(
        name=engine["name"], model=engine["model"], drafter=engine["drafter"], seconds=seconds, **columns
    )


def predicted_seconds(steps: PromptSteps, prices: str, engine_time: EngineTime) -> FloatArray:
    """The target's step, the drafter reading the prompt, and drafts for the decoding sequences."""
    pricer = round_pricer(steps.model, steps.drafter, prices, engine_time)
    seconds = []
    for batch, depth, prompt, context in zip(steps.batch, steps.depth, steps.prompt, steps.context, strict=True):
        step = Step.prompts(tokens=prompt)
        if batch > 0:
            step = Step.uniform(batch=batch, depth=depth, context=context).joined(step)
        drafting = float(pricer.draft_seconds(batch, depth, context)) if batch > 0 else 0.0
        reading = pricer.drafter_prefill_seconds(int(prompt)) if steps.drafter else 0.0
        seconds.append(float(pricer.verify(step).total_seconds) + drafting + reading)
    return np.array(seconds)


# --- report ---


def prompt_lines() -> Iterator[RoundLine]:
    """Steps without a graph, by whether the host or the kernels take longer. The host's times are fitted to them."""
    for source in ("tables", "laws"):
        terms = replace(fitted_engine_time(source), graph_limit=None)
        time = replace(with_host_launches(source, terms), graph_limit=_GRAPH_LIMIT)
        errors, host_bound = [], []
        for steps in measured_prompts():
            eager, kernels = ~steps.captured, predicted_seconds(steps, source, terms)
            errors.append((predicted_seconds(steps, source, time) / steps.seconds - 1.0)[eager])
            host_bound.append((kernels < _HOST_BOUND * steps.seconds)[eager])
        error, host = np.concatenate(errors), np.concatenate(host_bound)
        yield round_line("a prompt, kernels longer than launching", source, error[~host])
        yield round_line("a prompt, launching longer (fitted here)", source, error[host])


# --- engine time ---


def with_host_launches(prices: str, time: EngineTime) -> EngineTime:
    """The host's time per launch, from steps of a dense model without a graph: its layers are the unit of a launch.

    What MoE and GatedDeltaNet layers launch more (`prices/launches.py`) was counted in this unit (`counted_launches`).
    """
    counts = bundled_model(_DENSE).layer_counts
    seconds = _host_seconds(_DENSE, prices, time) / launches(Graph.COMPILED, counts)
    return replace(time, kernel_launch_seconds=seconds, prompt_graph=Graph.PIECEWISE)


def counted_launches(prices: str, time: EngineTime) -> tuple[float, float]:
    """Launches that an MoE layer and a GatedDeltaNet layer add to a dense layer's, on this host."""
    seconds = with_host_launches(prices, time).kernel_launch_seconds
    moe, hybrid = (bundled_model(name).layer_counts for name in (_MOE, _HYBRID))
    dense = launches(Graph.COMPILED, LayerCounts(layers=1))
    more = _host_seconds(_MOE, prices, time) / seconds - dense * moe.layers
    rest = _host_seconds(_HYBRID, prices, time) / seconds - dense * hybrid.layers
    per_expert_layer = more / moe.moe_layers
    return per_expert_layer, (rest - per_expert_layer * hybrid.moe_layers) / hybrid.recurrent_layers


def _host_seconds(model: str, prices: str, time: EngineTime) -> float:
    """Median time of the model's steps without a graph whose kernels hide little of it, with prompts and without."""
    host = []
    for prompts in measured_prompts():
        if prompts.model == model:
            host.append(_host_bound(prompts.seconds, predicted_seconds(prompts, prices, time), ~prompts.captured))
    for rounds in measured_rounds():
        if rounds.model == model:
            host.append(_host_bound(rounds.seconds, predicted_rounds(rounds, prices, time), ~rounds.captured))
    return float(np.median(np.concatenate(host)))


def _host_bound(seconds: FloatArray, kernels: FloatArray, eager: BoolArray) -> FloatArray:
    return np.asarray(seconds[eager & (kernels < _HOST_BOUND * seconds)])
