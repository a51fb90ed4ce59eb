"""Measured rounds beside predictions, each model by a fit to the others (`lab/fits/held_out_rounds.py` writes them)."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from specmargin.prices.accuracy import HeldOutRound, HeldOutRounds

FILE = "held_out_rounds.json"


@cache
def held_out_rounds() -> HeldOutRounds:
    values = json.loads((files("specmargin.catalog") / FILE).read_text(encoding="utf-8"))
    rounds = (HeldOutRound(**dict(zip(values["columns"], row, strict=True))) for row in values["rows"])
    return HeldOutRounds(engine=values["engine"], rounds=tuple(rounds))
