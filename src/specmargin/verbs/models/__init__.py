"""List the bundled models and yours: parameters, experts, attention and MTP head.

Hugging Face ids of their variants work as well (Qwen/Qwen3-30B-A3B-Instruct-2507-FP8; --json lists them), and any other
model from its config.json: specmargin plan PATH --gpu h200

Your own entries of every kind are files in the folders models, gpus, drafters, engine-times, fabrics and hosts of
~/.config/specmargin, or of the paths in SPECMARGIN_CATALOG; a file's name is the entry's. --check, --template and
--schema are for all kinds; --check takes the kind from the file's folder or its fields and exits with 1 if it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.blocks import Block, Table, dim, left, owned, right, warned
from specmargin.answers.outputs_schema import ListOutputs
from specmargin.answers.request_schema import Request, Shown, listing
from specmargin.answers.text_file import ListAnswer, TextAnswer
from specmargin.answers.verb import verb
from specmargin.catalog.user import FOLDERS
from specmargin.errors import InputError, matching, nearest_names, usable
from specmargin.verbs.models.answer import CheckAnswer

if TYPE_CHECKING:
    from specmargin.architecture.types import Architecture, Attention

ENTRIES = Shown(panel="Entries of the catalog")


class ModelsRequest(Request):
    search: Annotated[
        str, Field(description="Only names and Hugging Face ids that contain this."), Shown(argument=True)
    ] = ""
    check: Annotated[
        Path | None,
        Field(description="Check a catalog file of any kind, or a folder of them: read, validated and priced."),
        ENTRIES.as_("FILE"),
    ] = None
    template: Annotated[
        str | None,
        Field(description=f"Print an entry to start from, with the figures of SEARCH if given: {listing(FOLDERS)}."),
        ENTRIES.as_("KIND").completed(lambda: FOLDERS),
    ] = None
    schema_of: Annotated[
        str | None,
        Field(description="Print the JSON Schema of such entries."),
        ENTRIES.as_("KIND").completed(lambda: FOLDERS).named("--schema"),
    ] = None


@verb(ModelsRequest, outputs=ListOutputs)
def models(
    request: ModelsRequest, outputs: ListOutputs | None = None
) -> ModelsAnswer | CheckAnswer[ModelsRequest] | TextAnswer[ModelsRequest]:
    from specmargin.catalog.lookup import model_names, named_model

    outputs = outputs or ListOutputs()
    if sum(option is not None for option in (request.check, request.template, request.schema_of)) > 1:
        raise InputError("--check, --template and --schema: give one of them")
    if request.template is not None or request.schema_of is not None:
        return TextAnswer(request=request, text=_text(request, outputs))
    if request.check is not None:
        from specmargin.verbs.models.check import checked

        return CheckAnswer(request=request, checks=tuple(checked(request.check)))
    outputs.check_list()
    found, faults = usable(matching("model", request.search, model_names(), _ids), named_model)
    return ModelsAnswer(request=request, models={model.name: model for model in found}, warnings=tuple(faults))


def _text(request: ModelsRequest, outputs: ListOutputs) -> str:
    import json

    from specmargin.catalog.entries import template
    from specmargin.catalog.entry_schema import json_schema

    kind = request.template or request.schema_of or ""
    if kind not in FOLDERS:
        raise InputError(f"unknown kind {kind!r}{nearest_names(kind, FOLDERS)}; known: {', '.join(FOLDERS)}")
    outputs.check_text(".json" if request.template in (None, "model") else ".toml")
    return template(kind, request.search) if request.template else json.dumps(json_schema(kind), indent=2)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelsAnswer(ListAnswer[ModelsRequest]):
    models: dict[str, Architecture]
    warnings: tuple[str, ...] = ()  # files of the user's that could not be read

    schema: ClassVar[str] = "specmargin.models/1"

    @property
    def verdict(self) -> str:
        return f"{len(self.models)} models"

    def table(self) -> list[dict[str, Any]]:
        return [_row(name, architecture) for name, architecture in self.models.items()]

    def values(self) -> dict[str, Any]:
        return {"models": self.table(), "warnings": list(self.warnings)}

    def blocks(self) -> Iterator[Block]:
        yield Table(
            columns=[*left("name"), *right("params", "active", "experts"), *left("MTP", "weights")],
            rows=[_cells(name, architecture) for name, architecture in self.models.items()],
        )
        yield dim("active: parameters used per token, without the input embedding")
        yield from owned({name: model.source for name, model in self.models.items()})
        yield from warned(self.warnings)


def _ids(name: str) -> tuple[str, ...]:
    from specmargin.catalog.lookup import hub_id, variant_ids

    with suppress(InputError):  # a broken file is named where its model is listed
        return hub_id(name), *variant_ids(name)
    return ()


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
