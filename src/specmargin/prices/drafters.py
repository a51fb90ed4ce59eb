"""The price of drafting: γ passes of a head, one pass of a block head, γ steps of a draft model, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture, DraftHead, LayerCounts, layer_counts, total_bytes
from specmargin.errors import ScenarioError
from specmargin.hardware.layout import Layout
from specmargin.prices.memory import sequence_bytes, stack_weight_bytes, weight_bytes
from specmargin.prices.model import EngineTime, PriceModel, StepPrice, fixed_line, ledger
from specmargin.prices.work import EVERYTHING, Component, Scope, Work, head_work, matrix_work, stack_work, target_work
from specmargin.sources import Source, assumed
from specmargin.step import ExpertCounter, FloatArray, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """What drafts: a head (MTP, EAGLE, DFlash, DSpark), a smaller model, or nothing that takes time (n-gram look-up).

    `hit_rate`: drafting overlapped with verification (SSD). The next round is drafted while this one is verified, for
    the outcomes it predicts: a round takes the longer of the two, and a missed prediction pays the draft again.
    """

    name: str
    runs: DraftHead | Architecture | None
    source: Source
    hit_rate: float | None = None

    def __post_init__(self) -> None:
        if self.hit_rate is not None and not 0.0 <= self.hit_rate <= 1.0:
            raise ScenarioError(f"the hit rate of overlapped drafting must lie in 0..1, got {self.hit_rate:g}")

    @property
    def drafts_blocks(self) -> bool:
        """One pass over a block, instead of one pass per token."""
        return isinstance(self.runs, DraftHead) and self.runs.block is not None

    @property
    def max_depth(self) -> int | None:
        """What a block holds."""
        return self.runs.block_depth if isinstance(self.runs, DraftHead) else None


FREE = Drafter(name="free", runs=None, source=assumed("drafting costs nothing"))
NGRAM = Drafter(name="ngram", runs=None, source=assumed("prompt look-up on the host, hidden behind the step"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTime:
    """Measured passes of a drafter: the first one after a verify step, and each that follows."""

    method: str  # as the engine calls it
    first_seconds: float
    first_sequence_seconds: float
    later_seconds: float
    later_sequence_seconds: float
    source: Source

    def seconds(self, batch: FloatArray, depth: FloatArray) -> FloatArray:
        first = self.first_seconds + self.first_sequence_seconds * batch
        later = self.later_seconds + self.later_sequence_seconds * batch
        return np.where(depth > 0, first + np.maximum(depth - 1.0, 0.0) * later, 0.0)

    def fits(self, runs: DraftHead | Architecture) -> bool:
        """Whether these times are of such a drafter."""
        if isinstance(runs, Architecture):
            return self.method == "draft_model"
        return self.method not in ("draft_model", "ngram")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPricing:
    """Prices drafting for one scenario's layout and price model."""

    model: PriceModel
    layout: Layout
    kv: Precision
    count_experts: ExpertCounter
    scope: Scope = EVERYTHING
    engine_time: EngineTime = field(default_factory=EngineTime)  # time per layer and per pass are charged
    measured: DraftTime | None = None

    def seconds(self, drafter: Drafter, *, batch: FloatArray, depth: FloatArray, context: FloatArray) -> FloatArray:
        """Seconds of drafting `depth` tokens for each of `batch` sequences; 0 at depth 0."""
        runs = drafter.runs
        if runs is not None and self.measured is not None and self.measured.fits(runs):
            sizes, depths, _ = np.broadcast_arrays(batch, depth, context)
            return self.measured.seconds(sizes, depths)
        batch, context = np.broadcast_arrays(batch, context)  # not over depths: most passes do not depend on depth
        match runs:
            case None:
                return np.zeros(np.broadcast_shapes(batch.shape, np.shape(depth)))
            case DraftHead() if runs.block is not None:
                one_pass = self._pass(runs, batch, np.full(batch.shape, runs.block - 1.0), context).total_seconds
                return np.where(depth > 0, one_pass + self.engine_time.draft_seconds(np.ones(())), 0.0)
            case DraftHead() | Architecture():
                return self._autoregressive(runs, batch, depth, context)
            case _:
                assert_never(runs)

    def launch_seconds(self, drafter: Drafter, depth: FloatArray) -> FloatArray:
        """What the host takes to launch the passes; 0 in full graphs, and where passes were measured."""
        runs = drafter.runs
        if runs is None or (self.measured is not None and self.measured.fits(runs)):
            return np.zeros_like(depth)
        passes = np.ones_like(depth) if drafter.drafts_blocks else depth
        return self.engine_time.draft_launch_seconds(depth, passes, self._counts(runs))

    def prefill_seconds(self, drafter: Drafter, tokens: int) -> float:
        """Seconds in which the drafter reads a prompt: it needs the KV of every token, too."""
        if drafter.runs is None:
            return 0.0
        reading = replace(drafter.runs, block=None) if isinstance(drafter.runs, DraftHead) else drafter.runs
        step = Step.prompts(tokens=tokens)
        works, counts = self._works(reading, step)
        return float(ledger(self.model, works, step=step, engine=EngineTime(), counts=counts).total_seconds)

    def ledger(
        self, drafter: Drafter, *, batch: FloatArray, depth: FloatArray, context: FloatArray
    ) -> StepPrice | None:
        """Drafting by component, summed over its passes, at depths from 1 on; None where drafting is free."""
        runs = drafter.runs
        if runs is None:
            return None
        if self.measured is not None and self.measured.fits(runs):
            seconds = self.measured.seconds(batch, depth)
            return StepPrice(components=(fixed_line(Component.ENGINE, seconds, self.measured.source),))
        if isinstance(runs, DraftHead) and runs.block is not None:
            block = np.full(batch.shape, runs.block - 1.0)
            return self._with_engine_time(self._pass(runs, batch, block, context), np.ones(batch.shape))
        catch_up = depth if self.scope.draft_catch_up else np.zeros(batch.shape)
        later = self._pass(runs, batch, np.zeros(batch.shape), context)
        if self.engine_time.catches_up_alone:
            reading = self._pass(runs, batch, catch_up, context, logits=False)
            return self._with_engine_time(_add_passes(reading, later, depth), depth)
        first = self._pass(runs, batch, catch_up, context)
        return self._with_engine_time(_add_passes(first, later, depth - 1.0), depth)

    def _with_engine_time(self, kernels: StepPrice, passes: FloatArray) -> StepPrice:
        seconds = self.engine_time.draft_seconds(passes)
        if not np.any(seconds):
            return kernels
        return StepPrice(
            components=(*kernels.components, fixed_line(Component.ENGINE, seconds, self.engine_time.source))
        )

    def _autoregressive(
        self, runs: DraftHead | Architecture, batch: FloatArray, depth: FloatArray, context: FloatArray
    ) -> FloatArray:
        """The first pass catches up over the run just verified; the others add one position each."""
        first_run = depth if self.scope.draft_catch_up else np.zeros_like(depth)
        alone = self.engine_time.catches_up_alone
        first = self._pass(runs, batch, first_run, context, logits=not alone).total_seconds
        later = self._pass(runs, batch, np.zeros(batch.shape), context).total_seconds
        passes = first + np.maximum(depth - (0.0 if alone else 1.0), 0.0) * later
        return np.where(depth > 0, passes + self.engine_time.draft_seconds(depth), 0.0)

    def _pass(
        self,
        runs: DraftHead | Architecture,
        batch: FloatArray,
        depth: FloatArray,
        context: FloatArray,
        *,
        logits: bool = True,
    ) -> StepPrice:
        step = Step.uniform(batch=batch, depth=depth, context=context)
        works, counts = self._works(runs, step)
        works = works if logits else [work for work in works if work.component not in _LOGITS]
        engine = EngineTime(layer_seconds=self.engine_time.layer_seconds, source=self.engine_time.source)
        return ledger(self.model, works, step=step, engine=engine, counts=counts)

    def _works(self, runs: DraftHead | Architecture, step: Step) -> tuple[list[Work], LayerCounts]:
        if isinstance(runs, DraftHead):
            return self._head_works(runs, step), self._counts(runs)
        experts, layout = self.count_experts(runs.pools, step), _layout_for(self.layout, runs)
        works = target_work(runs, step, experts, layout=layout, kv=runs.kv_precision, scope=self.scope)
        return works, self._counts(runs)

    def _counts(self, runs: DraftHead | Architecture) -> LayerCounts:
        layout = self.layout if isinstance(runs, DraftHead) else _layout_for(self.layout, runs)
        return layer_counts(runs.groups).over(layout.attention_ranks)

    def _head_works(self, head: DraftHead, step: Step) -> list[Work]:
        pools = tuple(g.layer.experts.pool for g in head.groups if g.layer.experts is not None)
        works = stack_work(
            head.groups,
            step,
            self.count_experts(pools, step),
            layout=self.layout,
            kv=self.kv,
            hidden=head.lm_head.inputs,
            scope=self.scope,
        )
        local = step.divided(self.layout.sequence_ranks)
        if head.fusion:
            works.append(matrix_work(Component.ATTENTION_PROJECTIONS, 1, head.fusion, local.positions))
        # A block head needs logits for its whole block, an autoregressive one for the last position alone.
        logit_positions = local.positions if head.block is not None else local.sequences
        works += head_work(head.lm_head, logit_positions, self.layout, self.scope)
        if head.serial and head.block_depth is not None:
            # Read once per token of the block, after the token before it is known.
            ranks = self.layout.attention_ranks
            works.append(matrix_work(Component.LM_HEAD, head.block_depth, head.serial, local.sequences, ranks))
        return works


