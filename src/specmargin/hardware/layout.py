"""How a model is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ParallelismError(f"--gpus must be at least 1, got {self.gpus}")
        for name, part in (("attention copies", self.attention_copies), ("expert split", self.expert_split)):
            if part is not None and (part < 1 or self.gpus % part):
                raise ParallelismError(f"{name}: {part} does not divide {self.gpus} GPUs")

    @classmethod
    def of(cls, *, tp: int = 1, dp: int = 1, ep: bool = False) -> Layout:
        """`dp` groups of `tp` GPUs, each with its own sequences; every expert on one GPU of all (`ep`), or on all."""
        gpus = tp * dp
        if dp == 1:
            return cls(gpus=gpus, parallel=Parallel.EP if ep else Parallel.TP)
        if ep:
            return cls(gpus=gpus, parallel=Parallel.DP_EP, attention_copies=None if tp == 1 else dp)
        return cls(gpus=gpus, attention_copies=dp)

    @property
    def name(self) -> str:
        """`tp`, `ep` or `dp-ep` where that says it all, else with its sizes: `tp2-dp8-ep`."""
        spread = self.expert_tensor_ranks == 1 and self.gpus > 1
        if self.sequence_ranks == 1 or (spread and self.attention_ranks == 1):
            return str(self.parallel)
        tensor = f"tp{self.attention_ranks}-" if self.attention_ranks > 1 else ""
        return f"{tensor}dp{self.sequence_ranks}" + ("-ep" if spread else "")

    @property
    def sequence_ranks(self) -> int:
        """Groups of GPUs that the sequences are spread over."""
        if self.attention_copies is not None:
            return self.attention_copies
        return self.gpus if self.parallel is Parallel.DP_EP else 1

    @property
    def attention_ranks(self) -> int:
        """GPUs that one sequence's attention is split over."""
        return self.gpus // self.sequence_ranks

    @property
    def expert_tensor_ranks(self) -> int:
        """GPUs that one expert's matrices are split over."""
        if self.expert_split is not None:
            return self.expert_split
        return self.gpus if self.parallel is Parallel.TP else 1

    @property
    def expert_ranks(self) -> int:
        """GPUs that whole experts are spread over."""
        return self.gpus // self.expert_tensor_ranks

    def check(self, architecture: Architecture) -> None:
        """Refuse a layout that does not divide the model's heads or experts."""
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
        for pool in architecture.pools:
            if pool.experts % self.expert_ranks:
                raise ParallelismError(
                    f"{architecture.name}: {pool.experts} experts do not divide over {self.expert_ranks} GPUs; "
                    f"use one of {_divisors(pool.experts)}"
                )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)
