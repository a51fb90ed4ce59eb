"""Prices as money."""

from __future__ import annotations


def gpu_hours_per_million_tokens(tokens_per_second: float, gpus: int) -> float:
    return gpus * 1e6 / tokens_per_second / 3600.0
