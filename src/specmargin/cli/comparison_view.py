"""Two sources of prices side by side."""

from __future__ import annotations

from rich.console import Console

from specmargin.cli import render
from specmargin.decisions.compare import ComparedRow, Comparison, Side

_NAMED = 2  # components per row
_NEGLIGIBLE = 0.02  # regret, as a fraction of goodput


def show(out: Console, comparison: Comparison) -> None:
    prices, other = comparison.ours.prices.name, comparison.other.prices.name
    columns = [
        ("batch", "right"),
        (prices, "right"),
        (other, "right"),
        (f"loss of {other} draft", "right"),
        (f"loss of {prices} draft", "right"),
        (f"time that the {prices} draft adds to a plain step: {prices} ({other})", "left"),
    ]
    shown = render.table(f"{prices} and {other} prices: draft and speed-up", columns)
    for row in comparison.rows:
        shown.add_row(
            str(row.batch),
            f"{row.ours.depth} {row.ours.speedup:.2f}×",
            f"{row.other.depth} {row.other.speedup:.2f}×",
            _regret(row.ours),
            _regret(row.other),
            _largest_differences(row),
        )
    out.print(shown)
    out.print(_summary(comparison), style="dim", markup=False)
    out.print()


def _regret(side: Side) -> str:
    return "0" if side.regret < 0.005 else f"{side.regret:.0%}"


def _largest_differences(row: ComparedRow) -> str:
    """The components whose added time differs most between the two prices."""
    if row.ours.depth == row.other.depth == 0:
        return "–"
    parts = [f"{d.component} {d.added:+.0%} ({d.other_added:+.0%})" for d in row.differences[:_NAMED]]
    return ", ".join(parts)


def _summary(comparison: Comparison) -> str:
    other = comparison.other.prices.name
    worst = max(comparison.rows, key=lambda row: row.ours.regret)
    if worst.ours.regret < _NEGLIGIBLE:
        return f"following {other} prices would cost under {_NEGLIGIBLE:.0%} of goodput at each of these batches"
    return (
        f"following {other} prices would cost up to {worst.ours.regret:.0%} of goodput (batch {worst.batch}); "
        "loss: fraction of goodput, priced by the other source"
    )
