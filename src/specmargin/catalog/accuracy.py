"""Errors of predicted speed-ups, by how prices are known (lab/fits/ranges.py)."""

from __future__ import annotations

from specmargin.catalog.bundled import read_bundled
from specmargin.prices.accuracy import PriceErrors

OWN, ROUNDS, LLAMACPP = "own", "rounds", "llamacpp"
_KINDS = {
    "tables": "kernels",
    "laws": "kernels",
    "scaled": "scaled",
    "datasheet": "datasheet",
    "processor": "datasheet",
    "mlx": "datasheet",
    "llamacpp": LLAMACPP,
}
_ROUNDS_MEASURED = ("h200",)  # whole rounds, not only kernels (lab/data/measurements)
# Rounds of a model predicted with terms measured on others: medians of 1.2 to 5.3%, 1.9 times the largest holds 80%
# (`python -m lab.validation.rounds`).
_OF_ROUNDS = PriceErrors(
    low=-0.10, high=0.10, source="measured rounds of other models (python -m lab.validation.rounds)"
)


def price_class(prices: str, gpu: str) -> str:
    """How prices of this name are known on this GPU; any other name is a file of the user's own measurements."""
    kind = _KINDS.get(prices, OWN)
    return ROUNDS if kind == "kernels" and gpu in _ROUNDS_MEASURED else kind


def price_errors(prices: str, gpu: str, *, without: str | None = None) -> PriceErrors:
    """Of speed-ups, beyond what is uncertain about single components. `without`: a source of published rows.

    llama.cpp's come from rows of llama.cpp alone, the others' from none of them.
    """
    kind = price_class(prices, gpu)
    if kind in (OWN, ROUNDS):
        return _OF_ROUNDS
    if kind == LLAMACPP:
        ratios = read_bundled("llamacpp_kernels.json")["errors"]["ratios"]
        entry = ratios | ratios["without"].get(without, {})
        return PriceErrors(low=entry["low"], high=entry["high"], source=entry["source"])
    document = read_bundled("speedup_errors.json")
    entry = document["classes"][kind]
    return PriceErrors(low=entry["low"], high=entry["high"], source=document["source"])
