"""Variants of a model: other numbers of experts, experts per token, expert widths and shared widths."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specmargin.architecture.types import Architecture, ExpertBlock, ExpertPool, Layer, Matrix
from specmargin.errors import ArchitectureError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """The experts of a layer. A width is an intermediate size; shared experts are one MLP as wide as all of them."""

    experts: int
    experts_per_token: int
    width: int
    shared_width: int

    def __post_init__(self) -> None:
        if not 0 < self.experts_per_token <= self.experts:
            raise ArchitectureError(f"experts_per_token={self.experts_per_token} is not in 1..{self.experts}")
        if self.width < 1 or self.shared_width < 0:
            raise ArchitectureError(f"experts {self.width} wide with {self.shared_width} shared cannot be built")

    @property
    def active_width(self) -> int:
        """Width that a token uses. Parameters are proportional to it: every column of an MLP has the same number."""
        return self.experts_per_token * self.width + self.shared_width

    @property
    def total_width(self) -> int:
        return self.experts * self.width + self.shared_width

    @property
    def shared_share(self) -> float:
        """Shared width as a fraction of the active width."""
        return self.shared_width / self.active_width


def shape_of(architecture: Architecture) -> ExpertShape:
    """The shape of a model's experts; refused where layers differ."""
    blocks = [block for _, block in architecture.expert_groups]
    if not blocks:
        raise ArchitectureError(f"{architecture.name} is dense: it has no experts to reshape")
    if any(block.expert[0].inputs != architecture.hidden for block in blocks):
        raise ArchitectureError(f"{architecture.name} has experts in a latent space, which cannot be reshaped")
    shapes = {_block_shape(block) for block in blocks}
    if len(shapes) > 1:
        raise ArchitectureError(f"{architecture.name} has layers with different experts, which cannot be reshaped")
    return shapes.pop()


def reshaped(architecture: Architecture, shape: ExpertShape) -> Architecture:
    """The model with experts of another shape in every layer that routes; everything else, its MTP head too, stays."""
    groups = tuple(replace(group, layer=_reshaped_layer(group.layer, shape)) for group in architecture.groups)
    return replace(architecture, groups=groups)


def _block_shape(block: ExpertBlock) -> ExpertShape:
    shared, _ = _shared(block)
    return ExpertShape(
        experts=block.pool.experts,
        experts_per_token=block.pool.experts_per_token,
        width=block.expert[1].inputs,
        shared_width=shared[1].inputs if shared else 0,
    )


def _shared(block: ExpertBlock) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
    """The two matrices of the shared MLP (none where there is none), and its gate, which has one output."""
    wide = tuple(matrix for matrix in block.always_on if matrix.outputs > 1)
    gate = tuple(matrix for matrix in block.always_on if matrix.outputs == 1)
    return wide, gate


def _reshaped_layer(layer: Layer, shape: ExpertShape) -> Layer:
    return layer if layer.experts is None else replace(layer, experts=_reshaped_block(layer.experts, shape))


def _reshaped_block(block: ExpertBlock, shape: ExpertShape) -> ExpertBlock:
    """A model without shared experts gets them in the precision of its routed ones."""
    shared, gate = _shared(block)
    template = shared or tuple(replace(matrix, name=f"shared_{matrix.name}") for matrix in block.expert)
    router, *hyper_connections = block.router
    shared_experts = (block.pool.shared_experts or 1) if shape.shared_width else 0
    return replace(
        block,
        pool=ExpertPool(
            experts=shape.experts, experts_per_token=shape.experts_per_token, shared_experts=shared_experts
        ),
        expert=_widened(block.expert, shape.width),
        router=(replace(router, outputs=shape.experts), *hyper_connections),
        always_on=(*_widened(template, shape.shared_width), *gate) if shape.shared_width else (),
    )


def _widened(mlp: tuple[Matrix, ...], width: int) -> tuple[Matrix, ...]:
    """Up (with or without its gate) and down, at another intermediate size."""
    up, down = mlp
    gated = up.outputs // down.inputs
    return replace(up, outputs=gated * width, split_units=width), replace(down, inputs=width, split_units=width)
