"""Measured rounds beside predictions, each model by a fit to the others (`lab/fits/held_out_rounds.py` writes them)."""

from __future__ import annotations

from functools import cache
from typing import Any

from specmargin.catalog.bundled import read_bundled

FILE = "held_out_rounds.json"


@cache
def held_out_rounds() -> tuple[str, list[dict[str, Any]]]:
    """The engine, and a row per round: prices (tables or laws), model, batch, depth, measured and predicted seconds."""
    values = read_bundled(FILE)
    return values["engine"], [dict(zip(values["columns"], row, strict=True)) for row in values["rows"]]
