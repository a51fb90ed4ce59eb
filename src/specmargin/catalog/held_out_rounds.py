"""Measured rounds beside predictions, each model by a fit to the others (`lab/fits/held_out_rounds.py` writes them)."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "held_out_rounds.json"


@cache
def held_out_rounds() -> tuple[str, list[dict[str, Any]]]:
    """The engine, and a row per round: prices (tables or laws), model, batch, depth, measured and predicted seconds."""
    values = json.loads((files("specmargin.catalog") / FILE).read_text(encoding="utf-8"))
    return values["engine"], [dict(zip(values["columns"], row, strict=True)) for row in values["rows"]]
