"""Prices corrected by steps of such a server outside of its cells: idle prompts, and batches that shrink.

`lab/gpu/served.py` plays that trace on each server. It gives the host's time per launch, how much longer prompts take
than priced by their tokens, and how much longer steps and rounds do, by batch. Rounds that vLLM runs in piecewise
graphs for want of a full one are left out: launches explain them. Where a cell has looked at its host just before and
after, the time per launch is from there. Launch times vary within seconds, so the simulated host replays those of these
prompts, in the order of each look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
# More per position where a step's positions are not a multiple of four, with weights in FP8 blocks. In the GLM cells
# without speculation of the first two leases, 25 such steps whose kernels outlast their launches take 29.0 to 30.8 µs
# per position, two others 21.3 and 22.1 and idle prompts 21.6. The calibrations so far only have multiples of four.
_UNALIGNED_SECONDS = 8.4e-6
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


class IdlePrompt(NamedTuple):
    """A prompt in an idle engine whose kernels outlast their launches."""

    tokens: int
    seconds: float  # of its kernels
    priced_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Measured over priced seconds, by prompt tokens of a step; and what a position takes more in a step whose
    positions are no multiple of four."""

    tokens: FloatArray
    ratio: FloatArray
    unaligned_seconds: float

    def factor(self, tokens: FloatArray) -> FloatArray:
        return np.asarray(np.interp(np.log(np.maximum(tokens, 1.0)), np.log(self.tokens), self.ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured over priced seconds: of prompts, and by batch of what the server runs, plain steps or rounds."""

    launches: FloatArray  # seconds of each, one prompt after the other
    apart_seconds: float  # from one of these prompts to the next
    prompts: Prompts
    batch: FloatArray
    ratio: FloatArray

    @property
    def launch_seconds(self) -> float:
        return float(self.launches.mean())

    def factor(self, step: Step) -> FloatArray:
        if step.prompt_by_class is not None:
            return self.prompts.factor(step.total(step.run_by_class * (step.prompt_by_class > 0)))
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
        return tables._replace(launch_slowdown=np.ascontiguousarray(pace), slowdown_seconds=correction.apart_seconds)

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


def correction_of(cell: Cell, pricer: Pricer, graphs: Graphs, idle: Sequence[IdlePrompt]) -> Correction:
    """`pricer` of the server's model, and the graphs that its steps run in; `idle`: of all servers of this model."""
    log, bare = Steps.of(cell.given), pricer.without_launches()
    batch, ratio = _by_batch(log, bare, graphs)
    return Correction(
        launches=_launch_seconds(log, log.idle_prompts, pricer.scenario, speculating=speculates(cell)),
        apart_seconds=PROMPT_SECONDS,
        prompts=prompts_of(idle, blocks=cell.given["model"]["weights"] == "fp8-block"),
        batch=batch,
        ratio=ratio,
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


def prompts_of(idle: Sequence[IdlePrompt], *, blocks: bool) -> Prompts:
    """`blocks`: weights are in FP8 blocks. Prompts shorter than those whose kernels were seen are corrected alike."""
    alike = sorted({one.tokens for one in idle if one.tokens % 4 == 0 or not blocks})
    ratios = [[one.seconds / one.priced_seconds for one in idle if one.tokens == tokens] for tokens in alike]
    found = Prompts(
        tokens=np.array(alike or [1], dtype=np.float64),
        ratio=np.array([float(np.median(every)) for every in ratios] or [1.0]),
        unaligned_seconds=0.0,
    )
    return replace(found, unaligned_seconds=_unaligned_seconds(idle, found)) if blocks else found


def _unaligned_seconds(idle: Sequence[IdlePrompt], aligned: Prompts) -> float:
    """More per position than aligned prompts; a constant if the calibrations have no others."""
    more = [
        (one.seconds - aligned.factor(np.array(one.tokens)) * one.priced_seconds) / one.tokens
        for one in idle
        if one.tokens % 4 > 0
    ]
    return max(float(np.median(more)), 0.0) if more else _UNALIGNED_SECONDS


def idle_prompts(cell: Cell, pricer: Pricer) -> list[IdlePrompt]:
    log, bare, found = Steps.of(cell.given), pricer.without_launches(), []
    launch = np.median(_launch_seconds(log, log.idle_prompts, pricer.scenario, speculating=speculates(cell)))
    for i in log.idle_prompts:
        launched, took = log.begun[i + 1] - log.begun[i], log.ended[i] - log.begun[i]
        if took > _HOST_BOUND * (launched + HOST_STEP * launch):
            step = Step.prompts(count=1, tokens=float(log.prompt_tokens[i]), context=0.0)
            priced = float(bare.verify(step).total_seconds)
            found.append(IdlePrompt(int(log.prompt_tokens[i]), float(took - HOST_STEP * launch), priced))
    return found


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
