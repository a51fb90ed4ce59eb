"""How far predicted speed-ups were from measured ones, by how prices are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceErrors:
    """A range of ln(measured / predicted speed-up) that holds 80%, for prices of one kind."""

    low: float
    high: float
    source: str
