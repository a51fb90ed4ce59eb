"""Errors of predicted speed-ups, by how prices are known (lab/fits/ranges.py)."""

from __future__ import annotations

from specmargin.catalog.bundled import read_bundled
from specmargin.prices.accuracy import PriceErrors

_CLASSES = {"tables": "kernels", "laws": "kernels", "scaled": "scaled", "datasheet": "datasheet"}
# Rounds of a model predicted with terms measured on others: medians of 1.2 to 5.3%, 1.9 times the largest holds 80%
# (`python -m lab.validation.rounds`).
_OWN = PriceErrors(low=-0.10, high=0.10, source="measured rounds of other models (python -m lab.validation.rounds)")


OWN = "own"


def price_class(prices: str) -> str:
    """How prices of this name are known."""
    return _CLASSES.get(prices, OWN)


def price_errors(prices: str) -> PriceErrors:
    """For prices of this name; any other name is a file of the user's own measurements."""
    if prices not in _CLASSES:
        return _OWN
    document = read_bundled("speedup_errors.json")
    entry = document["classes"][_CLASSES[prices]]
    return PriceErrors(low=entry["low"], high=entry["high"], source=document["source"])
