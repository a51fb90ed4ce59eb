"""Lookup of the laws of one GPU: of the engine that is priced, or else of another engine on the same GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specmargin.architecture.types import ExpertBlock, GroupedAttention
from specmargin.prices.kernels.kinds import DTYPE_GROUPS, expert_variant, family, grouped_variant, is_plain, shape_key
from specmargin.prices.kernels.law import Curve, Law
from specmargin.sources import Source, SourceKind

UNVERIFIED_ROWS = "unverified: no measured step of this GPU, engine and format agrees with these rows yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class LawEntry:
    """A law, the dtype it was measured in, and its origin."""

    law: Law
    dtype: str
    engine: str
    origin: str  # release of the measurements, and the GPU
    source_kind: SourceKind = SourceKind.SILICON
    spread: float = 0.0  # of the source, as `Source.spread`
    remark: str = ""  # a dropped table that this law stands in for; that no measured step has verified it


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedTable:
    """A kernel's rows that the checks left out of the laws (`checks.py`), and why."""

    engine: str
    version: str
    operation: str
    dtype: str  # "" for modules
    kernel: str
    reason: str

    def __str__(self) -> str:
        name = f"{self.engine} {self.version} {self.dtype or self.operation} ({self.kernel})"
        return f"in place of the table of {name}, dropped because it {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LawBook:
    """All laws of one GPU, by engine, operation, dtype and variant."""

    gpu: str
    release: str
    laws: Mapping[tuple[str, str, str, str], Law]
    curves: Mapping[tuple[str, str, str, str], Curve]
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scaled_to: str = ""  # the device that these laws were scaled to; "" for the measured one
    kind: SourceKind = SourceKind.SILICON
    spreads: Mapping[str, float] = field(default_factory=dict)  # `Source.spread` by family (`kinds.family`)
    dropped: tuple[DroppedTable, ...] = ()
    verified: frozenset[tuple[str, str]] | None = None  # engines and dtypes; None: nothing is known about them
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
        dropped = tuple(
            DroppedTable(**{name: entry[name] for name in _DROPPED})
            for entry in values.get("dropped", ())
            if entry["gpu"] == gpu and entry["kernel"]  # rows of a kernel that is still used are not worth a remark
        )
        return cls(
            gpu=gpu, release=values["source"], laws=laws, curves=curves, kernels=values["kernels"], dropped=dropped
        )

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
            engines = dict.fromkeys(engine for engine, *_ in self.laws)
            self._order[first] = [first, *(engine for engine in engines if engine != first)]
        return self._order[first]

    def gemm(self, engine: str, precision: str) -> LawEntry | None:
        return self._find(engine, "gemm", DTYPE_GROUPS.get(precision, ()), [""])

    def quantize(self, engine: str) -> LawEntry | None:
        """Activations to fp8, before a GEMM of per-tensor fp8: the tables measure the two apart."""
        return self._find(engine, "quantize", (("fp8",),), [""])

    def experts(self, engine: str, block: ExpertBlock, *, spread: bool, kernel: str = "") -> LawEntry | None:
        """The law of the kernel that the engine uses for this model's shape, or of its usual kernel.

        `kernel`: only kernels with this in their name.
        """
        plain = is_plain(block)
        shape = _model_shape(block)
        for candidate, dtype in self._order_of(engine, DTYPE_GROUPS.get(block.expert[0].precision.name, ())):
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
                return self._remarked(entry, engine, "experts", dtype)
        return None

    def _order_of(self, engine: str, groups: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, str]]:
        """Engines and dtypes, best first: group by group, the engine's own kernels before another engine's."""
        return ((candidate, dtype) for group in groups for candidate in self.engines(engine) for dtype in group)

    def attention(self, engine: str, attention: GroupedAttention, kv: str) -> LawEntry | None:
        exact = grouped_variant(attention, kv)
        return self._find(engine, "attention", (("bfloat16",),), [exact, exact.replace("-window", "")])

    def prefill(self, engine: str) -> LawEntry | None:
        return self._find(engine, "prefill", (("bfloat16",),), [""])

    def module(self, engine: str, kind: str, kv: str) -> LawEntry | None:
        dtypes = (("fp8",), ("bfloat16",)) if kv.startswith("fp8") else (("bfloat16",), ("fp8",))
        return self._find(engine, kind, dtypes, [""])

    def prompts(self, engine: str, kind: str) -> LawEntry | None:
        return self.module(engine, f"{kind} prompts", "bf16")

    def delta_net(self, engine: str) -> LawEntry | None:
        return self._find(engine, "gdn", (("fp32",),), [""])

    def collective(self, engine: str, kind: str, ranks: int) -> tuple[Curve, Source] | None:
        for candidate in self.engines(engine):
            curve = self.curves.get((candidate, kind, "bfloat16", str(ranks)))
            if curve is not None:
                spread, note = self._spread(kind, "bfloat16", str(ranks))
                detail = f"{self.origin}{note}, curve of {curve.evidence}"
                return curve, Source(kind=self.source_kind, detail=detail, spread=spread)
        return None

    def _find(
        self, engine: str, operation: str, groups: Iterable[tuple[str, ...]], variants: list[str]
    ) -> LawEntry | None:
        for candidate, dtype in self._order_of(engine, groups):
            entry = self._first_variant(candidate, operation, dtype, variants)
            if entry is not None:
                return self._remarked(entry, engine, operation, dtype)
        return None

    def _remarked(self, entry: LawEntry, engine: str, operation: str, dtype: str) -> LawEntry:
        """With the dropped table of the engine's own, if this law stands in for one."""
        for table in self.dropped:
            is_own = (table.engine, table.operation) == (engine, operation) and table.dtype in ("", dtype)
            if is_own and entry.law.evidence.version != f"{table.engine} {table.version}":
                return replace(entry, remark="; ".join(part for part in (str(table), entry.remark) if part))
        return entry

    def _is_verified(self, engine: str, operation: str, dtype: str) -> bool:
        """Whether measured steps agree with these rows: weights by their format, the rest by the engine."""
        if self.verified is None or self.scaled_to:
            return True
        if operation in ("gemm", "experts"):
            return (engine, dtype) in self.verified
        return any(name == engine for name, _ in self.verified)

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
                    remark="" if self._is_verified(candidate, operation, dtype) else UNVERIFIED_ROWS,
                )
        return None


_DROPPED = ("engine", "version", "operation", "dtype", "kernel", "reason")
_KEYS = ("gpu", "engine", "operation", "dtype", "variant")


def _model_shape(block: ExpertBlock) -> str:
    """As the tables name it: hidden size, intermediate size, experts per token, experts."""
    down = block.expert[1]
    return shape_key(down.outputs, down.inputs, block.pool.experts_per_token, block.pool.experts)
