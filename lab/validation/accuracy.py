"""The table at the end of `python -m lab.validation`: how far predictions are from measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from lab.terminal import table

SOURCES = ("tables", "laws", "datasheet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """One line: what was measured, how often, and the error of each price source, as text."""

    what: str
    count: int
    errors: Mapping[str, str] = field(default_factory=dict)  # by source
    remark: str = ""


def median_and(middle: float, other: float) -> str:
    """The median, and in parentheses the worst error or the 90th percentile."""
    return f"{middle:.1%} ({other:.0%})"


def show_accuracy(out: Console, lines: Sequence[Accuracy]) -> None:
    shown = table("Accuracy: median absolute error", ("measured", "in parentheses"), ("number", *SOURCES))
    for line in lines:
        shown.add_row(line.what, line.remark, f"{line.count:,}", *(line.errors.get(source, "") for source in SOURCES))
    out.print(shown)
