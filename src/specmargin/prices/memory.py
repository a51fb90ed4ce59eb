"""Memory of one GPU: weights, drafter, KV cache and recurrent states, and the batch that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture, Layer, LayerGroup, total_bytes
from specmargin.errors import ParallelismError
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.hardware.offload import Offload, hosted_bytes
from specmargin.prices.attention import held_bytes
from specmargin.step import ArrayLike, FloatArray

_SMALLEST = 4.125 / 8  # bytes per parameter: 4 bits, and a scale for each group of 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Memory of one GPU: what the engine may use, and what the weights of target and drafter take."""

    usable_bytes: float
    weight_bytes: float
    drafter_bytes: float
    host_bytes: float = 0.0  # in main memory
    host_usable_bytes: float = 0.0

    @property
    def free_bytes(self) -> float:
        return self.usable_bytes - self.weight_bytes - self.drafter_bytes


def layer_weight_bytes(layer: Layer, layout: Layout) -> float:
    """One layer's weights on one GPU."""
    dense = total_bytes(layer.matrices, layout.attention_ranks)
    if layer.experts is None:
        return dense
    experts = (layer.experts.pool.experts + layout.redundant_experts) / layout.expert_ranks
    return dense + experts * total_bytes(layer.experts.expert, layout.expert_tensor_ranks)


def stack_weight_bytes(groups: Iterable[LayerGroup], layout: Layout) -> float:
    return sum(group.count * layer_weight_bytes(group.layer, layout) for group in groups)


def weight_bytes(architecture: Architecture, layout: Layout, offload: Offload | None = None) -> float:
    """The target's weights on one GPU; the embedding is split like the LM head, and held once where they are tied.

    Of several stages on the one that holds most: layers of the longest one, and the LM head or the embedding.
    """
    head = architecture.lm_head.read_bytes(layout.attention_ranks)
    embedding = 0.0 if architecture.tied_embedding else architecture.embedding.read_bytes() / layout.attention_ranks
    stack = stack_weight_bytes(architecture.groups, layout)
    if offload is not None:  # whose layouts have no stages, and split every expert
        stack -= offload.hosted_bytes(architecture) / layout.shards
    if layout.stages == 1:
        return stack + head + embedding
    return stack * layout.stage_factor(architecture.layers) / layout.stages + max(head, embedding)


def sequence_bytes(
    groups: Iterable[LayerGroup], context: ArrayLike, *, layout: Layout, kv: Precision, depth: int = 0
) -> FloatArray:
    """KV and states of one sequence on one GPU, with room for `depth` draft tokens."""
    tokens = np.asarray(context, dtype=np.float64) + depth + 1.0
    total = np.zeros_like(tokens)
    for group in groups:
        attention = group.layer.attention
        if attention is not None:
            layer_bytes = held_bytes(attention, tokens, kv=kv, ranks=layout.attention_ranks, states=depth + 1)
            total = total + group.count * layer_bytes
    return total


def fewest_offloaded(architecture: Architecture, layout: Layout, usable_bytes: float) -> int | None:
    """The model's first layers whose experts must be in main memory, so that the other weights fit on each GPU; None
    where that is not enough."""
    whole = weight_bytes(architecture, layout)
    for moe_layers, first_layers in enumerate((0, *(index + 1 for index in architecture.expert_layers))):
        if whole - hosted_bytes(architecture, moe_layers) / layout.shards < usable_bytes:
            return first_layers
    return None


def budget(
    architecture: Architecture,
    device: Device,
    layout: Layout,
    *,
    drafter_bytes: float,
    utilization: float,
    drafter: str = "the drafter",
    offload: Offload | None = None,
    advice: str = "",
) -> MemoryBudget:
    """Refuse a model whose weights alone do not fit, and suggest how many GPUs are enough; or `advice`, if any."""
    memory = MemoryBudget(
        usable_bytes=device.usable_bytes(utilization) * layout.memories,
        weight_bytes=weight_bytes(architecture, layout, offload),
        drafter_bytes=drafter_bytes,
        host_bytes=0.0 if offload is None else offload.hosted_bytes(architecture),
        host_usable_bytes=0.0 if offload is None else offload.usable_bytes,
    )
    if memory.free_bytes <= 0:
        need = memory.weight_bytes + memory.drafter_bytes
        drafter_only = memory.weight_bytes < memory.usable_bytes
        least = memory.weight_bytes if drafter_only else _SMALLEST * architecture.parameters / layout.shards
        target, advice = architecture.name, advice or _advice(layout, device, need, least, memory.usable_bytes)
        if drafter_only:
            target, advice = f"{drafter} beside {target}", advice.replace("--weights", "--draft-weights")
        each = f" on each of {layout.gpus} GPUs" if layout.shards > 1 else ""
        together = f"{layout.gpus} × {device.title} have" if layout.memories > 1 else f"one {device.title} has"
        raise ParallelismError(
            f"{target} does not fit: weights need {need / 1e9:.0f} GB{each}; "
            f"{together} {memory.usable_bytes / 1e9:.0f} GB to use; {advice}"
        )
    return memory


def _advice(layout: Layout, device: Device, need: float, least: float, usable: float) -> str:
    """`need` and `least`: bytes on one GPU in the precision asked for, and in the smallest."""
    most = 72 if device.fabric.network_bytes_per_second is not None else device.fabric.gpus_per_node
    for gpus in (2, 4, 8, 16, 32, 64, 72):
        if layout.gpus < gpus <= most and need * layout.gpus / gpus < usable * 0.9:
            return f"try --gpus {gpus}" + (", or smaller --weights" if least < usable else "")
    if least < usable:
        return "try smaller --weights or a larger GPU"
    return "not even 4-bit weights would fit: try several GPUs of a larger kind"


def largest_batch(budget: MemoryBudget, per_sequence_bytes: float, layout: Layout) -> int:
    """Sequences that fit together, over all GPUs."""
    return int(budget.free_bytes // max(per_sequence_bytes, 1.0)) * layout.sequence_ranks
