"""Structures of the figures that the browser fills: those of `show/figures/overlay.py`, for any number of sides."""

from __future__ import annotations

from typing import Any

from specmargin.show.figures.overlay import overlay_structures
from specmargin.show.figures.pareto import TITLE, pareto_structure
from specmargin.show.figures.theme import DRAFTERS

_SIDES = 12  # as many as the page compares; fewer use the first colours
_TITLES = {"pareto": TITLE, "overlay-speedup": "Speed-up by batch", "overlay-speed": "Tokens/s per user by batch"}
FIGURES = [
    {"name": name, "title": title, "section": "By batch", "slow": False, "wait": None}
    for name, title in _TITLES.items()
]


def structures() -> dict[str, Any]:
    """By key of a figure; and the names that colours are known for."""
    found = overlay_structures(True, _SIDES) | overlay_structures(False, _SIDES)
    by_key = {key.removesuffix(f":{_SIDES}"): structure for key, structure in found.items()}
    return {"drafters": list(DRAFTERS), **by_key, **pareto_structure()}
