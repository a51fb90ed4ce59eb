"""A scenario: a model on GPUs, with a drafter, a load and prices. It holds the inputs of a decision and nothing else; a
`Pricer` computes prices from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specmargin.acceptance.early_stop import EarlyStop
from specmargin.acceptance.survival import Survival
from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture, LayerCounts
from specmargin.errors import ScenarioError
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.hardware.offload import Offload
from specmargin.modes import Placement
from specmargin.prices.attention_kernels import longest_draft
from specmargin.prices.drafters import Drafter, DraftTime
from specmargin.prices.model import EngineTime, PriceModel
from specmargin.prices.work import EVERYTHING, Scope
from specmargin.routing.profile import RoutingProfile
from specmargin.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    architecture: Architecture
    device: Device
    prices: PriceModel
    routing: RoutingProfile
    drafter: Drafter
    survival: Survival
    layout: Layout = field(default_factory=Layout)
    context: float = 1024.0  # tokens in the cache of each sequence
    engine_time: EngineTime = field(default_factory=EngineTime)
    kv: Precision | None = None  # None: the model's own
    scope: Scope = EVERYTHING
    memory_utilization: float = 0.9
    draft_time: DraftTime | None = None  # measured passes of this drafter, in place of priced ones
    early_stop: EarlyStop | None = None  # drafts stop at a confidence; None: they reach their depth
    engine: str = "vllm"  # whose kernels and setting these are
    offload: Offload | None = None  # routed experts in main memory; None: all weights are on the GPUs
    placement: Placement = Placement.CONTIGUOUS  # of experts over ranks, where the profile identifies experts

    def __post_init__(self) -> None:
        self.layout.check(self.architecture)
        if self.offload is not None:
            self.offload.check(self.architecture)
        if not self.context >= 0:
            raise ScenarioError(f"context must not be negative, got {self.context:g}")
        longest = self.architecture.max_context
        if longest is not None and self.context > longest:
            raise ScenarioError(
                f"a context of {self.context:,.0f} tokens is beyond the {longest:,} of {self.architecture.name}; "
                "give a shorter --context, --isl or --osl"
            )
        if not 0.0 < self.memory_utilization <= 1.0:
            raise ScenarioError(f"memory utilization must lie in 0..1, got {self.memory_utilization:g}")

    @property
    def layer_counts(self) -> LayerCounts:
        return self.architecture.layer_counts.over(self.layout.attention_ranks)

    @property
    def longest_draft(self) -> int | None:
        """Draft tokens that the engine can verify with this model; None without a limit."""
        kinds = [group.layer.attention for group in self.architecture.groups]
        limits = [longest_draft(self.engine, attention) for attention in kinds if attention is not None]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def kv_precision(self) -> Precision:
        return self.kv or self.architecture.kv_precision

    @property
    def weight_names(self) -> str:
        """Precisions of the weights, most bytes first: `nvfp4, bf16`."""
        return ", ".join(self.architecture.weight_precisions)

    @property
    def input_sources(self) -> dict[str, Source]:
        """Where each input comes from; a pricer adds the sources of its prices."""
        sources = {
            "model": self.architecture.source,
            "device": self.device.source,
            "engine time": self.engine_time.source,
            "drafter": self.drafter.source,
            "acceptance": self.survival.source,
        }
        if self.offload is not None:
            sources |= {"processor": self.offload.processor.source, "link to cpu": self.offload.link.source}
        if self.early_stop is not None:
            sources["early stop"] = self.early_stop.source
        return sources | {"routing": self.routing.source} if self.architecture.is_moe else sources
