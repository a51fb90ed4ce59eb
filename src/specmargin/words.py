"""Numbers as people read them."""

from __future__ import annotations

UNVERIFIED = "upper bound, lossy: output changes; never recommended"  # the label of decoding without verification


def duration(seconds: float) -> str:
    """Three significant digits in the largest unit that gives at least 1."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return "0" if abs(seconds) < 1e-9 else f"{seconds * 1e9:.3g} ns"


def amount(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix: 1.2 GB."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def queue_text(name: str, requests_per_second: float, tokens_per_second: float) -> tuple[str, str]:
    """What is said, in two lines, of a rate that an engine cannot keep up with."""
    return (
        f"{name}: more arrives than the engine can serve: the queue grows by",
        f"{requests_per_second:.3g} requests per second; {tokens_per_second:,.0f} tok/s is its capacity",
    )
