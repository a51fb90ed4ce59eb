"""Tables of judged cells, in the terminal and in docs/results/served.md, and their figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console

from lab import ROOT
from lab.terminal import note, table
from lab.validation.cells.judged import DEPTHS, Judged, median_errors, rankings
from lab.validation.cells.observed import LATENCIES
from lab.validation.marked import replace_between
from specmargin.show.figures.figure import Figure, rounded
from specmargin.show.figures.validation import LEGEND, errors, scatter_figure
from specmargin.simulator.results import Slo

TABLES = (LATENCIES, ("tok/s", "goodput", "waiting", "decoding", DEPTHS))
PAGE = ROOT / "docs" / "results" / "served.md"


def show(out: Console, cells: Sequence[Judged], slo: Slo) -> None:
    for prices in cells[0].predicted:
        for headings in TABLES:
            shown = table(f"Cells measured, and errors with prices: {prices}", ["cell"], headings)
            for row in rows(cells, prices, headings):
                shown.add_row(*row)
            out.print(shown)
        note(out, ranked(cells, prices))
    note(out, explained(slo))


def rows(cells: Sequence[Judged], prices: str, headings: Sequence[str]) -> Iterator[list[str]]:
    for cell in cells:
        yield [cell.cell.name, *(_measured_and_error(cell, prices, name) for name in headings)]
    medians = median_errors(cells, prices)
    yield ["median absolute error", *("" if isnan(medians[name]) else f"{medians[name]:.0%}" for name in headings)]


def _measured_and_error(cell: Judged, prices: str, name: str) -> str:
    if name == DEPTHS:
        return f"{cell.misplaced(prices):.0%}"
    measured, error = cell.measured[name], cell.error(prices, name)
    shown = f"{measured:,.0f}" if measured >= 100.0 else f"{measured:.1f}"
    return shown if isnan(error) else f"{shown} {error:+.0%}"


def ranked(cells: Sequence[Judged], prices: str) -> str:
    return f"Contestants in the right order, where they differ by more than 3%: {_orders(cells, prices)}."


def _orders(cells: Sequence[Judged], prices: str) -> str:
    return "; ".join(map(str, rankings(cells, prices)))


def explained(slo: Slo) -> str:
    limits = [
        f"{name} ≤ {1e3 * limit:g} ms"
        for name, limit in (("TTFT", slo.ttft_seconds), ("TPOT", slo.tpot_seconds))
        if limit is not None
    ]
    return (
        "Measured, then predicted over measured less one; times in ms. waiting and decoding: mean requests; goodput: "
        f"output tokens of requests that complete in the window with {' and '.join(limits) or 'any latency'}, per "
        "second, those before the window included; depths: share of the busy time "
        "that is predicted in another draft depth."
    )


# --- page ---


def write_page(cells: Sequence[Judged], slo: Slo, name: str, page: Path = PAGE) -> None:
    """Between the marks of `name`."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    replace_between(page, begin, "\n".join([*_sections(cells, slo), ""]), end)


def _sections(cells: Sequence[Judged], slo: Slo) -> Iterator[str]:
    for prices in cells[0].predicted:
        yield from (f"Prices: {prices}.", "")
        for headings in TABLES:
            yield f"| cell | {' | '.join(headings)} |"
            yield f"|{' --- |' * (len(headings) + 1)}"
            yield from (f"| {' | '.join(row)} |" for row in rows(cells, prices, headings))
            yield ""
        yield from (ranked(cells, prices), "")
    yield explained(slo)


# --- figure ---

DRAWN = ("TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")
_TICKS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)


def figure(cells: Sequence[Judged], prices: str, source: str) -> Figure:
    """Latencies of every cell, predicted against measured."""
    rows: list[dict[str, Any]] = [
        {
            "cell": cell.cell.name,
            "latency": name,
            "measured": rounded(cell.measured[name]),
            "predicted": rounded(cell.predicted[prices].figures[name]),
        }
        for cell in cells
        for name in DRAWN
        if cell.measured[name] > 0.0 and cell.predicted[prices].figures[name] > 0.0
    ]
    return scatter_figure(
        rows,
        name="cells",
        title="Servers under load: latencies, simulated against measured",
        takeaway=f"{len(cells)} cells, prices: {prices}. Median error: {errors(rows, 'latency', digits=0)}. {LEGEND}",
        source=source,
        by="latency",
        unit="ms",
        ticks=_TICKS,
    )
