"""The shapes of a model that are timed, and what tells one timing from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specmargin.architecture.types import Architecture, GroupedAttention, Split
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
    attention: GroupedAttention | None  # of its first layers that have it


def shapes_of(model: Architecture) -> Shapes:
    grouped = (a for g in model.groups if isinstance(a := g.layer.attention, GroupedAttention))
    return Shapes(
        model=model.name,
        experts=_experts(model),
        matrices=tuple(dict.fromkeys(_matrices(model))),
        head=(model.lm_head.outputs, model.lm_head.inputs),
        attention=next(grouped, None),
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


#: What a timing varies, and which of several timings of one point it is.
POINT = ("positions", "distinct", "outputs", "inputs", "batch", "context", "queries")
KEYS = (*POINT, "backend", "graphs", "when")


def key_of(row: Mapping[str, Any]) -> str:
    """Names a timing, to skip it when a measurement is resumed, and in reports."""
    return ", ".join([str(row["operation"]), *(f"{name} {row[name]}" for name in KEYS if name in row)])
