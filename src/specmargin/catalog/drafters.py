"""From a drafter's name on the command line to what it costs and what it is accepted at."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.acceptance.survival import Survival, parse_acceptance
from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder
from specmargin.architecture.families.dense import plain_attention
from specmargin.architecture.precision import BF16
from specmargin.architecture.quantization import unquantized
from specmargin.architecture.types import Architecture, DraftHead, Layer, Matrix, Split, grouped
from specmargin.catalog.lookup import find_model
from specmargin.errors import ArchitectureError, CatalogError, ScenarioError, nearest_names
from specmargin.prices.drafters import FREE, NGRAM, Drafter, HeadDrafter, ModelDrafter, OverlappedDrafter
from specmargin.sources import Source, SourceKind, assumed, published

KINDS = ("mtp", "eagle", "dflash", "ssd", "model", "ngram", "free")
_SSD_HIT_RATE = 0.8
_EAGLE_VOCABULARY = 32_000

# DFlash heads whose shape is known; others are scaled from the first one's proportions.
_DFLASH = {
    "qwen3.6-35b-a3b": {
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "block_size": 16,
        "target_layers": 5,
    }
}
_DFLASH_SOURCE = "DFlash head of Qwen3.6-35B-A3B: 982,515,712 parameters with the LM head, block 16"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftChoice:
    """A drafter, its kind (which decides the default acceptance and the engine's method name), its spec."""

    kind: str
    spec: str
    drafter: Drafter


def find_drafter(spec: str, target: Architecture) -> DraftChoice:
    """`mtp`, `eagle[:CONFIG]`, `dflash[:CONFIG]`, `ssd[:INNER[@HIT]]`, `model:MODEL`, `ngram` or `free`."""
    kind, _, detail = spec.partition(":")
    kind = {"eagle3": "eagle"}.get(kind.lower(), kind.lower())
    if kind not in KINDS:
        raise CatalogError(f"unknown drafter {spec!r}{nearest_names(kind, KINDS)}; known: {', '.join(KINDS)}, all")
    return DraftChoice(kind=kind, spec=detail, drafter=_make(kind, detail, target))


def available_drafters(target: Architecture) -> list[DraftChoice]:
    """Every kind that needs nothing more from the user: what `--drafter all` ranks."""
    kinds = ["eagle", "dflash", "ngram"]
    return [find_drafter(kind, target) for kind in (["mtp", *kinds] if target.draft_head else kinds)]


def _make(kind: str, detail: str, target: Architecture) -> Drafter:
    match kind:
        case "mtp":
            if target.draft_head is None:
                raise CatalogError(f"{target.name} has no MTP head; use --drafter eagle, dflash, model:NAME or ngram")
            return HeadDrafter(name="mtp", head=target.draft_head)
        case "eagle":
            return HeadDrafter(name="eagle", head=_eagle_head(detail, target))
        case "dflash":
            return HeadDrafter(name="dflash", head=_dflash_head(detail, target))
        case "ssd":
            return _overlapped(detail, target)
        case "model":
            if not detail:
                raise CatalogError("--drafter model needs a model: model:NAME or model:PATH")
            return ModelDrafter(name=f"model:{detail}", architecture=find_model(detail))
        case "ngram":
            return NGRAM
        case _:
            return FREE


def _overlapped(detail: str, target: Architecture) -> OverlappedDrafter:
    inner_spec, _, rate = detail.partition("@")
    default = "mtp" if target.draft_head is not None else "eagle"
    inner = find_drafter(inner_spec or default, target).drafter
    if not isinstance(inner, HeadDrafter | ModelDrafter):
        raise CatalogError(f"--drafter ssd overlaps a head or a model, not {inner_spec!r}")
    try:
        hit_rate = float(rate) if rate else _SSD_HIT_RATE
    except ValueError:
        raise ScenarioError(f"--drafter ssd: the hit rate {rate!r} is not a number") from None
    origin = "given by the user" if rate else "our choice, for want of a published figure for your workload"
    return OverlappedDrafter(
        name="ssd",
        inner=inner,
        hit_rate=hit_rate,
        source=assumed(f"drafting overlapped with verification, {hit_rate:.0%} of outcomes predicted ({origin})"),
    )


def _eagle_head(path: str, target: Architecture) -> DraftHead:
    """EAGLE-3: three hidden states fused (3h -> h), one layer that also sees the embedding, a reduced vocabulary."""
    if path:
        config = _head_config(path)
        source = published(f"{config.origin} (EAGLE head configuration)")
    else:
        heads = max(target.hidden // 128, 1)
        values = {
            "num_attention_heads": heads,
            "num_key_value_heads": max(heads // 4, 1),
            "head_dim": 128,
            "intermediate_size": 4 * target.hidden,
            "draft_vocab_size": min(_EAGLE_VOCABULARY, target.vocabulary),
        }
        config = Config(origin="assumed EAGLE-3 head", values={"hidden_size": target.hidden, **values})
        source = assumed("an EAGLE-3 head of the usual shape: one layer as wide as the target, 32k draft vocabulary")
    hidden = config.positive("hidden_size")
    make = LayerBuilder(prefix="eagle", scheme=unquantized(BF16), hidden=hidden)
    attention = plain_attention(config)
    layer = Layer(
        attention=attention,
        projections=make.grouped_projections(attention, inputs=2 * hidden),
        dense=make.gated_mlp("mlp", config.positive("intermediate_size")),
        vector_parameters=3 * hidden,
    )
    vocabulary = config.optional_integer("draft_vocab_size") or config.positive("vocab_size")
    return DraftHead(
        name="eagle",
        groups=grouped([layer]),
        fusion=(make.whole("fc", hidden, inputs=3 * target.hidden),),
        lm_head=_lm_head(hidden, vocabulary),
        shares_lm_head=False,
        vector_parameters=hidden,
        source=source,
    )


def _dflash_head(path: str, target: Architecture) -> DraftHead:
    """DFlash: a few dense layers that fill a whole block in one pass, and the target's LM head."""
    if path:
        config = _head_config(path)
        section = config.values.get("dflash_config") or {}
        fused = len(section.get("target_layer_ids") or ()) or config.positive("target_layers")
        source = published(f"{config.origin} (DFlash head configuration)")
    else:
        known = _DFLASH.get(target.name)
        config = Config(origin="DFlash head", values={"hidden_size": target.hidden, **(known or _scaled(target))})
        fused = config.positive("target_layers")
        source = published(_DFLASH_SOURCE) if known else assumed(f"scaled from the {_DFLASH_SOURCE}")
    hidden = config.positive("hidden_size")
    make = LayerBuilder(prefix="dflash", scheme=unquantized(BF16), hidden=hidden)
    attention = plain_attention(config)
    layer = Layer(
        attention=attention,
        projections=make.grouped_projections(attention),
        dense=make.gated_mlp("mlp", config.positive("intermediate_size")),
        vector_parameters=2 * hidden + 2 * attention.key_dim,
    )
    return DraftHead(
        name="dflash",
        groups=grouped([layer] * config.positive("num_hidden_layers")),
        fusion=(make.whole("fc", hidden, inputs=fused * target.hidden),),
        lm_head=target.lm_head,
        shares_lm_head=True,
        block=config.positive("block_size"),
        vector_parameters=2 * hidden,
        source=source,
    )


def _scaled(target: Architecture) -> dict[str, int]:
    reference = _DFLASH["qwen3.6-35b-a3b"]
    heads = max(target.hidden // 64, 1)
    kv_heads = max(heads // 8, 1)
    return {
        **reference,
        "num_attention_heads": kv_heads * (heads // kv_heads),
        "num_key_value_heads": kv_heads,
        "intermediate_size": 3 * target.hidden,
    }


def _head_config(path: str) -> Config:
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArchitectureError(f"{file}: the drafter's configuration cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise ArchitectureError(f"{file}: a configuration is a JSON object")
    return Config(origin=str(file), values=values)


def _lm_head(hidden: int, vocabulary: int) -> Matrix:
    return Matrix(
        name="lm_head",
        inputs=hidden,
        outputs=vocabulary,
        precision=BF16,
        split=Split.COLUMNS,
        split_units=vocabulary,
    )


@cache
def _acceptance_tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("specmargin.catalog") / "acceptance.toml").read_text(encoding="utf-8"))


def acceptance_names() -> tuple[str, ...]:
    return tuple(_acceptance_tables())


def bundled_acceptance(name: str) -> Survival:
    table = _acceptance_tables()[name]
    curve = np.asarray(table["survival"], dtype=np.float64)
    curve.flags.writeable = False
    return Survival(by_depth=curve, source=Source(kind=SourceKind(table["kind"]), detail=table["source"]))


def find_acceptance(text: str | None, choice: DraftChoice, *, max_depth: int) -> Survival:
    """What the user gave, or the bundled curve of the drafter's kind."""
    if text is None:
        kind = (
            choice.drafter.inner.name.partition(":")[0]
            if isinstance(choice.drafter, OverlappedDrafter)
            else choice.kind
        )
        return bundled_acceptance(kind)
    if text.lower() in _acceptance_tables():
        return bundled_acceptance(text.lower())
    return parse_acceptance(text, max_depth=max_depth)
