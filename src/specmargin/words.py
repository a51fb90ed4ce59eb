"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Three significant digits in the largest unit that gives at least 1."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return "0" if abs(seconds) < 1e-9 else f"{seconds * 1e9:.3g} ns"
