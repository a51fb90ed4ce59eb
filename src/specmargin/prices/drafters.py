"""The price of drafting: γ passes of a head, one pass of a block head, γ steps of a draft model, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture, DraftHead, LayerCounts, total_bytes
from specmargin.errors import ScenarioError
from specmargin.hardware.layout import Layout
from specmargin.prices.memory import sequence_bytes, stack_weight_bytes, weight_bytes
from specmargin.prices.model import EngineTime, PriceModel, StepPrice, fixed_line, ledger
from specmargin.prices.work import EVERYTHING, Component, Scope, Work, head_work, serial_work, stack_work, target_work
from specmargin.sources import Source, assumed
from specmargin.step import ExpertCounter, FloatArray, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class CostlessDrafter:
    """n-gram look-up on the host, or the assumption that drafting is free."""

    name: str
    source: Source

    @property
    def max_depth(self) -> int | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDrafter:
    """MTP, EAGLE (autoregressive), or DFlash and DSpark (one pass over a block)."""

    name: str
    head: DraftHead

    @property
    def source(self) -> Source:
        return self.head.source

    @property
    def max_depth(self) -> int | None:
        """What a block holds."""
        return self.head.block_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDrafter:
    """A separate, smaller model with its own price sheet."""

    name: str
    architecture: Architecture

    @property
    def source(self) -> Source:
        return self.architecture.source

    @property
    def max_depth(self) -> int | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappedDrafter:
    """SSD: the next round is drafted while this one is verified, for the outcomes it predicts.

    The step takes the longer of the two, and a missed prediction pays the draft again.
    """

    name: str
    inner: HeadDrafter | ModelDrafter
    hit_rate: float
    source: Source

    def __post_init__(self) -> None:
        if not 0.0 <= self.hit_rate <= 1.0:
            raise ScenarioError(f"the hit rate of overlapped drafting must lie in 0..1, got {self.hit_rate:g}")

    @property
    def max_depth(self) -> int | None:
        return self.inner.max_depth


Drafter = CostlessDrafter | HeadDrafter | ModelDrafter | OverlappedDrafter

FREE = CostlessDrafter(name="free", source=assumed("drafting costs nothing"))
NGRAM = CostlessDrafter(name="ngram", source=assumed("prompt look-up on the host, hidden behind the step"))


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

    def fits(self, drafter: Drafter) -> bool:
        """Whether these times are of such a drafter."""
        match drafter:
            case ModelDrafter():
                return self.method == "draft_model"
            case HeadDrafter():
                return self.method not in ("draft_model", "ngram")
            case CostlessDrafter() | OverlappedDrafter():
                return False
            case _:
                assert_never(drafter)


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
        if self.measured is not None and self.measured.fits(drafter):
            sizes, depths, _ = np.broadcast_arrays(batch, depth, context)
            return self.measured.seconds(sizes, depths)
        batch, context = np.broadcast_arrays(batch, context)  # not over depths: most passes do not depend on depth
        match drafter:
            case CostlessDrafter():
                return np.zeros(np.broadcast_shapes(batch.shape, np.shape(depth)))
            case OverlappedDrafter():
                return self.seconds(drafter.inner, batch=batch, depth=depth, context=context)
            case HeadDrafter() if drafter.head.block is not None:
                block = np.full(batch.shape, drafter.head.block - 1.0)
                one_pass = self._pass(drafter, batch, block, context).total_seconds
                return np.where(depth > 0, one_pass + self.engine_time.draft_seconds(np.ones(())), 0.0)
            case HeadDrafter() | ModelDrafter():
                return self._autoregressive(drafter, batch, depth, context)
            case _:
                assert_never(drafter)

    def prefill_seconds(self, drafter: Drafter, tokens: int) -> float:
        """Seconds in which the drafter reads a prompt: it needs the KV of every token, too."""
        match drafter:
            case CostlessDrafter():
                return 0.0
            case OverlappedDrafter():
                return self.prefill_seconds(drafter.inner, tokens)
            case HeadDrafter():
                reading: HeadDrafter | ModelDrafter = replace(drafter, head=replace(drafter.head, block=None))
            case ModelDrafter():
                reading = drafter
            case _:
                assert_never(drafter)
        step = Step.prompts(tokens=tokens)
        works, counts = self._works(reading, step)
        return float(ledger(self.model, works, step=step, engine=EngineTime(), counts=counts).total_seconds)

    def ledger(self, drafter: Drafter, *, batch: int, depth: int, context: float) -> StepPrice | None:
        """Drafting by component, summed over its passes; None where drafting is free."""
        if isinstance(drafter, OverlappedDrafter):
            return self.ledger(drafter.inner, batch=batch, depth=depth, context=context)
        if isinstance(drafter, CostlessDrafter) or depth == 0:
            return None
        size, ctx = np.asarray(float(batch)), np.asarray(float(context))
        if self.measured is not None and self.measured.fits(drafter):
            seconds = self.measured.seconds(size, np.asarray(float(depth)))
            return StepPrice(components=(fixed_line(Component.ENGINE, seconds, self.measured.source),))
        if isinstance(drafter, HeadDrafter) and drafter.head.block is not None:
            return self._with_engine_time(self._pass(drafter, size, np.asarray(drafter.head.block - 1.0), ctx), 1)
        first = self._pass(drafter, size, np.asarray(float(depth if self.scope.draft_catch_up else 0)), ctx)
        later = self._pass(drafter, size, np.asarray(0.0), ctx)
        return self._with_engine_time(_add_passes(first, later, depth - 1), depth)

    def _with_engine_time(self, kernels: StepPrice, passes: int) -> StepPrice:
        seconds = self.engine_time.draft_seconds(np.asarray(float(passes)))
        if not seconds:
            return kernels
        return StepPrice(
            components=(*kernels.components, fixed_line(Component.ENGINE, seconds, self.engine_time.source))
        )

    def _autoregressive(
        self, drafter: HeadDrafter | ModelDrafter, batch: FloatArray, depth: FloatArray, context: FloatArray
    ) -> FloatArray:
        """The first pass catches up over the run just verified; the others add one position each."""
        first_run = depth if self.scope.draft_catch_up else np.zeros_like(depth)
        first = self._pass(drafter, batch, first_run, context).total_seconds
        later = self._pass(drafter, batch, np.zeros(batch.shape), context).total_seconds
        passes = first + np.maximum(depth - 1.0, 0.0) * later
        return np.where(depth > 0, passes + self.engine_time.draft_seconds(depth), 0.0)

    def _pass(
        self, drafter: HeadDrafter | ModelDrafter, batch: FloatArray, depth: FloatArray, context: FloatArray
    ) -> StepPrice:
        step = Step.uniform(batch=batch, depth=depth, context=context)
        works, counts = self._works(drafter, step)
        engine = EngineTime(layer_seconds=self.engine_time.layer_seconds)
        return ledger(self.model, works, step=step, engine=engine, counts=counts)

    def _works(self, drafter: HeadDrafter | ModelDrafter, step: Step) -> tuple[list[Work], LayerCounts]:
        match drafter:
            case HeadDrafter():
                layers = sum(group.count for group in drafter.head.groups)
                return self._head_works(drafter.head, step), LayerCounts(layers=layers)
            case ModelDrafter():
                model = drafter.architecture
                experts = self.count_experts(model.pools, step)
                layout = _layout_for(self.layout, model)
                works = target_work(model, step, experts, layout=layout, kv=model.kv_precision, scope=self.scope)
                return works, model.layer_counts
            case _:
                assert_never(drafter)

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
        fusion_bytes = total_bytes(head.fusion)
        flops = sum(matrix.flops_per_position() for matrix in head.fusion)
        works.append(
            Work(
                component=Component.ATTENTION_PROJECTIONS,
                count=1,
                bytes=np.asarray(fusion_bytes),
                operations={head.fusion[0].precision.arithmetic: local.positions * flops} if head.fusion else {},
                subject=head.fusion,
                positions=local.positions,
            )
        )
        # A block head needs logits for its whole block, an autoregressive one for the last position alone.
        logit_positions = local.positions if head.block is not None else local.sequences
        works += head_work(head.lm_head, logit_positions, self.layout, self.scope)
        if head.serial and head.block_depth is not None:
            works.append(serial_work(head.serial, head.block_depth, local.sequences, self.layout))
        return works


def drafter_weight_bytes(drafter: Drafter, layout: Layout) -> float:
    """Memory on one GPU that the drafter's own weights take."""
    match drafter:
        case CostlessDrafter():
            return 0.0
        case OverlappedDrafter():
            return drafter_weight_bytes(drafter.inner, layout)
        case HeadDrafter():
            head = drafter.head
            own = 0.0 if head.shares_lm_head else head.lm_head.read_bytes(layout.attention_ranks)
            own += total_bytes(head.fusion + head.serial + head.lookups)
            return own + stack_weight_bytes(head.groups, layout)
        case ModelDrafter():
            model = drafter.architecture
            return weight_bytes(model, _layout_for(layout, model))
        case _:
            assert_never(drafter)


