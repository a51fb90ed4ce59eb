"""Prices from measured kernels: laws, or the tables themselves where they are installed.

Every component is looked up by its real shapes. One that was not measured falls back to the datasheet, and its line in
the ledger says so. Verify attention (several queries per sequence) is modelled from one-query rows: the KV is read
once, products grow with the queries. Kernels that differ from that: `prices/verify_attention.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeGuard

import numpy as np

from specmargin.architecture.precision import Arithmetic, Precision
from specmargin.architecture.types import (
    Attention,
    ExpertBlock,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    Matrix,
)
from specmargin.prices.attention import traffic
from specmargin.prices.attention_kernels import Queries, device_kernel
from specmargin.prices.kernels.book import LawBook, LawEntry
from specmargin.prices.kernels.bounds import ModuleBounds, ModuleShape
from specmargin.prices.kernels.kinds import MODULE_KINDS, attention_kind
from specmargin.prices.kernels.law import Terms
from specmargin.prices.kernels.prompts import PromptPath, projected_context, prompt_kind, prompt_terms
from specmargin.prices.kernels.sheets import NO_CORRECTION, Correction
from specmargin.prices.kernels.shelf import LawShelf
from specmargin.prices.kernels.terms import (
    expert_terms_of_work,
    gemm_shape,
    gemm_terms,
    grouped_terms,
    quantize_terms,
    stages,
)
from specmargin.prices.model import WorkPrice, fixed_price, total_price
from specmargin.prices.roofline import Roofline
from specmargin.prices.triton_mla import triton_mla_price
from specmargin.prices.work import Collective, Module, Subject, Work
from specmargin.sources import Source, SourceKind
from specmargin.step import FloatArray, Step


class Refinement(Protocol):
    """Corrections of a law by the measured tables."""

    def gemm(self, entry: LawEntry, m: FloatArray, n: float, k: float) -> Correction: ...

    def experts(self, entry: LawEntry, block: ExpertBlock, work: Work) -> Correction: ...

    def attention(self, entry: LawEntry, attention: Attention, work: Work, step: Step) -> Correction: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SiliconPrices:
    name: str  # laws, tables or scaled
    engine: str
    book: LawBook | LawShelf
    fallback: Roofline
    refinement: Refinement | None = None
    bounds: ModuleBounds | None = None
    fallback_spreads: Mapping[str, float] = field(default_factory=dict)  # of the datasheet, by operation

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        return tuple(self._price(work) or self._datasheet(work) for work in works)

    def _datasheet(self, work: Work) -> WorkPrice:
        """For what no law prices: the source says how far datasheets are from measured kernels of its kind."""
        price = self.fallback.price([work])[0]
        if price.source is self.fallback.device.fabric.network:
            return price
        spread = self.fallback_spreads.get(_operation(work.subject), 0.0)
        if not spread:
            return price
        note = f"no kernel was measured: eight in ten are within a factor of {np.exp(spread):.1f} of the datasheet"
        source = replace(price.source, spread=spread, detail=f"{price.source.detail}; {note}")
        return replace(price, source=source)

    def _price(self, work: Work) -> WorkPrice | None:
        match work.subject:
            case None:
                return None
            case Collective():
                return self._collective(work, work.subject)
            case ExpertBlock():
                return self._experts(work, work.subject)
            case tuple():
                return self._projections(work, work.subject)
            case _:
                return self._attention(work, work.subject)

    def _tables(self, entry: LawEntry) -> Refinement | None:
        """The tables of this GPU correct the laws that were fitted to them, and no others."""
        return self.refinement if entry.source_kind is SourceKind.SILICON else None

    # --- matrices ---

    def _matrices(self, work: Work, matrices: tuple[Matrix, ...]) -> WorkPrice | None:
        parts: list[WorkPrice] = []
        for stage in stages(matrices):
            entries = [self._gemm_law(group[0]) for group in stage]
            known = [(group, entry) for group, entry in zip(stage, entries, strict=True) if entry is not None]
            if len(known) < len(stage):
                return None
            parts.append(_at_the_same_time([self._gemm(work, group, entry) for group, entry in known]))
        return total_price(parts)

    def _gemm_law(self, matrix: Matrix) -> LawEntry | None:
        """Hyper-connections and the like are fp32; they run in bf16 kernels."""
        precision = "bf16" if matrix.precision.name == "fp32" else matrix.precision.name
        return self.book.gemm(self.engine, precision)

    def _gemm(self, work: Work, group: tuple[Matrix, ...], entry: LawEntry) -> WorkPrice:
        n, k = gemm_shape(group, work.ranks)
        n *= group[0].copies  # a block-diagonal product is one batched kernel
        own_bytes = group[0].precision.bytes_per_parameter if entry.dtype == "int4_wo" else None  # by group size
        terms = gemm_terms(work.positions, n, k, entry.dtype, own_bytes)
        tables = self._tables(entry)
        correction = tables.gemm(entry, work.positions, n, k) if tables else NO_CORRECTION
        price = _law_price(entry, terms, work.count, correction)
        quantize = self.book.quantize(self.engine) if entry.dtype == "fp8" else None
        if quantize is None:
            return price
        before = _law_price(quantize, quantize_terms(work.positions, k), work.count, NO_CORRECTION)
        return replace(total_price([price, before]), source=price.source)

    # --- modules: projections and attention, measured together ---

    def _projections(self, work: Work, matrices: tuple[Matrix, ...]) -> WorkPrice | None:
        """The module's own matrices within its measured rows; those around it (hyper-connections) as they are."""
        if work.module is None or attention_kind(work.module.attention) not in MODULE_KINDS:
            return self._matrices(work, matrices)
        inside = self._matrices(work, work.module.projections)
        if inside is None:
            return None
        corrected = self._corrected(work, work.module, inside)
        around = tuple(matrix for matrix in matrices if matrix not in work.module.projections)
        if not around:
            return corrected
        rest = self._matrices(work, around)
        return None if rest is None else total_price([corrected, rest])

    def _corrected(self, work: Work, module: Module, price: WorkPrice) -> WorkPrice:
        """Corrects what decoding sequences take alone: what prompts add to their step stays the same."""
        correction = self._module_correction(work)
        decode = None if work.step is None else split_prompts(work.step)[0]
        if decode is None or not correction.label:
            return price
        alone = price
        if decode is not work.step:
            alone = self._matrices(replace(work, positions=decode.positions), module.projections) or price
        scale = 1.0 + (np.asarray(correction.factor) - 1.0) * alone.seconds / price.seconds
        detail = f"{price.source.detail}, at most the {correction.label}"
        return replace(price, source=replace(price.source, detail=detail)).scaled(scale)

    def _module_correction(self, work: Work) -> Correction:
        """Measured time of the whole module over the sum of its parts, at most 1."""
        decode = None if work.step is None else split_prompts(work.step)[0]
        if self.bounds is None or work.module is None or work.kv is None or decode is None:
            return NO_CORRECTION
        engines = self._module_engines(work.module.attention, work.kv)
        if not engines:
            return NO_CORRECTION
        shape = ModuleShape(module=work.module, ranks=work.ranks, kv=work.kv)
        return self.bounds.correction(engines, shape, decode, partial(self._sum_of_parts, work))

    def _module_engines(self, attention: Attention, kv: Precision) -> tuple[str, ...]:
        """Whose rows bound a module: the engine's, then those of the law; none where nothing is measured."""
        if self._runs_triton_mla(attention, kv):
            return (self.engine,)
        entry = self._attention_law(attention, attention_kind(attention), kv.name)
        return () if entry is None else (self.engine, entry.engine)

    def _sum_of_parts(self, work: Work, step: Step) -> FloatArray:
        """One layer's module without its correction: GEMMs (except GatedDeltaNet's, measured alone) and attention."""
        assert work.module is not None
        alone = replace(work, count=1, module=None, step=step, positions=step.positions)
        kind = attention_kind(work.module.attention)
        attention = self._attention(alone, work.module.attention)
        projections = self._matrices(alone, work.module.projections) if kind in MODULE_KINDS else None
        return np.asarray(sum(part.seconds for part in (attention, projections) if part is not None))

    # --- experts ---

    def _experts(self, work: Work, block: ExpertBlock) -> WorkPrice | None:
        entry = self.book.experts(self.engine, block, spread=work.expert_ranks > 1)
        if entry is None:
            return None
        terms = expert_terms_of_work(work, block, entry.dtype)
        tables = self._tables(entry)
        correction = tables.experts(entry, block, work) if tables else NO_CORRECTION
        return _law_price(entry, terms, work.count, correction)

    # --- attention ---

    def _attention(self, work: Work, attention: Attention) -> WorkPrice | None:
        if work.step is None or work.kv is None:
            return None
        decode, prompts = split_prompts(work.step)
        parts = []
        if decode is not None:
            part = self._decode(work, attention, decode)
            if part is None:
                return None
            parts.append(part)
        if prompts is not None:
            parts.append(self._prefill(work, attention, prompts))
        return total_price(parts)

    def _decode(self, work: Work, attention: Attention, step: Step) -> WorkPrice | None:
        kind = attention_kind(attention)
        if not kind or work.kv is None:
            return None
        if self._runs_triton_mla(attention, work.kv):
            return self._triton_mla(work, attention, step)
        entry = self._attention_law(attention, kind, work.kv.name)
        if entry is None:
            return None
        if isinstance(attention, GroupedAttention):
            terms = grouped_terms(attention, step, kv_bytes=work.kv.bytes_per_parameter, ranks=work.ranks)
        else:
            part = attention_work(work, attention, step)
            operations = part.flops if kind != "gdn" else np.zeros(())
            terms = Terms(bytes=part.bytes, operations=operations, units=step.sequences)
        if isinstance(attention, GroupedAttention):
            tables = self._tables(entry)
            correction = tables.attention(entry, attention, work, step) if tables else NO_CORRECTION
        else:
            correction = self._module_correction(work)
        return _law_price(entry, terms, work.count, correction, self._remark(attention, work.kv))

    def _runs_triton_mla(self, attention: Attention, kv: Precision) -> TypeGuard[LatentAttention]:
        """Instead of a law: other engines' laws on the same GPU are of other kernels."""
        device = self.fallback.device
        return device.multiprocessors is not None and device_kernel(self.engine, device, attention, kv).is_triton_mla

    def _triton_mla(self, work: Work, attention: LatentAttention, step: Step) -> WorkPrice:
        assert work.kv is not None
        price = triton_mla_price(self.fallback.device, attention, step, kv=work.kv, ranks=work.ranks)
        correction = self._module_correction(work)
        scaled = price.scaled(np.asarray(work.count * correction.factor))
        if not correction.label:
            return scaled
        detail = f"{price.source.detail}, at most the {correction.label}"
        return replace(scaled, source=replace(price.source, detail=detail))

    def _remark(self, attention: Attention, kv: Precision) -> str:
        """Tables have one query per sequence. What another treatment changes is not priced here."""
        kernel = device_kernel(self.engine, self.fallback.device, attention, kv)
        if kernel.queries is not Queries.ONCE:
            return ""
        return f"; several queries per sequence are modelled: {kernel}, products per query"

    def _attention_law(self, attention: Attention, kind: str, kv: str) -> LawEntry | None:
        if isinstance(attention, GroupedAttention):
            return self.book.attention(self.engine, attention, kv)
        if kind == "gdn":
            return self.book.delta_net(self.engine)
        return self.book.module(self.engine, kind, kv)

    def _prefill(self, work: Work, attention: Attention, step: Step) -> WorkPrice:
        """Prompts by the law of their module, or at the rate of the engine's prefill attention."""
        kind = prompt_kind(attention)
        entry = self.book.prompts(self.engine, kind) if kind else None
        if entry is None and not isinstance(attention, LinearAttention):
            entry = self.book.prefill(self.engine)
        if entry is None:
            return self.fallback.price([attention_work(work, attention, step)])[0]
        path = self._prompt_path(work)
        price = _law_price(entry, prompt_terms(attention, step, path), work.count, NO_CORRECTION)
        if not isinstance(attention, LatentAttention):
            return price
        again = self._projected_again(work, projected_context(attention, step, path))
        return price if again is None else total_price([price, again])

    def _prompt_path(self, work: Work) -> PromptPath:
        assert work.kv is not None
        return PromptPath(
            engine=self.engine,
            architecture=self.fallback.device.architecture,
            fp8_cache=work.kv.name.startswith("fp8"),
            ranks=work.ranks,
        )

    def _projected_again(self, work: Work, tokens: FloatArray) -> WorkPrice | None:
        """MLA's up-projection of the cached context, by every piece of a prompt anew; None without a context."""
        if work.module is None or not np.any(tokens > 0):
            return None
        matrices = tuple(matrix for matrix in work.module.projections if matrix.name.endswith(_UP_PROJECTION))
        price = self._matrices(replace(work, positions=tokens), matrices)
        return None if price is None else price.scaled(np.where(tokens > 0, 1.0, 0.0))

    # --- collectives ---

    def _collective(self, work: Work, collective: Collective) -> WorkPrice | None:
        fabric = self.fallback.device.fabric
        if fabric.network is not None and collective.ranks > fabric.gpus_per_node:
            return None  # measured inside a node, or over another network
        measured = self.book.collective(self.engine, str(collective.kind), collective.ranks)
        if measured is None:
            return None
        curve, source = measured
        return fixed_price(work.count * curve.seconds(work.bytes), source)


