"""Prices corrected by steps of such a server outside of the cells: idle prompts, and batches that shrink.

`lab/gpu/served.py` plays that trace on each server. It gives the host's time per launch, how much longer prompts take
than priced, and how much longer steps and rounds do, by batch. Rounds that vLLM runs in piecewise graphs for want of a
full one are left out: launches explain them. Where a cell has looked at its host just before and after, the time per
launch is from there. It swings within seconds, so that the simulated host keeps the pace of these prompts, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lab.validation.cells.observed import Cell
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices.launches import DRAFT_PROMPT, HOST_SEQUENCE, HOST_STEP, Graph, launches
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.simulator.graphs import Graphs
from specmargin.simulator.tables import StepTables
from specmargin.step import FloatArray, IntArray, Step

_GRAPH = 512  # prompts beyond it are launched kernel by kernel
PROMPT_SECONDS = 0.35  # from one idle prompt of such a trace to the next (`lab/gpu/served_jobs.py`)
LOOK_SECONDS = 0.15  # and of prompts beside a batch
_LEAST = 4  # steps of a batch size that count
_IDLE_SECONDS = 0.02
# More per position where a step's positions are not a multiple of four, with weights in FP8 blocks (`odd_seconds`). In
# the GLM cells without speculation, 25 such steps whose kernels outlast their launches take 29.0 to 30.8 µs per
# position, two others 21.3 and 22.1 and idle prompts 21.6. The calibrations so far only have multiples of four.
_ODD_SECONDS = 8.4e-6
_HOST_BOUND = 1.1  # a prompt that takes no more than this times its launches does not show what its kernels take


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Columns of a recorded log, in seconds."""

    begun: FloatArray
    ended: FloatArray
    prompt_tokens: IntArray
    sequences: IntArray
    decoding: IntArray
    verified: IntArray
    context: FloatArray  # mean tokens of a sequence

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Steps:
        columns, cache = given["steps"], given["cache"]
        begun = np.cumsum(np.array(columns["begun_us"], dtype=np.float64)) * 1e-6
        tokens = float(cache["num_gpu_blocks"]) * float(cache["block_size"])
        sequences = np.array(columns["sequences"], dtype=np.int64)
        return cls(
            begun=begun,
            ended=begun + np.array(columns["took_us"], dtype=np.float64) * 1e-6,
            prompt_tokens=np.array(columns["prompt_tokens"], dtype=np.int64),
            sequences=sequences,
            decoding=np.array(columns["decoding"], dtype=np.int64),
            verified=np.array(columns["verified"], dtype=np.int64),
            context=np.array(columns["kv_usage"], dtype=np.float64) * tokens / np.maximum(sequences, 1),
        )

    @property
    def settled(self) -> IntArray:
        """Steps that only decode, among such steps."""
        pure = self.prompt_tokens == 0
        around = pure & np.roll(pure, 1) & np.roll(pure, 2) & np.roll(pure, -1)
        around[:2], around[-1:] = False, False
        return np.flatnonzero(around & (self.decoding > 0))

    @property
    def launched_prompts(self) -> IntArray:
        """Steps with one long prompt, launched kernel by kernel."""
        alone = self.sequences == self.decoding + 1
        return np.flatnonzero((alone & (self.prompt_tokens > _GRAPH))[:-1])

    @property
    def idle_prompts(self) -> IntArray:
        """Steps of one long prompt in an idle engine, which a step of the same request follows."""
        idle = self.begun > np.concatenate([[-1.0], np.maximum.accumulate(self.ended)[:-1]]) + _IDLE_SECONDS
        chosen = idle & (self.prompt_tokens > _GRAPH) & (self.decoding == 0)
        alone = (np.roll(self.prompt_tokens, -1) == 0) & (np.roll(self.decoding, -1) == 1)
        return np.flatnonzero((chosen & alone)[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured over priced seconds: of prompts, and by batch of what the server runs, plain steps or rounds."""

    launches: FloatArray  # seconds of each, one prompt after the other
    apart_seconds: float  # from one of these prompts to the next
    prompts: float
    odd_seconds: float  # of prompts, per position
    batch: FloatArray
    ratio: FloatArray

    @property
    def launch_seconds(self) -> float:
        return float(self.launches.mean())

    def factor(self, step: Step) -> FloatArray:
        if step.prompt_by_class is not None:
            return np.asarray(self.prompts)
        return np.asarray(np.interp(np.log(np.maximum(step.sequences, 1.0)), np.log(self.batch), self.ratio))


class CorrectedPricer(Pricer):
    __slots__ = ("_correction",)

    def __init__(self, scenario: Scenario, correction: Correction) -> None:
        super().__init__(scenario)
        self._correction = correction

    def host(self, tables: StepTables, start: float) -> StepTables:
        """With launches at the recorded pace, from this share of the recording on."""
        correction = self._correction
        pace = np.roll(correction.launches / correction.launch_seconds, -int(start * correction.launches.size))
        return tables._replace(host_pace=np.ascontiguousarray(pace), pace_seconds=correction.apart_seconds)

    def _sharing(self, scenario: Scenario) -> Pricer:
        return CorrectedPricer(scenario, self._correction)

    def verify(self, step: Step, local: Step | None = None) -> StepPrice:
        price, factor = super().verify(step, local), self._correction.factor(step)
        return StepPrice(components=tuple(_scaled(line, factor) for line in price.components))


def _scaled(line: ComponentPrice, factor: FloatArray) -> ComponentPrice:
    return replace(
        line,
        seconds=np.asarray(line.seconds * factor),
        memory_seconds=np.asarray(line.memory_seconds * factor),
        compute_seconds=np.asarray(line.compute_seconds * factor),
        fixed_seconds=np.asarray(line.fixed_seconds * factor),
    )


def correction_of(cell: Cell, pricer: Pricer, graphs: Graphs) -> Correction:
    """`pricer` of the server's model, and the graphs that its steps run in."""
    log, bare = Steps.of(cell.given), pricer.without_launches()
    launch = _launch_seconds(log, log.idle_prompts, pricer.scenario, speculating=speculates(cell))
    middle = float(np.median(launch))
    prompts = _prompts(log, bare, middle)
    odd = _odd_seconds(log, bare, middle, prompts) if cell.given["model"]["weights"] == "fp8-block" else 0.0
    batch, ratio = _by_batch(log, bare, graphs)
    return Correction(
        launches=launch, apart_seconds=PROMPT_SECONDS, prompts=prompts, odd_seconds=odd, batch=batch, ratio=ratio
    )


def host_looks(cell: Cell, scenario: Scenario) -> list[FloatArray]:
    """Seconds per launch of prompts just before and after the cell; nothing if nobody looked."""
    logs = [Steps.of(given) for given in cell.given.get("host", ())]
    found = [_launch_seconds(log, log.launched_prompts, scenario, speculating=speculates(cell)) for log in logs]
    return [look for look in found if look.size]


def speculates(cell: Cell) -> bool:
    return bool(cell.given["contestant"] != "none")


def _launch_seconds(log: Steps, chosen: IntArray, scenario: Scenario, *, speculating: bool) -> FloatArray:
    """The host begins the next step as soon as it has launched a prompt."""
    counts = scenario.layer_counts
    alone, mixed = (launches(Graph.COMPILED, counts, mixed=beside) for beside in (False, True))
    kernels = np.where(log.decoding[chosen] > 0, mixed, alone) + DRAFT_PROMPT * speculating
    host = HOST_STEP + HOST_SEQUENCE * log.sequences[chosen]
    return np.asarray((log.begun[chosen + 1] - log.begun[chosen]) / (kernels + host))


def _prompts(log: Steps, bare: Pricer, launch_seconds: float) -> float:
    """Of prompts whose tokens are a multiple of four."""
    bound = _gpu_bound(log, launch_seconds)
    ratios = [seconds / _priced(log, i, bare) for i, seconds in bound if log.prompt_tokens[i] % 4 == 0]
    return float(np.median(ratios)) if ratios else 1.0


def _odd_seconds(log: Steps, bare: Pricer, launch_seconds: float, prompts: float) -> float:
    """Per position, of other prompts; if none were played, as in the cells of served-h200."""
    bound = [(i, seconds) for i, seconds in _gpu_bound(log, launch_seconds) if log.prompt_tokens[i] % 4]
    more = [(seconds - prompts * _priced(log, i, bare)) / log.prompt_tokens[i] for i, seconds in bound]
    return max(float(np.median(more)), 0.0) if more else _ODD_SECONDS


def _gpu_bound(log: Steps, launch_seconds: float) -> list[tuple[int, float]]:
    """Idle prompts whose kernels outlast their launches, and the seconds of these kernels."""
    found = []
    for i in log.idle_prompts:
        launched, took = log.begun[i + 1] - log.begun[i], log.ended[i] - log.begun[i]
        if took > _HOST_BOUND * (launched + HOST_STEP * launch_seconds):
            found.append((int(i), float(took - HOST_STEP * launch_seconds)))
    return found


def _priced(log: Steps, index: int, bare: Pricer) -> float:
    step = Step.prompts(count=1, tokens=float(log.prompt_tokens[index]), context=0.0)
    return float(bare.verify(step).total_seconds)


def _by_batch(log: Steps, bare: Pricer, graphs: Graphs) -> tuple[FloatArray, FloatArray]:
    """Medians over batch sizes that grow by a quarter; short and long contexts together, which hardly differ."""
    chosen = log.settled
    depth = log.verified[chosen] // log.decoding[chosen]
    usable = (log.verified[chosen] == depth * log.decoding[chosen]) & graphs.full[log.decoding[chosen], depth]
    chosen, depth = chosen[usable], depth[usable]
    batch, ratio = log.decoding[chosen], _ratio(log, chosen, depth, bare, graphs)
    bins = np.round(np.log(batch) / np.log(1.25)).astype(np.int64)
    every = [bins == one for one in np.unique(bins) if (bins == one).sum() >= _LEAST]
    middles, medians = ([float(np.median(values[one])) for one in every] for values in (batch, ratio))
    return np.array(middles), np.array(medians)


def _ratio(log: Steps, chosen: IntArray, depth: IntArray, bare: Pricer, graphs: Graphs) -> FloatArray:
    batch, context = log.decoding[chosen].astype(np.float64), log.context[chosen]
    drafting = np.where(depth > 0, bare.draft_seconds(batch, np.maximum(depth, 1.0), context), 0.0)
    sequences = graphs.positions[log.decoding[chosen], depth] / (depth + 1.0)
    step = Step.uniform(batch=sequences, depth=depth.astype(np.float64), context=context * batch / sequences)
    seconds = np.diff(log.ended, prepend=0.0)[chosen] - drafting
    return np.asarray(seconds / bare.verify(step).total_seconds)
