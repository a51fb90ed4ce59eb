"""How far predicted speed-ups were from measured ones, by how prices are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceErrors:
    """10th and 90th percentile of ln(measured / predicted speed-up) for prices of one kind."""

    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRound:
    prices: str  # tables or laws
    model: str
    batch: int
    depth: int
    measured_seconds: float
    predicted_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRounds:
    engine: str
    rounds: tuple[HeldOutRound, ...]
