"""Where a number comes from. Every price and every curve has a source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class SourceKind(StrEnum):
    """Kinds of evidence, strongest first."""

    MEASURED = "measured"  # on the user's engine or GPU, or by this project
    SILICON = "silicon"  # public measurements of production kernels
    PUBLISHED = "published"  # a number printed in a paper, post or model card
    SCALED = "scaled"  # measurements of another GPU, scaled by the ratios of datasheets
    DATASHEET = "datasheet"  # a vendor's peak
    ASSUMED = "assumed"  # a default without evidence


_STRENGTH = {kind: rank for rank, kind in enumerate(SourceKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`spread`: the 80% range of the number, as a logarithm on each side (0.2: within 22%), if known by itself."""

    kind: SourceKind
    detail: str
    spread: float = 0.0  # 0: as certain as others of its kind
    file: str = ""  # the user's catalog file that states it
    overrides: bool = False  # whether that file replaces a bundled entry of the same name

    def __str__(self) -> str:
        replaced = ", instead of the bundled entry" if self.overrides else ""
        return f"{self.kind}: {self.detail}{f' (yours: {self.file}{replaced})' if self.file else ''}"


def weakest(sources: Iterable[Source]) -> Source:
    """The weakest of these sources, which a report must name; of one kind, the most uncertain."""
    return max(sources, key=lambda source: (_STRENGTH[source.kind], source.spread))


def assumed(detail: str) -> Source:
    return Source(kind=SourceKind.ASSUMED, detail=detail)


def published(detail: str) -> Source:
    return Source(kind=SourceKind.PUBLISHED, detail=detail)


def datasheet(detail: str) -> Source:
    return Source(kind=SourceKind.DATASHEET, detail=detail)
