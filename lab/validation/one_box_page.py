"""Write the tables of docs/results/one-box.md: the development rows, and once the rows that were held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lab import ROOT
from lab.validation.marked import replace_between
from lab.validation.one_box import (
    SPEED_HEADINGS,
    SPEEDUP_HEADINGS,
    OneBox,
    bounds,
    popular_table,
    refused_by_reason,
    speed_table,
    speedup_table,
)

PAGE = ROOT / "docs" / "results" / "one-box.md"
BEGIN = "<!-- begin: python -m lab.validation.one_box --write -->"
BEGIN_HELD_OUT = "<!-- begin: python -m lab.validation.one_box --held-out --write -->"
POPULAR_HEADINGS = ("model", "quantisation", "device", "engine", "context", "published", "predicted", "error")


def write_tables(rows: OneBox, *, held: bool, page: Path = PAGE) -> Path:
    return replace_between(page, BEGIN_HELD_OUT if held else BEGIN, "\n".join(tables(rows)))


def tables(rows: OneBox) -> Iterator[str]:
    yield f"{len(rows.speedups)} speed-ups and {len(rows.speeds)} speeds of {rows.sources} sources."
    yield ""
    for text in bounds(rows):
        yield f"- {text[0].upper()}{text[1:]}."
    yield ""
    yield from ("Tokens per second, median error (bias), plain and with speculation:", "")
    yield from _table(("group", *SPEED_HEADINGS), speed_table(rows))
    yield from ("Speed-ups with the measured accept length, median error (bias):", "")
    yield from _table(("group", *SPEEDUP_HEADINGS), speedup_table(rows))
    popular = popular_table(rows)
    if popular:
        yield from ("Popular models, plain decoding:", "")
        yield from _table(POPULAR_HEADINGS, popular)
    for reason, ids in refused_by_reason(rows).items():
        yield from (f"Not predicted: {', '.join(ids)} ({reason}).", "")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
    yield ""
