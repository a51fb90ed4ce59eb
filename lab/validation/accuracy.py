"""The table at the end of `make lab`: how far predictions are from measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lab.terminal import table

ACCURACY = Path(__file__).resolve().parents[1] / "results" / "accuracy.json"
SOURCES = ("tables", "laws", "datasheet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """One line: what was measured, how often, and the error of each price source, as text."""

    what: str  # what stands in parentheses after the error is named in parentheses here
    count: int
    errors: Mapping[str, str]  # by source


def median_and(middle: float, other: float) -> str:
    """The median, and in parentheses the worst error or the 90th percentile."""
    return f"{middle:.1%} ({other:.0%})"


def show_accuracy(out: Console, lines: Sequence[Accuracy]) -> None:
    title = "Accuracy: median absolute error, and in parentheses what the line names"
    shown = table(title, ("predicted",), ("number", *SOURCES))
    for line in lines:
        shown.add_row(line.what, f"{line.count:,}", *(line.errors.get(source, "") for source in SOURCES))
    out.print(shown)
