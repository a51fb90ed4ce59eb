"""What `plan --compare` shows: two sources of prices side by side, or the unverified bound."""

from __future__ import annotations

from rich.console import Console

from specmargin.cli import render, unverified_view
from specmargin.decisions.compare import ComparedRow, Comparison, Side
from specmargin.decisions.unverified import Unverified

Compared = Comparison | Unverified

_NEGLIGIBLE = 0.02  # regret, as a fraction of goodput


def show(out: Console, compared: Compared) -> None:
    if isinstance(compared, Unverified):
        unverified_view.show(out, compared)
    else:
        _show_prices(out, compared)


def _show_prices(out: Console, comparison: Comparison) -> None:
    prices, other = comparison.ours.prices.name, comparison.other.prices.name
    columns = [("batch", "right"), (prices, "right"), ("loss", "right"), (other, "right"), ("loss", "right")]
    out.print(f"draft and speed-up by {prices} and {other} prices", style="bold", markup=False)
    shown = render.table("", [*columns, (f"drafting adds: {prices} ({other})", "left")])
    for row in comparison.rows:
        shown.add_row(
            str(row.batch),
            f"{row.ours.depth} {row.ours.speedup:.2f}×",
            _regret(row.ours),
            f"{row.other.depth} {row.other.speedup:.2f}×",
            _regret(row.other),
            _largest_difference(row),
        )
    out.print(shown)
    out.print(_summary(comparison), style="dim", markup=False)
    out.print()


def _regret(side: Side) -> str:
    return "0" if side.regret < 0.005 else f"{side.regret:.0%}"


def _largest_difference(row: ComparedRow) -> str:
    """The component whose added time, relative to a plain step, differs most between the two prices."""
    if row.ours.depth == row.other.depth == 0:
        return "–"
    largest = row.differences[0]
    return f"{largest.component} {largest.added:+.0%} ({largest.other_added:+.0%})"


def _summary(comparison: Comparison) -> str:
    other = comparison.other.prices.name
    worst = max(comparison.rows, key=lambda row: row.ours.regret)
    if worst.ours.regret < _NEGLIGIBLE:
        return f"following {other} prices would cost under {_NEGLIGIBLE:.0%} of goodput at each of these batches"
    return (
        f"following {other} prices would cost up to {worst.ours.regret:.0%} of goodput (batch {worst.batch}); "
        "loss: fraction of goodput lost with the other column's draft"
    )
