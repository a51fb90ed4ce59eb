"""Several books of laws, asked in turn: what the first lacks is looked up in the next.

A GPU rarely has every kernel measured: an L40S has no dense int4, an A100 no GatedDeltaNet. A law of another GPU,
scaled, is nearer to the truth than a datasheet (`python -m lab.validation.scaled`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from specmargin.architecture.types import ExpertBlock, GroupedAttention
from specmargin.prices.kernels.book import LawBook, LawEntry
from specmargin.prices.kernels.law import Curve, Law
from specmargin.sources import Source

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class LawShelf:
    """`own`: the laws of the GPU itself, or of the nearest one; `others` are asked after it.

    Dense matrices in `weight_only_formats` are looked up in `weight_only` first.
    """

    own: LawBook
    others: tuple[LawBook, ...] = ()
    weight_only: LawBook | None = None
    weight_only_formats: frozenset[str] = frozenset()
    marlin_formats: frozenset[str] = frozenset()  # of experts that vLLM multiplies with Marlin on this GPU
    links: LawBook | None = None  # collectives, if they are not as in the other books

    @property
    def laws(self) -> Mapping[tuple[str, str, str, str], Law]:
        return self.own.laws

    def gemm(self, engine: str, precision: str) -> LawEntry | None:
        if self.weight_only is not None and precision in self.weight_only_formats:
            entry = self.weight_only.gemm(engine, "int4-g128")
            if entry is not None:
                return entry
        return self._first(lambda book: book.gemm(engine, precision))

    def quantize(self, engine: str) -> LawEntry | None:
        return self._first(lambda book: book.quantize(engine))

    def experts(self, engine: str, block: ExpertBlock, *, spread: bool) -> LawEntry | None:
        if engine == "vllm" and block.expert[0].precision.name in self.marlin_formats:
            entry = self._first(lambda book: book.experts(engine, block, spread=spread, kernel="marlin"))
            if entry is not None:
                return entry
        return self._first(lambda book: book.experts(engine, block, spread=spread))

    def attention(self, engine: str, attention: GroupedAttention, kv: str) -> LawEntry | None:
        return self._first(lambda book: book.attention(engine, attention, kv))

    def prefill(self, engine: str) -> LawEntry | None:
        return self._first(lambda book: book.prefill(engine))

    def module(self, engine: str, kind: str, kv: str) -> LawEntry | None:
        return self._first(lambda book: book.module(engine, kind, kv))

    def prompts(self, engine: str, kind: str) -> LawEntry | None:
        return self._first(lambda book: book.prompts(engine, kind))

    def delta_net(self, engine: str) -> LawEntry | None:
        return self._first(lambda book: book.delta_net(engine))

    def collective(self, engine: str, kind: str, ranks: int) -> tuple[Curve, Source] | None:
        if self.links is not None:
            return self.links.collective(engine, kind, ranks)
        return self._first(lambda book: book.collective(engine, kind, ranks))

    def _first(self, find: Callable[[LawBook], Found | None]) -> Found | None:
        return next((found for book in (self.own, *self.others) if (found := find(book)) is not None), None)
