"""Hugging Face ids of variants (instruct, dated, quantised): which bundled model they are, and in which precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from specmargin.catalog.bundled import read_bundled

# How names state a precision, most specific first; matched at the end of a name, after "-", "_" or ".".
_SUFFIXES = (
    (r"fp8[-_]block|block[-_]fp8", "fp8-block"),
    (r"mxfp8", "mxfp8"),
    (r"(ptpc[-_])?fp8([-_](dynamic|static|kv|per-?tensor|static-per-?tensor))?|w8a8[-_]fp8", "fp8"),
    (r"mxfp4", "mxfp4"),
    (r"(nv)?fp4([-_]v\d)?", "nvfp4"),
    (r"gptq[-_](int8|8bit)|(quantized\.)?w8a16", "w8a16"),
    (r"(quantized\.)?w8a8([-_]int8)?|int8", "int8"),
    (r"(awq|gptq)([-_](int4|4bit|w4a16))?|(quantized\.)?w4a16|int4([-_](awq|gptq|autoround))?", "int4-g128"),
    (r"(mlx[-_])?4bit([-_]dwq)?", "mlx-4bit"),  # as mlx-community's names end
    (r"(mlx[-_])?6bit", "mlx-6bit"),
    (r"(mlx[-_])?8bit", "mlx-8bit"),
    (r"bf16", "bf16"),
    (r"gguf", "gguf"),
)
_SUFFIX = re.compile(
    r"(?P<base>.+?)[-_.](?:" + "|".join(f"(?P<p{i}>{pattern})" for i, (pattern, _) in enumerate(_SUFFIXES)) + ")",
    re.IGNORECASE,
)
GGUF = "gguf"  # one id, several precisions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variant:
    """A Hugging Face id that has the architecture of a bundled model."""

    id: str
    model: str  # the bundled name
    weights: str | None = None  # every linear layer in this precision; None: as the configuration says
    config: Mapping[str, Any] = field(default_factory=dict)  # keys that differ from the bundled configuration
    source: str = ""  # the configuration that states the precision
    context: str = ""  # what states the context length, where it differs from the bundled one
    note: str = ""
    listed: bool = True  # False: recognised by its name

    @property
    def is_quantized(self) -> bool:
        """Whether its precision differs from that of the bundled configuration."""
        return self.weights is not None or "quantization_config" in self.config

    @property
    def is_assumed(self) -> bool:
        """Whether only the name says what is inside."""
        return not self.listed or (self.is_quantized and not self.source)


@cache
def listed_variants() -> dict[str, Variant]:
    """The ids of `ids.toml`, in lower case."""
    groups = read_bundled("ids.toml")["variants"]
    return {name.lower(): Variant(id=name, **_shared(group)) for group in groups for name in group["ids"]}


def _shared(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "ids"}


def named_variant(spec: str, bundled: Mapping[str, str]) -> Variant | None:
    """A variant by the rule of names: a known name from any publisher, and at most one suffix for its precision.

    `bundled` has the names of the bundled models and those of their hub ids, in lower case.
    """
    name = spec.rsplit("/", 1)[-1].lower()
    base = _base(name, bundled)
    if base is not None:
        return replace(base, id=spec, listed=False)
    match = _SUFFIX.fullmatch(name)
    base = _base(match["base"], bundled) if match else None
    if match is None or base is None:
        return None
    weights = next(precision for i, (_, precision) in enumerate(_SUFFIXES) if match[f"p{i}"])
    return replace(base, id=spec, weights=weights, listed=False, source="")


def _base(name: str, bundled: Mapping[str, str]) -> Variant | None:
    """The unquantised variant of this name, or the bundled model itself."""
    if name in bundled:
        return Variant(id=name, model=bundled[name])
    return _stages().get(name)


@cache
def _stages() -> dict[str, Variant]:
    """Listed variants in the precision of the bundled configuration, by the name without its publisher."""
    return {known.rsplit("/", 1)[-1]: v for known, v in listed_variants().items() if not v.is_quantized}


def varied(config: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    """The configuration of the variant: the bundled one with the keys that differ."""
    values = {**config, **variant.config}
    section = variant.config.get("quantization_config", {})
    if "quantized_layers" in section:
        layers = _every_layer(section["quantized_layers"], int(config["num_hidden_layers"]))
        values["quantization_config"] = {**section, "quantized_layers": layers}
    return values


def _every_layer(named: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """`layers.*.mlp` becomes layers.0.mlp, layers.1.mlp, …; names without a star stay."""
    return {
        name.replace("*", str(i)): entry for name, entry in named.items() for i in range(layers if "*" in name else 1)
    }
