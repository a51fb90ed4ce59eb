"""What `plan --compare` adds: two sources of prices side by side, another acceptance, or the unverified bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, assert_never

from specmargin.answers.blocks import GAP, Block, Table, bold, dim, left, right
from specmargin.decisions.compare import ComparedRow, Comparison, Side
from specmargin.decisions.unverified import Unverified, UnverifiedRow, unverified
from specmargin.verbs.plan.drafter_plan import DrafterPlan, compare_prices
from specmargin.verbs.plan.other_acceptance import (
    OtherAcceptance,
    compare_acceptance,
    other_acceptance_blocks,
    other_acceptance_values,
)
from specmargin.words import UNVERIFIED, duration

_UNVERIFIED = "unverified"
_NEGLIGIBLE = 0.02  # regret, as a fraction of goodput


Compared = Comparison | Unverified | OtherAcceptance


def compare(best: DrafterPlan, what: str) -> Compared:
    """The plan of the recommended drafter beside what `--compare` names."""
    kind, colon, detail = what.partition(":")
    if kind == "acceptance" and colon:
        return compare_acceptance(best, detail)
    return unverified(best.plan) if what == _UNVERIFIED else compare_prices(best, best.request, what)


def compared_blocks(compared: Compared) -> Iterator[Block]:
    match compared:
        case Unverified():
            yield from _unverified(compared)
        case OtherAcceptance():
            yield from other_acceptance_blocks(compared)
        case Comparison():
            yield from _prices(compared)
        case _:
            assert_never(compared)
    yield GAP


def _prices(comparison: Comparison) -> Iterator[Block]:
    prices, other = comparison.ours.prices.name, comparison.other.prices.name
    yield bold(f"draft and speed-up by {prices} and {other} prices")
    yield Table(
        columns=[*right("batch", prices, "loss", other, "loss"), *left(f"drafting adds: {prices} ({other})")],
        rows=[
            [
                str(row.batch),
                f"{row.ours.depth} {row.ours.speedup:.2f}×",
                _regret(row.ours),
                f"{row.other.depth} {row.other.speedup:.2f}×",
                _regret(row.other),
                _largest_difference(row),
            ]
            for row in comparison.rows
        ],
    )
    yield dim(_summary(comparison))


def _regret(side: Side) -> str:
    return "0" if side.regret < 0.005 else f"{side.regret:.0%}"


def _largest_difference(row: ComparedRow) -> str:
    """The component whose added time, relative to a plain step, differs most between the two prices."""
    if row.ours.depth == row.other.depth == 0:
        return "–"
    largest = row.differences[0]
    return f"{largest.name} {largest.added:+.0%} ({largest.other_added:+.0%})"


def _summary(comparison: Comparison) -> str:
    other = comparison.other.prices.name
    worst = max(comparison.rows, key=lambda row: row.ours.regret)
    if worst.ours.regret < _NEGLIGIBLE:
        return f"following {other} prices would cost under {_NEGLIGIBLE:.0%} of goodput at each of these batches"
    return (
        f"following {other} prices would cost up to {worst.ours.regret:.0%} of goodput (batch {worst.batch}); "
        "loss: fraction of goodput lost with the other column's draft"
    )


def _unverified(bound: Unverified) -> Iterator[Block]:
    yield Table(
        title=f"Unverified decoding ({UNVERIFIED})",
        columns=right(
            "batch", "draft", "plan", "free verification", "unverified bound", "verification", "share of round"
        ),
        rows=[_unverified_cells(row) for row in bound.rows],
    )
    yield dim(
        "bound: every draft token is committed for the price of drafting and one plain step. It leaves out that the "
        "target needs the KV of these tokens, which takes nearly as long as verifying them. Free verification: the "
        "same round, but only the tokens that the target accepts; verification: time of the verify step beyond a "
        "plain step"
    )


def _unverified_cells(row: UnverifiedRow) -> list[str]:
    bound = row.bound
    return [
        str(row.batch),
        str(bound.depth) if row.planned_depth else f"0 (bound: {bound.depth})",
        f"{row.planned_speedup:.2f}×",
        f"{row.free_speedup:.2f}×",
        f"{bound.speedup:.2f}×",
        duration(bound.verification_seconds),
        f"{bound.verification_share:.0%}",
    ]


# --- as JSON ---


def compared_values(compared: Compared) -> dict[str, Any]:
    """The key that `compare` adds."""
    if isinstance(compared, OtherAcceptance):
        return other_acceptance_values(compared)
    if isinstance(compared, Unverified):
        return {"unverified": {"label": UNVERIFIED, "rows": [row.values() for row in compared.rows]}}
    return {"comparison": _comparison_json(compared)}


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "prices": comparison.ours.prices.name,
        "other_prices": comparison.other.prices.name,
        "rows": [asdict(row) | {"ours": _side(row.ours), "other": _side(row.other)} for row in comparison.rows],
    }


def _side(side: Side) -> dict[str, Any]:
    return asdict(side) | {"regret": side.regret}
