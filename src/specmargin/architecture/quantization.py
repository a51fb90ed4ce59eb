"""Which precision each module is stored in, from `quantization_config` or ModelOpt's `hf_quant_config.json`.

Module names differ in prefix between frameworks ("model.", "language_model.model.", "backbone."), so both
sides are cut to start at "layers." before they are compared. Routers, the embedding and the LM head stay
in the model's own dtype unless a scheme names them, as in engines and quantisers.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specmargin.architecture.gguf import EXPERT, OTHER, head_precision, is_gguf, role_of, role_precisions
from specmargin.architecture.precision import BF16, FP8, FP8_BLOCK, MXFP4, PRECISIONS, Precision
from specmargin.errors import ArchitectureError

_ALGORITHMS = {
    "FP8": FP8,
    "FP8_PB_WO": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "MXFP8": PRECISIONS["mxfp8"],
    "NVFP4": PRECISIONS["nvfp4"],
    "W4A16_NVFP4": PRECISIONS["nvfp4-w4a16"],
    "W4A8_MXFP4_FP8": MXFP4,
    "W4A16_AWQ": PRECISIONS["int4-g128"],
    "INT4_AWQ": PRECISIONS["int4-g128"],
    "W8A16": PRECISIONS["w8a16"],
    "W8A8_SQ_PER_CHANNEL": PRECISIONS["int8"],
}
_INDEX_OF_EXPERT = re.compile(r"experts\.\d+(\..*)?$")


class Exclusions(NamedTuple):
    """Modules that are not quantised: plain names, and globs and "re:" expressions as one compiled alternation."""

    names: frozenset[str] = frozenset()
    patterns: re.Pattern[str] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], *keys: str) -> Exclusions:
        """From the first of these keys that the section has."""
        entries: Iterable[str] = next((config[key] for key in keys if config.get(key)), ())
        if isinstance(entries, str) or not all(isinstance(entry, str) for entry in entries):
            raise ArchitectureError(f"excluded modules must be a list of names, got {entries!r}")
        names, patterns = set(), []
        for entry in entries:
            if entry.startswith("re:"):
                patterns.append(f"(?:{entry[3:]})")
            elif "*" in entry:
                patterns.append(fnmatch.translate(_local(entry)))
            else:
                names.add(_local(entry))
        return cls(frozenset(names), re.compile("|".join(patterns)) if patterns else None)

    def matches(self, path: str) -> bool:
        if any(name in self.names for name in _prefixes(path)):
            return True
        if not self.names.isdisjoint(path.split(".")):  # a bare name such as "gate" or "lm_head"
            return True
        return self.patterns is not None and self.patterns.match(path) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """`linear` for every linear layer except the excluded ones; `named` overrides both."""

    base: Precision = BF16
    linear: Precision | None = None
    experts: Precision | None = None  # routed experts, where they differ from `linear`
    named: Mapping[str, Precision] = field(default_factory=dict)
    excluded: Exclusions = field(default_factory=Exclusions)
    kv: Precision | None = None
    roles: Mapping[str, Precision] = field(default_factory=dict)  # of a file type of llama.cpp that mixes formats

    def of_linear(self, path: str) -> Precision:
        exact = self._named(path)
        if exact is not None:
            return exact
        if self.linear is None or self.excluded.matches(path):
            return self.base
        return self.roles.get(role_of(path), self.linear)

    def of_experts(self, path: str) -> Precision:
        if self.experts is not None and self._named(path) is None and not self.excluded.matches(path):
            return self.experts
        return self.of_linear(path)

    def of_expert_part(self, path: str, part: str) -> Precision:
        """One matrix of the routed experts at `path`."""
        if not self.roles:
            return self.of_experts(path)
        own = self.roles[EXPERT]
        return own if own != self.roles[OTHER] else self.roles.get(role_of(part), self.of_experts(path))

    def of_special(self, path: str) -> Precision:
        """A router, embedding or LM head: quantised only by name."""
        return self._named(path) or self.base

    def _named(self, path: str) -> Precision | None:
        for name in _prefixes(path):
            if name in self.named:
                return self.named[name]
        return None


def unquantized(base: Precision) -> QuantizationScheme:
    return QuantizationScheme(base=base)


def all_weights(precision: Precision, base: Precision = BF16) -> QuantizationScheme:
    """Every linear layer in one format or file type, for `--weights`.

    Routers keep their precision; so does the LM head, except in llama.cpp's formats, which have one for it, and in
    MLX's, which quantise it like the rest.
    """
    if precision.container == "mlx":
        heads = {"lm_head": precision, "head": precision}
        return QuantizationScheme(base=base, linear=precision, experts=precision, named=heads)
    if not is_gguf(precision):
        return QuantizationScheme(base=base, linear=precision, experts=precision)
    roles, head = role_precisions(precision.name), head_precision(precision.name)
    special = {"lm_head": head, "head": head, "embed_tokens": roles[OTHER]}
    return QuantizationScheme(base=base, linear=roles[OTHER], experts=roles[EXPERT], named=special, roles=roles)


def read_scheme(config: Mapping[str, Any], *, base: Precision, origin: str) -> QuantizationScheme:
    """The scheme of a `quantization_config` section (or of `hf_quant_config.json`'s `quantization`)."""
    method = str(config.get("quant_method") or "modelopt").lower()
    readers = {
        "fp8": _fp8,
        "mxfp4": _mxfp4,
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "modelopt_mixed": _modelopt,
        "compressed-tensors": _compressed_tensors,
        "awq": _grouped_int4,
        "gptq": _grouped_int4,
    }
    if method not in readers:
        raise ArchitectureError(
            f"{origin}: quant_method {method!r} is not known; known: {', '.join(readers)}. "
            "Remove the section and give --weights instead"
        )
    return readers[method](config, base, origin)


def _fp8(config: Mapping[str, Any], base: Precision, origin: str) -> QuantizationScheme:
    block = config.get("weight_block_size")
    if block is not None and not (isinstance(block, list) and all(isinstance(n, int) and n > 0 for n in block)):
        raise ArchitectureError(f"{origin}: 'weight_block_size' must list positive whole numbers, got {block!r}")
    return QuantizationScheme(
        base=base,
        linear=FP8_BLOCK if block else FP8,
        named=_named_layers(config, origin),  # NVIDIA's DeepSeek V4: fp8, but NVFP4 experts named one by one
        excluded=Exclusions.of(config, "modules_to_not_convert", "ignored_layers"),
        kv=_kv(config),
    )


def _mxfp4(config: Mapping[str, Any], base: Precision, origin: str) -> QuantizationScheme:
    del origin
    return QuantizationScheme(base=base, experts=MXFP4, excluded=Exclusions.of(config, "modules_to_not_convert"))


def _modelopt(config: Mapping[str, Any], base: Precision, origin: str) -> QuantizationScheme:
    algorithm = str(config.get("quant_algo") or "")
    return QuantizationScheme(
        base=base,
        linear=None if algorithm == "MIXED_PRECISION" else _algorithm(algorithm, origin),
        named=_named_layers(config, origin),
        excluded=Exclusions.of(config, "exclude_modules", "ignore"),
        kv=_kv(config),
    )


def _compressed_tensors(config: Mapping[str, Any], base: Precision, origin: str) -> QuantizationScheme:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise ArchitectureError(f"{origin}: compressed-tensors with {len(groups or ())} groups is not read yet")
    weights = next(iter(groups.values())).get("weights") or {}
    return QuantizationScheme(
        base=base,
        linear=_tensor_format(weights, str(config.get("format", "")), origin),
        excluded=Exclusions.of(config, "ignore"),
        kv=_kv(config),
    )


def _tensor_format(weights: Mapping[str, Any], layout: str, origin: str) -> Precision:
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if bits == 4 and kind == "float":
        return MXFP4 if layout.startswith("mxfp4") or group == 32 else PRECISIONS["nvfp4"]
    if bits == 4 and kind == "int" and f"int4-g{group}" in PRECISIONS:
        return PRECISIONS[f"int4-g{group}"]
    if bits == 8:
        return FP8 if kind == "float" else PRECISIONS["int8"]
    raise ArchitectureError(f"{origin}: weights of {bits} bits, type {kind!r}, group {group} are not known")


def _grouped_int4(config: Mapping[str, Any], base: Precision, origin: str) -> QuantizationScheme:
    bits, group = config.get("bits"), config.get("group_size")
    name = "w8a16" if bits == 8 else f"int4-g{group}"
    if bits not in (4, 8) or name not in PRECISIONS:
        raise ArchitectureError(f"{origin}: {bits} bits in groups of {group} are not known")
    excluded = Exclusions.of(config, "modules_to_not_convert")
    return QuantizationScheme(base=base, linear=PRECISIONS[name], excluded=excluded)


def _algorithm(name: str, origin: str) -> Precision:
    try:
        return _ALGORITHMS[name]
    except KeyError:
        raise ArchitectureError(
            f"{origin}: quant_algo {name!r} is not known; known: {', '.join(_ALGORITHMS)}"
        ) from None


def _named_layers(config: Mapping[str, Any], origin: str) -> dict[str, Precision]:
    layers = config.get("quantized_layers") or {}
    named = {}
    for name, entry in layers.items():
        # An MoE has 20,000 entries: experts are quantised alike, so one entry per layer is enough.
        module = _INDEX_OF_EXPERT.sub("experts", _local(name))
        if module not in named:
            named[module] = _algorithm(str(entry.get("quant_algo")), f"{origin}: {name}")
    return named


def _kv(config: Mapping[str, Any]) -> Precision | None:
    scheme = config.get("kv_cache_scheme")
    is_fp8 = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    named = str(scheme if isinstance(scheme, str) else config.get("kv_cache_quant_algo")).upper()
    return FP8 if is_fp8 or named == "FP8" else None


def _local(name: str) -> str:
    """The module's name from "layers." on: frameworks prefix it differently."""
    position = name.find("layers.")
    return name[position:] if position > 0 and not name.startswith("mtp") else name.removeprefix("model.")


def _prefixes(path: str) -> Iterable[str]:
    """layers.3.mlp.experts.gate_up -> itself, layers.3.mlp.experts, layers.3.mlp, layers.3, layers."""
    while path:
        yield path
        path = path.rpartition(".")[0]
