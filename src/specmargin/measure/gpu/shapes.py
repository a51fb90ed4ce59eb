"""The shapes that are timed: the model's own, or typical ones for the attention kind that it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from specmargin.architecture.types import Architecture, GroupedAttention, LatentAttention, Split
from specmargin.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    experts: int
    experts_per_token: int
    hidden: int
    intermediate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    model: str
    experts: ExpertShape | None
    matrices: tuple[tuple[int, int], ...]  # outputs and inputs of the dense products, each once
    head: tuple[int, int]
    attention: GroupedAttention
    latent: LatentAttention


_LATENT = LatentAttention(heads=128, latent_dim=512, rope_dim=64)  # DeepSeek V3's


def shapes_of(model: Architecture) -> Shapes:
    grouped = [a for g in model.groups if isinstance(a := g.layer.attention, GroupedAttention)]
    latent = [a for g in model.groups if isinstance(a := g.layer.attention, LatentAttention)]
    if not grouped and not latent:
        raise InputError(f"{model.name} has neither grouped nor latent attention; `measure gpu` times those two")
    return Shapes(
        model=model.name,
        experts=_experts(model),
        matrices=tuple(dict.fromkeys(_matrices(model))),
        head=(model.lm_head.outputs, model.lm_head.inputs),
        attention=grouped[0] if grouped else GroupedAttention(heads=32, kv_heads=4, key_dim=128, value_dim=128),
        latent=latent[0] if latent else _LATENT,
    )


def _experts(model: Architecture) -> ExpertShape | None:
    for _, block in model.expert_groups:
        up, down = block.expert
        if up.outputs != 2 * down.inputs:
            raise InputError(f"{model.name}: experts without a gate are not timed by `measure gpu`")
        return ExpertShape(
            experts=block.pool.experts,
            experts_per_token=block.pool.experts_per_token,
            hidden=up.inputs,
            intermediate=down.inputs,
        )
    return None


def _matrices(model: Architecture) -> list[tuple[int, int]]:
    shapes: list[tuple[int, int]] = []
    for group in model.groups:
        parts = (*group.layer.projections, *group.layer.dense)
        joined = [m for m in parts if m.fused and m.split is not Split.ROWS]
        if joined:
            shapes.append((sum(m.outputs for m in joined if m.fused == joined[0].fused), joined[0].inputs))
        shapes += [(m.outputs, m.inputs) for m in parts if not m.fused or m.split is Split.ROWS]
    return shapes
