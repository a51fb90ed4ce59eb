"""Where a number came from. Every price and every curve carries one of these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class SourceKind(StrEnum):
    """Kinds of evidence, strongest first."""

    MEASURED = "measured"  # on the user's own engine or GPU, or in our own measurements
    SILICON = "silicon"  # public measurements of production kernels
    PUBLISHED = "published"  # a figure printed by somebody else
    DATASHEET = "datasheet"  # a vendor's peak
    ASSUMED = "assumed"  # our own choice, for want of anything better


_STRENGTH = {kind: rank for rank, kind in enumerate(SourceKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    kind: SourceKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def weakest(sources: Iterable[Source]) -> Source:
    """The source that a report must confess to: a chain is as good as its weakest link."""
    return max(sources, key=lambda source: _STRENGTH[source.kind])


def assumed(detail: str) -> Source:
    return Source(kind=SourceKind.ASSUMED, detail=detail)


def published(detail: str) -> Source:
    return Source(kind=SourceKind.PUBLISHED, detail=detail)


def datasheet(detail: str) -> Source:
    return Source(kind=SourceKind.DATASHEET, detail=detail)
