"""Qwen3, dense or with experts, in plain PyTorch: the same mathematics and the same names as Hugging Face's and vLLM's.

A mixture of experts is computed as one wide MLP whose units are switched in blocks. That multiplies by zero a lot (16
times the work that 4 of 64 experts need), and is still quick for experts this small: three large matrix products,
nothing sorted, nothing scattered, the same sums in the same order every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from settings import Shape
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (as everybody writes it)

_INIT = 0.04


@dataclass(frozen=True, slots=True)
class Routing:
    """Of one layer: the router's probabilities, (…, experts), and the experts that were chosen, (…, k)."""

    probability: Tensor
    experts: Tensor


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.groups = shape.heads // shape.kv_heads
        self.head_dim = shape.head_dim
        self.q_proj = _linear(shape.hidden, shape.heads * shape.head_dim)
        self.k_proj = _linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.v_proj = _linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.o_proj = _linear(shape.heads * shape.head_dim, shape.hidden)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = (self._heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        query = _rotated(self.q_norm(query), turn).to(value.dtype)
        key = _rotated(self.k_norm(key), turn).to(value.dtype)
        key, value = (part.repeat_interleave(self.groups, dim=1) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = _linear(hidden, width)
        self.up_proj = _linear(hidden, width)
        self.down_proj = _linear(width, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing | None]:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)), None


class Experts(Mlp):
    """All experts side by side: units e·width to (e+1)·width are expert e's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.hidden, shape.experts * shape.intermediate)
        self.gate = _linear(shape.hidden, shape.experts)  # the router, by its Hugging Face name
        self.k = shape.experts_per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Routing | None]:
        probability = self.gate(x).float().softmax(-1)
        best = probability.topk(self.k, dim=-1)
        share = torch.zeros_like(probability).scatter(-1, best.indices, best.values / best.values.sum(-1, keepdim=True))
        units = F.silu(self.gate_proj(x)) * self.up_proj(x)
        chosen = units.unflatten(-1, (share.shape[-1], -1)) * share.to(units.dtype).unsqueeze(-1)
        return self.down_proj(chosen.flatten(-2)), Routing(probability, best.indices)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_epsilon)
        self.mlp = Experts(shape) if shape.experts else Mlp(shape.hidden, shape.intermediate)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Routing | None]:
        x = x + self.self_attn(self.input_layernorm(x), turn)
        added, routing = self.mlp(self.post_attention_layernorm(x))
        return x + added, routing


class Qwen3(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_epsilon)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """(sequences, positions) of tokens -> (…, hidden), and the routing of every layer that has experts.

        Attention looks back only, so whatever stands behind the last token of a sequence changes nothing before it.
        """
        x = self.embed_tokens(tokens)
        turn = _turns(self.shape, tokens.shape[1], tokens.device)
        routings = []
        for layer in self.layers:
            x, routing = layer(x, turn)
            if routing is not None:
                routings.append(routing)
        return self.norm(x), routings

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight).float()

    def initialise(self, generator: torch.Generator) -> Qwen3:
        """Matrices from a normal distribution; those that write to the residual stream smaller, the more there are."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * self.shape.layers) ** -0.5 if last else 1.0
                nn.init.normal_(weight, std=_INIT * scale, generator=generator)
        return self


def balance_loss(routings: list[Routing]) -> Tensor:
    """Load balancing as in Switch Transformers and Qwen3-MoE, layer by layer: k where all experts are used alike.

    n · Σ_e (positions that chose e) · (mean probability of e). Without it a few experts take everything.
    """
    losses = []
    for routing in routings:
        probability = routing.probability.flatten(0, -2)
        chosen = F.one_hot(routing.experts.flatten(0, -2), probability.shape[-1]).float().sum(1)
        losses.append(probability.shape[-1] * (chosen.mean(0) * probability.mean(0)).sum())
    return torch.stack(losses).mean()


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _turns(shape: Shape, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding: (positions, head_dim), the half repeated."""
    exponent = torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim
    angle = torch.arange(positions, device=device).float()[:, None] * shape.rope_theta**-exponent
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def _rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-second, first], dim=-1) * turn[1]