def drafter_sequence_bytes(
    drafter: Drafter, context: float, *, layout: Layout, kv: Precision, depth: int
) -> FloatArray:
    """KV and states of one sequence in the drafter: a head's in the target's precision, a model's in its own."""
    match drafter:
        case CostlessDrafter():
            return np.zeros(())
        case OverlappedDrafter():
            return drafter_sequence_bytes(drafter.inner, context, layout=layout, kv=kv, depth=depth)
        case HeadDrafter():
            return sequence_bytes(drafter.head.groups, context, layout=layout, kv=kv, depth=depth)
        case ModelDrafter():
            model = drafter.architecture
            return sequence_bytes(
                model.groups, context, layout=_layout_for(layout, model), kv=model.kv_precision, depth=depth
            )
        case _:
            assert_never(drafter)


def _layout_for(layout: Layout, model: Architecture) -> Layout:
    """A draft model whose heads do not divide over the GPUs is replicated on each of them."""
    return layout if model.attention_heads % layout.attention_ranks == 0 else Layout(gpus=1)


def _add_passes(first: StepPrice, later: StepPrice, times: int) -> StepPrice:
    """One first pass and `times` later ones, component by component."""
    by_component = {line.component: line for line in later.components}
    lines = []
    for line in first.components:
        later_line = by_component[line.component]
        lines.append(
            replace(
                line,
                seconds=line.seconds + times * later_line.seconds,
                bytes=line.bytes + times * later_line.bytes,
                flops=line.flops + times * later_line.flops,
                memory_seconds=line.memory_seconds + times * later_line.memory_seconds,
                compute_seconds=line.compute_seconds + times * later_line.compute_seconds,
                fixed_seconds=line.fixed_seconds + times * later_line.fixed_seconds,
            )
        )
    return StepPrice(components=tuple(lines))


def round_seconds(drafter: Drafter, verify: FloatArray, draft: FloatArray) -> FloatArray:
    """A round: draft and verify one after the other, or overlapped."""
    match drafter:
        case OverlappedDrafter():
            return np.maximum(verify, draft) + (1.0 - drafter.hit_rate) * draft
        case CostlessDrafter() | HeadDrafter() | ModelDrafter():
            return verify + draft
        case _:
            assert_never(drafter)
