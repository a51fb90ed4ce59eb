"""The work of a step: bytes and operations, by component and layer group, on the busiest rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from specmargin.architecture.precision import FP32, Arithmetic, Precision
from specmargin.architecture.types import (
    Architecture,
    Attention,
    ExpertBlock,
    Layer,
    LayerGroup,
    LinearAttention,
    Matrix,
    total_bytes,
)
from specmargin.hardware.layout import Layout
from specmargin.hardware.offload import Offload
from specmargin.prices.attention import traffic
from specmargin.step import ExpertLoad, FloatArray, GroupLoad, Step

ACTIVATION_BYTES = 2.0  # activations are bf16
_HOST_ACTIVATION_BYTES = 4.0  # llama.cpp's are fp32 between GPU and processor
_LOGIT_BYTES = 4.0  # a bf16 logit, written by the LM head and read by the sampler


class Component(StrEnum):
    """The lines of a ledger."""

    ATTENTION_PROJECTIONS = "attention projections"
    ATTENTION = "attention"
    ROUTER = "router"
    ROUTED_EXPERTS = "routed experts"
    HOST_EXPERTS = "experts on cpu"
    HOST_LINK = "link to cpu"
    SHARED_EXPERTS = "shared experts"
    DENSE_FFN = "dense ffn"
    LM_HEAD = "lm head"
    SAMPLING = "sampling"
    COLLECTIVES = "collectives"
    LAYERS = "layer fixed time"
    ENGINE = "engine"
    LAUNCHES = "launches"


#: Experts that a router chose, wherever they are computed.
ROUTED = (Component.ROUTED_EXPERTS, Component.HOST_EXPERTS)


class CollectiveKind(StrEnum):
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    SEND = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    kind: CollectiveKind
    ranks: int
    choices: int = 0  # of an all-to-all: experts per position, each whole on one rank; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a price counts. Published grids leave some of it out; these switches reproduce them."""

    sampling: bool = True  # traffic of the logits
    state_writes: bool = True  # a recurrent state written per position of a run
    draft_catch_up: bool = True  # a drafter's first pass covers the whole run that was just verified


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """An attention layer and its projections, which are also measured as one."""

    attention: Attention
    projections: tuple[Matrix, ...]

    @classmethod
    def of(cls, layer: Layer) -> Module | None:
        """Hyper-connections (the only fp32 matrices) are outside of the module that engines call attention."""
        if layer.attention is None:
            return None
        inside = tuple(matrix for matrix in layer.projections if matrix.precision is not FP32)
        return cls(attention=layer.attention, projections=inside)


