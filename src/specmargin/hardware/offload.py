"""Routed experts in main memory: which layers, on which processor, and the link from it to the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from specmargin.architecture.types import Architecture, ExpertBlock, LayerGroup, total_bytes
from specmargin.errors import OffloadError
from specmargin.hardware.processor import Processor
from specmargin.sources import Source

ExpertGroups = tuple[tuple[LayerGroup, ExpertBlock], ...]
_OWN_BYTES = 4e9  # of main memory: what the operating system and the engine keep (assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """From main memory to a GPU, one way, as large copies measure it."""

    bytes_per_second: float
    latency_seconds: float  # of one small copy, its synchronisation included
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """`layers` MoE layers, the first ones, have their routed experts in main memory."""

    processor: Processor
    link: HostLink
    layers: int
    first_layers: int  # the same as llama.cpp counts them: layers without experts before these included
    gpu_experts: int = 0  # of these layers: the most popular experts of each are kept on the GPU
    chosen: bool = False  # not asked for: the fewest layers with which the model fits

    @property
    def usable_bytes(self) -> float:
        return self.processor.memory_bytes - _OWN_BYTES

    def split(self, groups: ExpertGroups) -> tuple[int, ...]:
        """How many layers of each of these groups, in their order, are in main memory."""
        return _split(groups, self.layers)

    def hosted_bytes(self, architecture: Architecture) -> float:
        """Weights in main memory."""
        return hosted_bytes(architecture, self.layers, gpu_experts=self.gpu_experts)

    def check(self, architecture: Architecture) -> None:
        """Refuse what main memory cannot hold, and more experts on the GPU than a layer has."""
        most = min(pool.experts for pool in architecture.pools)
        if self.gpu_experts >= most:
            raise OffloadError(
                f"--gpu-experts {self.gpu_experts}: a layer of {architecture.name} has {most} experts; give fewer, or "
                "leave out --experts-on cpu"
            )
        hosted = self.hosted_bytes(architecture)
        if hosted > self.usable_bytes:
            raise OffloadError(self._too_large(architecture, hosted))

    def _too_large(self, architecture: Architecture, hosted: float) -> str:
        needed = (hosted + _OWN_BYTES) / 1e9
        return (
            f"{architecture.name}: {hosted / 1e9:.0f} GB of experts in main memory, which has "
            f"{self.processor.memory_bytes / 1e9:.0f} GB on {self.processor.title} ({_OWN_BYTES / 1e9:.0f} GB of them "
            f"for the system); use --host-memory {needed:.0f} if it has as much, fewer layers there, or smaller "
            "--weights"
        )


def moe_layers_among(architecture: Architecture, first_layers: int) -> int:
    """MoE layers among the model's first ones, which is what `--n-cpu-moe` of llama.cpp counts."""
    return sum(index < first_layers for index in architecture.expert_layers)


def hosted_bytes(architecture: Architecture, layers: int, *, gpu_experts: int = 0) -> float:
    """Weights of the routed experts of the first so many MoE layers, without those that the GPU keeps."""
    groups = architecture.expert_groups
    return sum(
        count * max(block.pool.experts - gpu_experts, 0) * total_bytes(block.expert)
        for count, (_, block) in zip(_split(groups, layers), groups, strict=True)
    )


def _split(groups: ExpertGroups, layers: int) -> tuple[int, ...]:
    left, hosted = layers, []
    for group, _ in groups:
        hosted.append(min(left, group.count))
        left -= hosted[-1]
    return tuple(hosted)
