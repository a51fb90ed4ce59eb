"""Lookup of the laws of one GPU: of the engine that is priced, or else of another engine on the same GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specmargin.architecture.types import ExpertBlock, GroupedAttention
from specmargin.prices.kernels.kinds import DTYPES, expert_variant, family, grouped_variant, is_plain, shape_key
from specmargin.prices.kernels.law import Curve, Law
from specmargin.sources import Source, SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LawEntry:
    """A law, the dtype it was measured in, and its origin."""

    law: Law
    dtype: str
    engine: str
    origin: str  # release of the measurements, and the GPU
    source_kind: SourceKind = SourceKind.SILICON
    spread: float = 0.0  # of the source, as `Source.spread`


@dataclass(frozen=True, slots=True, kw_only=True)
class LawBook:
    """All laws of one GPU, by engine, operation, dtype and variant."""

    gpu: str
    release: str
    laws: Mapping[tuple[str, str, str, str], Law]
    curves: Mapping[tuple[str, str, str, str], Curve]
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fallback: LawBook | None = None  # for what is not in this one
    scaled_to: str = ""  # the device that these laws were scaled to; "" for the measured one
    kind: SourceKind = SourceKind.SILICON
    spreads: Mapping[str, float] = field(default_factory=dict)  # `Source.spread` by family (`kinds.family`)
    _order: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_json(cls, gpu: str, values: Mapping[str, Any]) -> LawBook:
        laws, curves = {}, {}
        for entry in values["laws"]:
            if entry["gpu"] != gpu:
                continue
            key = (entry["engine"], entry["operation"], entry["dtype"], entry["variant"])
            rest = {name: value for name, value in entry.items() if name not in _KEYS}
            if "sizes" in entry:
                curves[key] = Curve.from_json(rest)
            else:
                laws[key] = Law.from_json(rest)
        return cls(gpu=gpu, release=values["source"], laws=laws, curves=curves, kernels=values["kernels"])

    def with_fallback(self, other: LawBook) -> LawBook:
        """These laws, and the other's where there are none; each keeps its own origin."""
        return replace(self, kernels={**other.kernels, **self.kernels}, fallback=other)

    @property
    def origin(self) -> str:
        scaled = f" scaled to {self.scaled_to} by datasheet" if self.scaled_to else ""
        return f"{self.release}, {self.gpu}{scaled}"

    @property
    def source_kind(self) -> SourceKind:
        return SourceKind.SCALED if self.scaled_to else self.kind

    def _spread(self, operation: str, dtype: str, variant: str) -> tuple[float, str]:
        """How uncertain a law of this family is, and a note that says so."""
        spread = self.spreads.get(family(operation, dtype, variant), self.spreads.get(operation, 0.0))
        note = f" (eight in ten within {math.expm1(spread):.0%} on GPUs that were left out)" if self.scaled_to else ""
        return spread, note if spread else ""

    def engines(self, first: str) -> list[str]:
        """Engines with laws on this GPU, `first` in front."""
        if first not in self._order:  # called for every matrix of every step
            books = [self.laws] if self.fallback is None else [self.laws, self.fallback.laws]
            engines = dict.fromkeys(engine for laws in books for engine, *_ in laws)
            self._order[first] = [first, *(engine for engine in engines if engine != first)]
        return self._order[first]

    def gemm(self, engine: str, precision: str) -> LawEntry | None:
        return self._find(engine, "gemm", DTYPES.get(precision, ()), [""])

    def experts(self, engine: str, block: ExpertBlock, *, spread: bool, kernel: str = "") -> LawEntry | None:
        """The law of the kernel that the engine uses for this model's shape, or of its usual kernel.

        `kernel`: only kernels with this in their name.
        """
        plain = is_plain(block)
        shape = _model_shape(block)
        for dtype in DTYPES.get(block.expert[0].precision.name, ()):
            for candidate in self.engines(engine):
                kernels = self.kernels.get(f"{self.gpu}/{candidate}/{dtype}")
                if kernels is None:
                    continue
                usual = [kernels["shapes"].get(shape, kernels["default"]), kernels["default"]]
                names = dict.fromkeys(name for name in usual if kernel in name)
                variants = [expert_variant(name, spread=spread, plain=plain) for name in names]
                variants += [expert_variant(name, spread=not spread, plain=plain) for name in names]
                variants += [expert_variant(name, spread=spread, plain=not plain) for name in names]
                entry = self._first_variant(candidate, "experts", dtype, variants)
                if entry is not None:
                    return entry
        return None

    def attention(self, engine: str, attention: GroupedAttention, kv: str) -> LawEntry | None:
        exact = grouped_variant(attention, kv)
        return self._find(engine, "attention", ("bfloat16",), [exact, exact.replace("-window", "")])

    def prefill(self, engine: str) -> LawEntry | None:
        return self._find(engine, "prefill", ("bfloat16",), [""])

    def module(self, engine: str, kind: str, kv: str) -> LawEntry | None:
        dtypes = ("fp8", "bfloat16") if kv.startswith("fp8") else ("bfloat16", "fp8")
        return self._find(engine, kind, dtypes, [""])

    def prompts(self, engine: str, kind: str) -> LawEntry | None:
        return self.module(engine, f"{kind} prompts", "bf16")

    def delta_net(self, engine: str) -> LawEntry | None:
        return self._find(engine, "gdn", ("fp32",), [""])

    def collective(self, engine: str, kind: str, ranks: int) -> tuple[Curve, Source] | None:
        for candidate in self.engines(engine):
            curve = self.curves.get((candidate, kind, "bfloat16", str(ranks)))
            if curve is not None:
                spread, note = self._spread(kind, "bfloat16", str(ranks))
                detail = f"{self.origin}{note}, curve of {curve.evidence}"
                return curve, Source(kind=self.source_kind, detail=detail, spread=spread)
        return None if self.fallback is None else self.fallback.collective(engine, kind, ranks)

    def _find(self, engine: str, operation: str, dtypes: Iterable[str], variants: list[str]) -> LawEntry | None:
        for dtype in dtypes:
            for candidate in self.engines(engine):
                entry = self._first_variant(candidate, operation, dtype, variants)
                if entry is not None:
                    return entry
        return None

    def _first_variant(self, candidate: str, operation: str, dtype: str, variants: list[str]) -> LawEntry | None:
        for variant in variants:
            law = self.laws.get((candidate, operation, dtype, variant))
            if law is not None:
                spread, note = self._spread(operation, dtype, variant)
                return LawEntry(
                    law=law,
                    dtype=dtype,
                    engine=candidate,
                    origin=f"{self.origin}{note}",
                    source_kind=self.source_kind,
                    spread=spread,
                )
        return None if self.fallback is None else self.fallback._first_variant(candidate, operation, dtype, variants)


_KEYS = ("gpu", "engine", "operation", "dtype", "variant")


def _model_shape(block: ExpertBlock) -> str:
    """As the tables name it: hidden size, intermediate size, experts per token, experts."""
    down = block.expert[1]
    return shape_key(down.outputs, down.inputs, block.pool.experts_per_token, block.pool.experts)
