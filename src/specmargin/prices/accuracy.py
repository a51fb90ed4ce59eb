"""How far predicted speed-ups were from measured ones, by how prices are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceErrors:
    """10th and 90th percentile of ln(measured / predicted speed-up) for prices of one kind."""

    low: float
    high: float
    source: str
