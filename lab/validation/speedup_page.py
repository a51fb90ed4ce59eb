"""Write the tables of docs/results/speedups.md, between its two marks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab import ROOT
from lab.validation.marked import replace_between
from lab.validation.speedup_sets import (
    ONE_BOX_SET,
    RowSet,
    calls_text,
    group_cells,
    group_headings,
    loss_cells,
    loss_headings,
)
from specmargin.catalog.accuracy import price_errors
from specmargin.validation.calls import GroupLine
from specmargin.validation.speedups import SpeedupLine, source_median, speedup_lines

PAGE = ROOT / "docs" / "results" / "speedups.md"
_KINDS = (
    ("measured rounds (H200)", "tables", "h200"),
    ("measured and scaled kernels", "tables", "b200"),
    ("datasheet", "datasheet", "b200"),
)
_ENOUGH = 10
BEGIN = "<!-- begin: python -m lab.validation.speedups --write -->"


def write_page(sets: Sequence[RowSet], page: Path = PAGE) -> Path:
    whole = [rows for rows in sets if " and " in rows.name or rows.name == ONE_BOX_SET] or sets
    text = "\n".join([*_introduction(), *(line for rows in sets for line in _section(rows, whole=rows in whole))])
    return replace_between(page, BEGIN, text)


def _introduction() -> Iterator[str]:
    """The errors of prices that ranges are made of."""
    errors = [(name, price_errors(prices, gpu)) for name, prices, gpu in _KINDS]
    shown = ", ".join(f"{name} {math.exp(each.low):.2f} to {math.exp(each.high):.2f}" for name, each in errors)
    yield f"Errors of prices in the ranges of `plan`, as factors on a speed-up: {shown}."
    yield ""
    yield "`*`: behind the datasheet, with ten rows or more. Called: `uncertain` is a gain whose range holds a loss."
    yield ""


def _section(rows: RowSet, *, whole: bool) -> Iterator[str]:
    """`whole`: with every loss, and groups other than sources if they have ten rows."""
    yield from (f"### {_title(rows)}", "")
    lines = [line for line in speedup_lines(rows.report) if line.group == "all rows"]
    yield from _table(("rule", "median error", "bias", "90th percentile", "rank correlation"), map(_rule_cells, lines))
    yield f"Median of the sources' median errors {source_median(rows.report):.1%}. " + " ".join(
        f"{text[0].upper()}{text[1:]}." for text in calls_text(rows)
    )
    yield ""
    groups = [line for line in rows.judged.groups if _is_shown(line, whole=whole)]
    yield from _table([*group_headings()[0], *group_headings()[1]], map(group_cells, groups))
    if whole:
        yield from ("Rows where speculation lost, or was predicted to:", "")
        losses = (loss_cells(row, call) for row, call in rows.judged.losses)
        yield from _table([*loss_headings()[0], *loss_headings()[1]], losses)
        for reason, ids in rows.report.refused_by_reason.items():
            yield from (f"Not predicted: {', '.join(ids)} ({reason}).", "")


def _is_shown(line: GroupLine, *, whole: bool) -> bool:
    return line.group.startswith("source ") != whole and (not whole or line.rows >= _ENOUGH)


def _title(rows: RowSet) -> str:
    sources = len({row.point.source for row in rows.report.predicted})
    return f"{rows.name[0].upper()}{rows.name[1:]}: {len(rows.report.predicted)} rows of {sources} sources"


def _rule_cells(line: SpeedupLine) -> list[str]:
    rank = "" if line.rank_correlation is None else f"{line.rank_correlation:.2f}"
    return [line.rule, f"{line.median_error:.1%}", f"{line.bias:+.1%}", f"{line.p90_error:.0%}", rank]


def _table(headings: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for cells in rows:
        joined = " | ".join(cells).replace("* ", r"\* ")
        yield f"| {joined} |"
    yield ""
