"""The timed kernels, each with the float64 reference that it is checked against first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from specmargin.measure.gpu.shapes import ExpertShape

_BLOCK_N, _BLOCK_K = 64, 128


@triton.jit  # type: ignore[untyped-decorator]
def _grouped_product(  # type: ignore[no-untyped-def]
    inputs, weights, outputs, scale, pair_of_slot, expert_of_block,
    columns, depth, pairs, divisor,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Rows of one expert times its matrix (columns × depth). A slot holds a (position, expert) pair, or none."""
    block = tl.program_id(0)
    expert = tl.load(expert_of_block + block)
    if expert < 0:
        return
    slots = block * BLOCK_M + tl.arange(0, BLOCK_M)
    pair = tl.load(pair_of_slot + slots)
    filled = pair < pairs
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left = inputs + (pair // divisor)[:, None] * depth + inner[None, :]
    right = weights + expert.to(tl.int64) * columns * depth + cols[None, :] * depth + inner[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, depth, BLOCK_K):
        rest = inner < depth - start
        a = tl.load(left, mask=filled[:, None] & rest[None, :], other=0.0)
        b = tl.load(right, mask=rest[:, None] & (cols[None, :] < columns), other=0.0)
        total = tl.dot(a, b, total)
        left += BLOCK_K
        right += BLOCK_K
    if SCALED:
        total = total * tl.load(scale + pair, mask=filled, other=0.0)[:, None]
    pointers = outputs + pair[:, None] * columns + cols[None, :]
    tl.store(pointers, total.to(outputs.dtype.element_ty), mask=filled[:, None] & (cols[None, :] < columns))


class Routing:
    """(position, expert) pairs sorted into blocks of one expert each, as engines do before the kernel."""

    def __init__(self, chosen: torch.Tensor, experts: int) -> None:
        positions, self.per_token = chosen.shape
        self.pairs = positions * self.per_token
        self.block = 16 if self.pairs <= 16 * experts else 64
        flat = chosen.reshape(-1).cpu()
        slots: list[int] = []
        owners: list[int] = []
        for expert in flat.unique().tolist():
            members = (flat == expert).nonzero().reshape(-1).tolist()
            blocks = -(-len(members) // self.block)
            slots += members + [self.pairs] * (blocks * self.block - len(members))
            owners += [expert] * blocks
        device = chosen.device
        self.chosen = chosen
        self.pair_of_slot = torch.tensor(slots, dtype=torch.int32, device=device)
        self.expert_of_block = torch.tensor(owners, dtype=torch.int32, device=device)
        self.weight = torch.rand(self.pairs, device=device, dtype=torch.float32)


def routing(positions: int, distinct: int, shape: ExpertShape, seed: int, device: str) -> Routing:
    """`positions` that touch exactly `distinct` experts, each as often as the others."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(shape.experts, generator=generator)[:distinct]
    pairs = torch.arange(positions * shape.experts_per_token) % distinct
    return Routing(some[pairs].reshape(positions, -1).to(device), shape.experts)


def fused_experts(
    hidden: torch.Tensor, up: torch.Tensor, down: torch.Tensor, route: Routing, scratch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Gate and up, SiLU, down, weighted sum over the experts of a position."""
    _product(hidden, up, scratch["gate_up"], route, divisor=route.per_token, scaled=False)
    gate, rest = scratch["gate_up"].chunk(2, dim=-1)
    torch.mul(torch.nn.functional.silu(gate), rest, out=scratch["middle"])
    _product(scratch["middle"], down, scratch["pairs"], route, divisor=1, scaled=True)
    return scratch["pairs"].view(hidden.shape[0], route.per_token, -1).sum(dim=1)


def _product(
    inputs: torch.Tensor, weights: torch.Tensor, outputs: torch.Tensor, route: Routing, *, divisor: int, scaled: bool
) -> None:
    columns, depth = weights.shape[1:]
    grid = (route.expert_of_block.numel(), triton.cdiv(columns, _BLOCK_N))
    _grouped_product[grid](
        inputs, weights, outputs, route.weight, route.pair_of_slot, route.expert_of_block,
        columns, depth, route.pairs, divisor,
        BLOCK_M=route.block, BLOCK_N=_BLOCK_N, BLOCK_K=_BLOCK_K, SCALED=scaled, num_warps=4, num_stages=4,
    )  # fmt: skip


def expert_scratch(route: Routing, shape: ExpertShape, device: str) -> dict[str, torch.Tensor]:
    def buffer(columns: int) -> torch.Tensor:
        return torch.full((route.pairs, columns), float("nan"), dtype=torch.bfloat16, device=device)

    return {
        "gate_up": buffer(2 * shape.intermediate),
        "middle": buffer(shape.intermediate),
        "pairs": buffer(shape.hidden),
    }


def reference_experts(hidden: torch.Tensor, up: torch.Tensor, down: torch.Tensor, route: Routing) -> torch.Tensor:
    """In float64, position by position."""
    out = torch.zeros(hidden.shape, dtype=torch.float64, device=hidden.device)
    weight = route.weight.double().view(hidden.shape[0], -1)
    for position in range(hidden.shape[0]):
        for slot, expert in enumerate(route.chosen[position].tolist()):
            gate, rest = (up[expert].double() @ hidden[position].double()).chunk(2)
            out[position] += weight[position, slot] * (down[expert].double() @ (torch.nn.functional.silu(gate) * rest))
    return out


# --- attention ---

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def packed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attend: Attend) -> torch.Tensor:
    """The queries of all heads that share a KV head, as one run: (B, heads, q, d) against (B, kv heads, context, d)."""
    batch, heads, run, dim = query.shape
    kv_heads = key.shape[1]
    together = query.reshape(batch, kv_heads, heads // kv_heads * run, dim)
    return attend(together, key, value).reshape(batch, heads, run, value.shape[-1])


def products(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention as two matrix products around a softmax."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return torch.softmax(scores, dim=-1) @ value


def library(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """PyTorch's own fused attention, whichever kernel it picks."""
    grouped: dict[str, Any] = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, **grouped)


def as_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The queries of a run as additional heads of one query: PyTorch splits a long context only for one query."""
    batch, heads, run, dim = query.shape
    one = query.reshape(batch, heads * run, 1, dim)
    return library(one, key, value).reshape(batch, heads, run, value.shape[-1])


GROUPED: dict[str, Attend] = {
    "library": library,
    "library, as heads": as_heads,
    "library, packed": lambda q, k, v: packed(q, k, v, library),
    "products, packed": lambda q, k, v: packed(q, k, v, products),
}


def reference_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = (t.double().repeat_interleave(group, dim=1) for t in (key, value))
    return products(query.double(), key, value)