def drafter_weight_bytes(drafter: Drafter, layout: Layout) -> float:
    """Memory on one GPU that the drafter's own weights take."""
    match drafter.runs:
        case None:
            return 0.0
        case DraftHead() as head:
            own = 0.0 if head.shares_lm_head else head.lm_head.read_bytes(layout.attention_ranks)
            own += total_bytes(head.fusion + head.serial + head.lookups)
            return own + stack_weight_bytes(head.groups, layout)
        case Architecture() as model:
            return weight_bytes(model, _layout_for(layout, model))
        case _:
            assert_never(drafter.runs)


def drafter_sequence_bytes(
    drafter: Drafter, context: float, *, layout: Layout, kv: Precision, depth: int
) -> FloatArray:
    """KV and states of one sequence in the drafter: a head's in the target's precision, a model's in its own."""
    match drafter.runs:
        case None:
            return np.zeros(())
        case DraftHead() as head if head.shares_kv:
            return np.zeros(())
        case DraftHead() as head:
            return sequence_bytes(head.groups, context, layout=layout, kv=kv, depth=depth)
        case Architecture() as model:
            own = _layout_for(layout, model)
            return sequence_bytes(model.groups, context, layout=own, kv=model.kv_precision, depth=depth)
        case _:
            assert_never(drafter.runs)


_LOGITS = (Component.LM_HEAD, Component.SAMPLING)


def _layout_for(layout: Layout, model: Architecture) -> Layout:
    """A draft model whose heads do not divide over the GPUs is replicated on each of them."""
    return layout if model.attention_heads % layout.attention_ranks == 0 else Layout(gpus=1)


def _add_passes(first: StepPrice, later: StepPrice, times: FloatArray) -> StepPrice:
    """One first pass and `times` later ones, component by component; each may lack some of the other's."""
    here = {line.component: line for line in first.components}
    nothing = np.zeros(())
    lines = []
    for line in later.components:
        one = here.get(line.component)
        lines.append(line.plus(line, times - 1.0) if one is None else one.plus(line, times))
    own = [line.plus(line, nothing) for line in first.components if line.component not in {e.component for e in lines}]
    return StepPrice(components=(*lines, *own))


def round_seconds(drafter: Drafter, verify: FloatArray, draft: FloatArray) -> FloatArray:
    """A round: draft and verify one after the other, or overlapped."""
    if drafter.hit_rate is None:
        return verify + draft
    return np.maximum(verify, draft) + (1.0 - drafter.hit_rate) * draft