# Measured price models look these up: the shapes behind the bytes.
Subject = tuple[Matrix, ...] | Attention | ExpertBlock | Collective | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`count` equal pieces of work, one after another: the same component in equal layers.

    For a collective, `bytes` are what one rank sends in.
    """

    component: Component
    count: float
    bytes: FloatArray
    operations: dict[Arithmetic, FloatArray] = field(default_factory=dict)
    subject: Subject = None
    ranks: int = 1  # tensor-parallel ranks that the subject is split over
    expert_ranks: int = 1  # ranks that whole experts are spread over
    kv: Precision | None = None  # precision of the cache behind an attention work or its projections
    step: Step | None = None  # the sequences behind an attention work or its projections
    module: Module | None = None  # of which this work is a part
    positions: FloatArray = field(default_factory=lambda: np.zeros(()))
    distinct: FloatArray = field(default_factory=lambda: np.zeros(()))
    pairs: FloatArray = field(default_factory=lambda: np.zeros(()))

    @property
    def flops(self) -> FloatArray:
        return np.asarray(sum(self.operations.values(), start=np.zeros(())))


def stack_work(
    groups: Sequence[LayerGroup],
    step: Step,
    experts: ExpertLoad,
    *,
    layout: Layout,
    kv: Precision,
    hidden: int,
    scope: Scope = EVERYTHING,
    local: Step | None = None,
    offload: Offload | None = None,
) -> list[Work]:
    """All layers: projections, attention, router, experts, dense parts, and the collectives between them.

    `local` is what the busiest rank sees of the step, where sequences are spread over ranks.
    """
    local = step.divided(layout.sequence_ranks) if local is None else local
    works: list[Work] = []
    expert_index = 0
    hosted = _hosted_layers(groups, offload)
    for group in groups:
        layer = group.layer
        projections = _matrix_works(Component.ATTENTION_PROJECTIONS, group.count, layer.projections, local, layout)
        module = Module.of(layer)
        if module is None:
            works += projections
        else:
            attention = attention_work(module.attention, group.count, local, layout=layout, kv=kv, scope=scope)
            works += _joined((*projections, attention), module)
        works += _matrix_works(Component.DENSE_FFN, group.count, layer.dense, local, layout)
        if layer.experts is not None:
            works += _matrix_works(Component.ROUTER, group.count, layer.experts.router, local, layout)
            works += _matrix_works(Component.SHARED_EXPERTS, group.count, layer.experts.always_on, local, layout)
            on_host, load = hosted[expert_index], experts.of_group(expert_index)
            expert_index += 1
            if on_host < group.count:
                on_gpu = group.count - on_host
                works.append(expert_work(layer.experts, on_gpu, step, load.distinct, load.pairs, layout=layout))
            if on_host:
                works += _hosted_works(layer.experts, on_host, step, load, layout=layout, hidden=hidden)
    return works + _collectives(groups, local, layout, hidden)


def _hosted_layers(groups: Sequence[LayerGroup], offload: Offload | None) -> tuple[int, ...]:
    routed = tuple((group, group.layer.experts) for group in groups if group.layer.experts is not None)
    return (0,) * len(routed) if offload is None else offload.split(routed)


def _hosted_works(
    block: ExpertBlock, count: int, step: Step, load: GroupLoad, *, layout: Layout, hidden: int
) -> list[Work]:
    """Layers whose experts are in main memory: those that the GPU keeps, the others, and what goes over the link.

    Over it go the activations of every position, and back the result of each of its experts there.
    """
    works, distinct, pairs = [], load.distinct, load.pairs
    if load.kept_distinct is not None and load.kept_pairs is not None:
        works.append(expert_work(block, count, step, load.kept_distinct, load.kept_pairs, layout=layout))
        distinct, pairs = distinct - load.kept_distinct, pairs - load.kept_pairs
    there = expert_work(block, count, step, distinct, pairs, layout=Layout())
    message = (step.positions + pairs) * hidden * _HOST_ACTIVATION_BYTES
    link = Work(component=Component.HOST_LINK, count=count, bytes=message, positions=step.positions)
    return [*works, replace(there, component=Component.HOST_EXPERTS), link]


def target_work(
    architecture: Architecture,
    step: Step,
    experts: ExpertLoad,
    *,
    layout: Layout,
    kv: Precision,
    scope: Scope = EVERYTHING,
    local: Step | None = None,
    offload: Offload | None = None,
) -> list[Work]:
    """A whole step of the target: layers, then LM head and sampling over every position whose logits are needed."""
    local = step.divided(layout.sequence_ranks) if local is None else local
    layers = stack_work(
        architecture.groups,
        step,
        experts,
        layout=layout,
        kv=kv,
        hidden=architecture.hidden,
        scope=scope,
        local=local,
        offload=offload,
    )
    return layers + head_work(architecture.lm_head, local.wanted_positions, layout, scope)


def pipeline_work(architecture: Architecture, works: Sequence[Work], local: Step, layout: Layout) -> list[Work]:
    """The works of a batch on its way through all stages: each stage takes as long as the longest one, and sends its
    activations to the next."""
    if layout.stages == 1:
        return list(works)
    factor = layout.stage_factor(architecture.layers)
    message = local.positions * architecture.hidden * ACTIVATION_BYTES / layout.attention_ranks
    sends = _collective(CollectiveKind.SEND, layout.stages, message, layout.gpus)  # the last one returns tokens
    paced = [work if work.component in _LAST_STAGE else replace(work, count=work.count * factor) for work in works]
    return [*paced, sends]


_LAST_STAGE = (Component.LM_HEAD, Component.SAMPLING)


def module_work(module: Module, step: Step, *, layout: Layout, kv: Precision) -> list[Work]:
    """The module of one layer."""
    projections = _matrix_works(Component.ATTENTION_PROJECTIONS, 1, module.projections, step, layout)
    return _joined((*projections, attention_work(module.attention, 1, step, layout=layout, kv=kv)), module)


def _joined(works: Sequence[Work], module: Module) -> list[Work]:
    """Works of one module: each knows the whole of it. Attention is the last."""
    return [replace(work, module=module, kv=works[-1].kv, step=works[-1].step) for work in works]


def head_work(lm_head: Matrix, positions: FloatArray, layout: Layout, scope: Scope = EVERYTHING) -> list[Work]:
    """The vocabulary projection, sampling from its logits, and their all-gather where the vocabulary is split."""
    ranks = layout.attention_ranks
    logits = positions * lm_head.outputs
    works = [matrix_work(Component.LM_HEAD, 1, (lm_head,), positions, ranks)]
    if scope.sampling:
        sampled = logits * _LOGIT_BYTES / ranks
        works.append(Work(component=Component.SAMPLING, count=1, bytes=sampled, positions=positions))
    if ranks > 1:
        works.append(_collective(CollectiveKind.ALL_GATHER, 1, logits * ACTIVATION_BYTES / ranks, ranks))
    return works


def attention_work(
    attention: Attention, count: int, step: Step, *, layout: Layout, kv: Precision, scope: Scope = EVERYTHING
) -> Work:
    moved = traffic(
        attention,
        step.run_by_class,
        step.context_by_class,
        kv=kv,
        ranks=layout.attention_ranks,
        states=step.wanted_by_class,
    )
    writes = scope.state_writes or not isinstance(attention, LinearAttention)
    moved_bytes = moved.read_bytes + moved.written_bytes if writes else moved.read_bytes
    return Work(
        component=Component.ATTENTION,
        count=count,
        bytes=step.total(moved_bytes),
        operations={Arithmetic.BF16: step.total(moved.flops)},
        subject=attention,
        ranks=layout.attention_ranks,
        kv=kv,
        step=step,
        positions=step.positions,
    )


def expert_work(
    block: ExpertBlock, count: int, step: Step, distinct: FloatArray, pairs: FloatArray, *, layout: Layout
) -> Work:
    """Routed experts: bytes by the distinct ones, operations by the pairs of position and expert."""
    ranks = layout.expert_tensor_ranks
    return Work(
        component=Component.ROUTED_EXPERTS,
        count=count,
        bytes=distinct * total_bytes(block.expert, ranks),
        operations=_operations(block.expert, pairs, ranks),
        subject=block,
        ranks=ranks,
        expert_ranks=layout.expert_ranks,
        positions=step.positions,
        distinct=distinct,
        pairs=pairs,
    )


def matrix_work(
    component: Component, count: int, matrices: tuple[Matrix, ...], positions: FloatArray, ranks: int = 1
) -> Work:
    """Weights are read once per step; activations (under 2% of bytes while a step is memory-bound) are left out."""
    return Work(
        component=component,
        count=count,
        bytes=np.asarray(total_bytes(matrices, ranks)),  # the same at every point of the grid: one number
        operations=_operations(matrices, positions, ranks),
        subject=matrices,
        ranks=ranks,
        positions=positions,
    )


def _matrix_works(
    component: Component, count: int, matrices: tuple[Matrix, ...], step: Step, layout: Layout
) -> list[Work]:
    return [matrix_work(component, count, matrices, step.positions, layout.attention_ranks)] if matrices else []


def _operations(matrices: tuple[Matrix, ...], positions: FloatArray, ranks: int) -> dict[Arithmetic, FloatArray]:
    operations: dict[Arithmetic, FloatArray] = {}
    for matrix in matrices:
        kind, amount = matrix.precision.arithmetic, positions * matrix.flops_per_position(ranks)
        operations[kind] = operations[kind] + amount if kind in operations else amount
    return operations


def _collectives(groups: Sequence[LayerGroup], local: Step, layout: Layout, hidden: int) -> list[Work]:
    """Tensor parallel: an all-reduce after attention and one after the feed-forward part.

    With tensor-parallel attention every rank has every position, so nothing is dispatched to experts and the
    combine is that same all-reduce (vLLM, SGLang and TensorRT-LLM without attention DP). With data-parallel
    attention a position's activations are sent to each rank that holds one of its experts, and back; the GPUs of a
    data-parallel group send a share of its positions each, and gather the results (the other half of the all-reduce
    after attention).
    """
    works = []
    reductions = sum(
        group.count * (bool(group.layer.projections) + bool(group.layer.dense or group.layer.experts))
        for group in groups
    )
    if layout.data_ranks > 1:
        works += _dispatch_and_combine(groups, local, layout, hidden)
        reductions = sum(group.count * (bool(group.layer.projections) + bool(group.layer.dense)) for group in groups)
    if layout.attention_ranks > 1:
        message = local.positions * hidden * ACTIVATION_BYTES
        works.append(_collective(CollectiveKind.ALL_REDUCE, reductions, message, layout.attention_ranks))
    return works


def _dispatch_and_combine(groups: Sequence[LayerGroup], local: Step, layout: Layout, hidden: int) -> list[Work]:
    works = []
    for group in groups:
        block = group.layer.experts
        if block is None:
            continue
        ranks_touched = layout.expert_tensor_ranks * shards_touched(block.pool.experts_per_token, layout.expert_ranks)
        message = local.positions / layout.attention_ranks * ranks_touched * hidden * ACTIVATION_BYTES
        choices = block.pool.experts_per_token if layout.expert_tensor_ranks == 1 else 0
        exchange = Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=layout.stage_gpus, choices=choices)
        works.append(Work(component=Component.COLLECTIVES, count=2 * group.count, bytes=message, subject=exchange))
    return works


def shards_touched(experts_per_token: int, shards: float) -> float:
    """Shards, of ranks or of nodes, that hold a position's experts, if these were drawn independently."""
    return 1.0 if shards == 1 else float(shards * -np.expm1(experts_per_token * np.log1p(-1.0 / shards)))


def _collective(kind: CollectiveKind, count: int, message: FloatArray, ranks: int) -> Work:
    subject = Collective(kind=kind, ranks=ranks)
    return Work(component=Component.COLLECTIVES, count=count, bytes=message, subject=subject)