def attention_work(work: Work, attention: Attention, step: Step) -> Work:
    """The part of an attention work that belongs to the sequences of `step`."""
    assert work.kv is not None
    moved = traffic(
        attention,
        step.run_by_class,
        step.context_by_class,
        kv=work.kv,
        ranks=work.ranks,
        states=step.wanted_by_class,
    )
    return replace(
        work,
        bytes=step.total(moved.read_bytes + moved.written_bytes),
        operations={Arithmetic.BF16: step.total(moved.flops)},
        step=step,
    )


def split_prompts(step: Step) -> tuple[Step | None, Step | None]:
    """The decoding sequences and the prompts of a step."""
    if step.prompt_by_class is None:
        return step, None
    is_prompt = step.prompt_by_class.reshape(-1, step.prompt_by_class.shape[-1])[0] > 0
    return step.classes(~is_prompt), step.classes(is_prompt)


_UP_PROJECTION = "kv_b_proj"


def _operation(subject: Subject) -> str:
    """The kind of kernel, as laws name it; "" for what has none, like sampling."""
    match subject:
        case None:
            return ""
        case Collective():
            return "collective"
        case ExpertBlock():
            return "experts"
        case tuple():
            return "gemm"
        case _:
            return "attention"


def _law_price(entry: LawEntry, terms: Terms, count: float, correction: Correction, remark: str = "") -> WorkPrice:
    """`count` pieces at the law's time, corrected by the tables."""
    memory, compute = parts = entry.law.parts(terms)
    whole = entry.law.seconds(terms, parts)
    scale = count * correction.factor
    detail = correction.label or f"law of {entry.law.evidence}"
    in_place = f", {entry.remark}" if entry.remark else ""
    detail = f"{entry.origin}, {detail}{in_place}{remark}"
    source = Source(kind=entry.source_kind, detail=detail, spread=entry.spread)
    return WorkPrice(
        seconds=np.asarray(whole * scale),
        memory_seconds=np.asarray(memory * scale),
        compute_seconds=np.asarray(compute * scale),
        fixed_seconds=np.asarray((whole - np.maximum(memory, compute)) * scale),
        source=source,
    )


def _at_the_same_time(parts: Sequence[WorkPrice]) -> WorkPrice:
    """Kernels on parallel streams: they share bandwidth and matrix units, and wait for one fixed time, the longest."""
    if len(parts) == 1:
        return parts[0]
    whole = total_price(parts)
    hidden = whole.fixed_seconds - np.max(np.stack([part.fixed_seconds for part in parts]), axis=0)
    return replace(whole, seconds=whole.seconds - hidden, fixed_seconds=whole.fixed_seconds - hidden)
