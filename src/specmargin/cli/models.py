"""`specmargin models`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specmargin.architecture.types import (
    Architecture,
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from specmargin.catalog.lookup import bundled_model, hub_id, model_names, variant_ids
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import matching

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def models(
    search: Annotated[str, typer.Argument(help="Only names and Hugging Face ids that contain this.")] = "",
    output: o.TableOption = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """List the bundled models: parameters, experts, attention and MTP head.

    Hugging Face ids of their variants work as well (Qwen/Qwen3-30B-A3B-Instruct-2507-FP8; --json lists them), and any
    other model from its config.json: specmargin plan PATH --gpu h200
    """
    entries = [(name, bundled_model(name)) for name in matching("model", search, model_names(), _ids)]
    o.check_table(output, force=force)
    o.write_rows(output, [_payload(n, a) for n, a in entries], force=force)
    if json:
        render.json_out({"schema": "specmargin.models/1", "models": [_payload(n, a) for n, a in entries]})
        return
    columns = [("name", "left"), ("params", "right"), ("active", "right"), ("experts", "right")]
    shown = render.table("", [*columns, ("MTP", "left"), ("weights", "left")])
    for name, a in entries:
        shown.add_row(
            name,
            _count(a.parameters),
            _count(a.active_parameters(count_embedding=False)),
            f"{a.pools[0].experts_per_token}/{a.pools[0].experts}" if a.is_moe else "–",
            "yes" if a.draft_head else "–",
            ", ".join(_precisions(a)),
        )
    out = render.console()
    out.print(shown)
    out.print("active: parameters used per token, without the input embedding", style="dim")


def _ids(name: str) -> tuple[str, ...]:
    return hub_id(name), *variant_ids(name)


def _payload(name: str, a: Architecture) -> dict[str, Any]:
    return {
        "name": name,
        "hub_id": hub_id(name),
        "variant_ids": list(variant_ids(name)),
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
