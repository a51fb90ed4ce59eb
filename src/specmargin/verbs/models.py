"""List the bundled models: parameters, experts, attention and MTP head.

Hugging Face ids of their variants work as well (Qwen/Qwen3-30B-A3B-Instruct-2507-FP8; --json lists them), and any other
model from its config.json: specmargin plan PATH --gpu h200
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Table, dim, left, right
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import verb
from specmargin.errors import matching

if TYPE_CHECKING:
    from specmargin.architecture.types import Architecture, Attention


class ModelsRequest(Request):
    search: Annotated[
        str, Field(description="Only names and Hugging Face ids that contain this."), Shown(argument=True)
    ] = ""


@verb(ModelsRequest)
def models(request: ModelsRequest) -> ModelsAnswer:
    from specmargin.catalog.lookup import bundled_model, model_names

    names = matching("model", request.search, model_names(), _ids)
    return ModelsAnswer(request=request, models={name: bundled_model(name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelsAnswer(Answer[ModelsRequest]):
    models: dict[str, Architecture]

    schema: ClassVar[str] = "specmargin.models/1"

    @property
    def verdict(self) -> str:
        return f"{len(self.models)} bundled models"

    def table(self) -> list[dict[str, Any]]:
        return [_row(name, architecture) for name, architecture in self.models.items()]

    def values(self) -> dict[str, Any]:
        return {"models": self.table()}

    def blocks(self) -> Iterator[Block]:
        yield Table(
            columns=[*left("name"), *right("params", "active", "experts"), *left("MTP", "weights")],
            rows=[_cells(name, architecture) for name, architecture in self.models.items()],
        )
        yield dim("active: parameters used per token, without the input embedding")


def _ids(name: str) -> tuple[str, ...]:
    from specmargin.catalog.lookup import hub_id, variant_ids

    return hub_id(name), *variant_ids(name)


def _cells(name: str, a: Architecture) -> list[str]:
    return [
        name,
        _count(a.parameters),
        _count(a.active_parameters(count_embedding=False)),
        f"{a.pools[0].experts_per_token}/{a.pools[0].experts}" if a.is_moe else "–",
        "yes" if a.draft_head else "–",
        ", ".join(_precisions(a)),
    ]


def _row(name: str, a: Architecture) -> dict[str, Any]:
    hub_id, *variants = _ids(name)
    return {
        "name": name,
        "hub_id": hub_id,
        "variant_ids": variants,
        "family": a.family,
        "parameters": a.parameters,
        "active_parameters": a.active_parameters(count_embedding=False),
        "layers": a.layers,
        "experts": a.pools[0].experts if a.is_moe else None,
        "experts_per_token": a.pools[0].experts_per_token if a.is_moe else None,
        "attention": _attention(a),
        "mtp": a.draft_head is not None,
        "max_context": a.max_context,
        "source": str(a.source),
    }


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e8 else f"{parameters / 1e6:.1f}M"


def _attention(a: Architecture) -> list[str]:
    kinds = (_kind(group.layer.attention) for group in a.groups if group.layer.attention is not None)
    return list(dict.fromkeys(kinds))


def _kind(attention: Attention) -> str:
    from specmargin.architecture.types import (
        CompressedAttention,
        GroupedAttention,
        LatentAttention,
        LinearAttention,
    )

    match attention:
        case GroupedAttention(selection=None):
            return "window" if attention.window else "gqa"
        case GroupedAttention():
            return "block-sparse"
        case LatentAttention():
            return "dsa" if attention.selection else "mla"
        case CompressedAttention():
            return "csa" if attention.selection else "hca" if attention.ratio else "window"
        case LinearAttention():
            return attention.kind.replace("_", "-").replace("gated-delta-net", "gdn")


def _precisions(a: Architecture) -> list[str]:
    names = []
    for group in a.groups:
        block = group.layer.experts
        names += [block.expert[0].precision.name] if block else []
        names += [matrix.precision.name for matrix in group.layer.projections[:1]]
    return list(dict.fromkeys(names))
