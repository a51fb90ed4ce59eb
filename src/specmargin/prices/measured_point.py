"""A measured decoding speed of a model on a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """Tokens per second of all sequences, with and without speculation; None: not measured."""

    model: str
    gpu: str
    gpus: int
    weights: str
    engine: str  # with its release
    date: str
    source: str
    drafter: str | None
    depth: int
    context: int
    batch: int
    plain: float | None
    speculative: float | None
