"""How a model is spread over GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from specmargin.architecture.types import Architecture, GroupedAttention
from specmargin.errors import ParallelismError
from specmargin.modes import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """GPUs and how they are used. The two optional fields override what follows from `parallel`; `of` sets them."""

    gpus: int = 1
    parallel: Parallel = Parallel.TP
    attention_copies: int | None = None  # data-parallel groups of GPUs, each with its own sequences
    expert_split: int | None = None  # GPUs that one expert's matrices are split over
    stages: int = 1  # pipeline stages, each with its share of the layers and of the GPUs
    in_turn: bool = False  # layers on GPUs that run one after another: as one GPU with all their memory
    redundant_experts: int = 0  # copies of popular experts in each layer, over all expert-parallel ranks

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ParallelismError(f"--gpus must be at least 1, got {self.gpus}")
        if self.stages < 1 or self.gpus % self.stages:
            raise ParallelismError(f"--pp {self.stages} does not divide {self.gpus} GPUs")
        gpus = self.stage_gpus
        for name, part in (("attention copies", self.attention_copies), ("expert split", self.expert_split)):
            if part is not None and (part < 1 or gpus % part):
                raise ParallelismError(f"{name}: {part} does not divide {gpus} GPUs")

    @classmethod
    def of(cls, *, tp: int = 1, dp: int = 1, pp: int = 1, ep: bool = False, redundant_experts: int = 0) -> Layout:
        """`pp` stages of `dp` groups of `tp` GPUs, each group with its own sequences; every expert on one GPU of its
        stage (`ep`), or split over all of them."""
        spread = Parallel.DP_EP if dp > 1 else Parallel.EP
        return cls(
            gpus=tp * dp * pp,
            parallel=spread if ep else Parallel.TP,
            attention_copies=None if dp == 1 or (ep and tp == 1) else dp,
            stages=pp,
            redundant_experts=redundant_experts,
        )

    @property
    def name(self) -> str:
        """`tp`, `ep` or `dp-ep` where that says it all, else with its sizes: `tp2-dp8-ep`."""
        if self.in_turn:
            return "layers in turn"
        spread = self.expert_tensor_ranks == 1 and self.stage_gpus > 1
        if self.stages == 1 and (self.data_ranks == 1 or (spread and self.attention_ranks == 1)):
            return str(self.parallel)
        sizes = {"pp": self.stages, "tp": self.attention_ranks, "dp": self.data_ranks}
        return "-".join([f"{name}{size}" for name, size in sizes.items() if size > 1] + ["ep"] * spread)

    @property
    def stage(self) -> Layout:
        """The layout of one pipeline stage."""
        return self if self.stages == 1 else replace(self, gpus=self.stage_gpus, stages=1)

    @property
    def stage_gpus(self) -> int:
        return 1 if self.in_turn else self.gpus // self.stages

    @property
    def memories(self) -> int:
        """GPUs whose memory counts as one: it holds all weights of what is priced as one GPU."""
        return self.gpus if self.in_turn else 1

    @property
    def shards(self) -> int:
        """Parts of the weights that are read at the same time, or by different batches."""
        return self.gpus // self.memories

    def stage_factor(self, layers: int) -> float:
        """Layers of the longest stage over those of the mean one: every stage waits for it."""
        return math.ceil(layers / self.stages) * self.stages / layers

    @property
    def data_ranks(self) -> int:
        """Data-parallel groups of GPUs in a stage."""
        if self.attention_copies is not None:
            return self.attention_copies
        return self.stage_gpus if self.parallel is Parallel.DP_EP else 1

    @property
    def sequence_ranks(self) -> int:
        """Groups of GPUs that the sequences are spread over: data-parallel groups, and stages, which are filled with
        as many batches."""
        return self.data_ranks * self.stages

    @property
    def attention_ranks(self) -> int:
        """GPUs that one sequence's attention is split over."""
        return self.stage_gpus // self.data_ranks

    @property
    def expert_tensor_ranks(self) -> int:
        """GPUs that one expert's matrices are split over."""
        if self.expert_split is not None:
            return self.expert_split
        return self.stage_gpus if self.parallel is Parallel.TP else 1

    @property
    def expert_ranks(self) -> int:
        """GPUs that whole experts are spread over."""
        return self.stage_gpus // self.expert_tensor_ranks

    def check(self, architecture: Architecture) -> None:
        """Refuse a layout that does not divide the model's heads or experts."""
        if architecture.layers < self.stages:
            raise ParallelismError(
                f"--pp {self.stages}: a stage would have no layers, since {architecture.name} has "
                f"{architecture.layers}; use at most --pp {architecture.layers}"
            )
        self._check_attention(architecture)
        self._check_experts(architecture)

    def _check_attention(self, architecture: Architecture) -> None:
        ranks = self.attention_ranks
        for group in architecture.groups:
            attention = group.layer.attention
            if attention is None:
                continue
            if attention.heads % ranks:
                raise ParallelismError(
                    f"{architecture.name}: {attention.heads} heads do not divide over {ranks} GPUs; "
                    f"use one of {_divisors(attention.heads)}"
                )
            if isinstance(attention, GroupedAttention) and attention.kv_heads % ranks and ranks % attention.kv_heads:
                raise ParallelismError(
                    f"{architecture.name}: {attention.kv_heads} KV heads neither divide over {ranks} GPUs nor "
                    "replicate evenly; use a power of two"
                )

    def _check_experts(self, architecture: Architecture) -> None:
        if self.parallel is not Parallel.TP and not architecture.is_moe:
            raise ParallelismError(
                f"{architecture.name} has no experts to spread; use --parallel tp, or leave out --ep"
            )
        if self.redundant_experts and self.expert_ranks == 1:
            raise ParallelismError("--redundant-experts: no experts are spread over GPUs; add --ep, or leave it out")
        for pool in architecture.pools:
            if (pool.experts + self.redundant_experts) % self.expert_ranks:
                raise ParallelismError(f"{architecture.name}: {self._undivided(pool.experts)}")

    def _undivided(self, experts: int) -> str:
        ranks = self.expert_ranks
        if not self.redundant_experts:
            return f"{experts} experts do not divide over {ranks} GPUs; use one of {_divisors(experts)}"
        return (
            f"{experts} experts and {self.redundant_experts} redundant ones do not divide over {ranks} GPUs; "
            f"use --redundant-experts {-experts % ranks or ranks}"
        )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)
