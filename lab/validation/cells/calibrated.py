"""Prices corrected by steps of the same server outside of the cells: idle prompts, and batches that shrink.

`lab/gpu/served.py` plays that trace on each server before its cells. Per server it gives the host's time per launch,
how much longer prompts take than priced, and how much longer steps and rounds do, by batch and context. Rounds that
vLLM runs in piecewise graphs for want of a full one are left out: launches explain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.validation.cells.observed import Cell
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices.launches import DRAFT_PROMPT, HOST_SEQUENCE, HOST_STEP, Graph, launches
from specmargin.prices.model import StepPrice
from specmargin.simulator.graphs import Graphs
from specmargin.step import BoolArray, FloatArray, IntArray, Step

_GRAPH = 512  # prompts beyond it are launched kernel by kernel
_LEAST = 6  # steps of a batch size that count
_HOST_BOUND = 1.1  # a prompt that takes no more than this times its launches does not show what its kernels take


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Columns of a recorded log, in seconds."""

    begun: FloatArray
    ended: FloatArray
    prompt_tokens: IntArray
    decoding: IntArray
    verified: IntArray
    context: FloatArray  # mean tokens of a sequence

    @classmethod
    def of(cls, cell: Cell) -> Steps:
        columns, cache = cell.given["steps"], cell.given["cache"]
        begun = np.cumsum(np.array(columns["begun_us"], dtype=np.float64)) * 1e-6
        tokens = float(cache["num_gpu_blocks"]) * float(cache["block_size"])
        sequences = np.maximum(np.array(columns["sequences"], dtype=np.float64), 1.0)
        return cls(
            begun=begun,
            ended=begun + np.array(columns["took_us"], dtype=np.float64) * 1e-6,
            prompt_tokens=np.array(columns["prompt_tokens"], dtype=np.int64),
            decoding=np.array(columns["decoding"], dtype=np.int64),
            verified=np.array(columns["verified"], dtype=np.int64),
            context=np.array(columns["kv_usage"], dtype=np.float64) * tokens / sequences,
        )

    @property
    def settled(self) -> BoolArray:
        """Steps that only decode, after and before such steps of the same batch."""
        pure = self.prompt_tokens == 0
        around = pure & np.roll(pure, 1) & np.roll(pure, 2) & np.roll(pure, -1)
        around[:2], around[-1:] = False, False
        same = (self.decoding == np.roll(self.decoding, 1)) & (self.verified == np.roll(self.verified, 1))
        return np.asarray(around & same & (self.decoding > 0))

    @property
    def idle_prompts(self) -> IntArray:
        """Steps of one long prompt in an idle engine, which another step follows."""
        idle = self.begun > np.concatenate([[-1.0], np.maximum.accumulate(self.ended)[:-1]]) + 0.02
        chosen = idle & (self.prompt_tokens > _GRAPH) & (self.decoding == 0)
        return np.flatnonzero(chosen[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Measured over priced seconds by batch, at one context."""

    context: float
    batch: FloatArray
    ratio: FloatArray

    def at(self, batch: FloatArray) -> FloatArray:
        return np.asarray(np.interp(np.log(np.maximum(batch, 1.0)), np.log(self.batch), self.ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    launch_seconds: float
    prompts: float  # measured over priced seconds
    curves: tuple[Curve, ...]  # by context, of what the server runs: plain steps or rounds

    def factor(self, step: Step) -> FloatArray:
        if step.prompt_by_class is not None:
            return np.asarray(self.prompts)
        batch = np.maximum(step.sequences, 1.0)
        context = step.total(step.context_by_class) / batch
        ratios, contexts = [curve.at(batch) for curve in self.curves], [curve.context for curve in self.curves]
        if len(ratios) == 1:
            return ratios[0]
        share = np.clip((context - contexts[0]) / (contexts[-1] - contexts[0]), 0.0, 1.0)
        return np.asarray((1.0 - share) * ratios[0] + share * ratios[-1])


class CorrectedPricer(Pricer):
    __slots__ = ("_correction",)

    def __init__(self, scenario: Scenario, correction: Correction) -> None:
        super().__init__(scenario)
        self._correction = correction

    def _sharing(self, scenario: Scenario) -> Pricer:
        return CorrectedPricer(scenario, self._correction)

    def verify(self, step: Step, local: Step | None = None) -> StepPrice:
        price, factor = super().verify(step, local), self._correction.factor(step)
        return StepPrice(components=tuple(replace(line, **_scaled(line, factor)) for line in price.components))


def _scaled(line: object, factor: FloatArray) -> dict[str, FloatArray]:
    names = ("seconds", "memory_seconds", "compute_seconds", "fixed_seconds")
    return {name: np.asarray(getattr(line, name) * factor) for name in names}


def correction_of(cells: Sequence[Cell], pricer: Pricer, graphs: Graphs) -> Correction:
    """`cells`: of one server; the pricer of its model, and the graphs that its steps run in."""
    logs, bare = [Steps.of(cell) for cell in cells], pricer.without_launches()
    speculating = any(cell.given["contestant"] != "none" for cell in cells)
    launch = _launch_seconds(logs, pricer.scenario, speculating=speculating)
    curves = [curve for log in logs for curve in _curves(log, bare, graphs)]
    return Correction(
        launch_seconds=launch,
        prompts=_prompts(logs, bare, launch),
        curves=tuple(sorted(curves, key=lambda curve: curve.context)),
    )


def _launch_seconds(logs: Sequence[Steps], scenario: Scenario, *, speculating: bool) -> float:
    """The host begins the next step as soon as it has launched a prompt."""
    count = launches(Graph.COMPILED, scenario.layer_counts) + HOST_STEP + HOST_SEQUENCE + DRAFT_PROMPT * speculating
    took = [log.begun[i + 1] - log.begun[i] for log in logs for i in log.idle_prompts]
    return float(np.median(took)) / count


def _prompts(logs: Sequence[Steps], bare: Pricer, launch_seconds: float) -> float:
    ratios = []
    for log in logs:
        for i in log.idle_prompts:
            launched = log.begun[i + 1] - log.begun[i]
            if (took := log.ended[i] - log.begun[i]) > _HOST_BOUND * (launched + HOST_STEP * launch_seconds):
                step = Step.prompts(count=1, tokens=float(log.prompt_tokens[i]), context=0.0)
                ratios.append((took - HOST_STEP * launch_seconds) / float(bare.verify(step).total_seconds))
    return float(np.median(ratios)) if ratios else 1.0


def _curves(log: Steps, bare: Pricer, graphs: Graphs) -> list[Curve]:
    """One per level of contexts: below and above the middle of those that occur."""
    settled = np.flatnonzero(log.settled)
    middle = float(np.sqrt(log.context[settled].min() * log.context[settled].max()))
    halves = [settled[log.context[settled] < middle], settled[log.context[settled] >= middle]]
    if log.context[settled].max() < 2.0 * log.context[settled].min():
        halves = [settled]
    return [curve for half in halves if (curve := _curve(log, half, bare, graphs)) is not None]


def _curve(log: Steps, chosen: IntArray, bare: Pricer, graphs: Graphs) -> Curve | None:
    seconds, batches, ratios = np.diff(log.ended, prepend=0.0), [], []
    for batch in np.unique(log.decoding[chosen]):
        at = chosen[log.decoding[chosen] == batch]
        depth = int(np.median(log.verified[at]) // batch)
        at = at[log.verified[at] == depth * batch]
        if at.size < _LEAST or not graphs.full[batch, depth]:
            continue
        context, padded = float(np.median(log.context[at])), float(graphs.positions[batch, depth])
        drafting = float(bare.draft_seconds(float(batch), float(depth), context)) if depth else 0.0
        sequences = padded / (depth + 1.0)
        step = Step.uniform(batch=sequences, depth=float(depth), context=context * batch / sequences)
        batches.append(float(batch))
        ratios.append((float(np.median(seconds[at])) - drafting) / float(bare.verify(step).total_seconds))
    if not batches:
        return None
    return Curve(context=float(np.median(log.context[chosen])), batch=np.array(batches), ratio=np.array(ratios))
