"""Unverified decoding, the labelled upper bound: table and sentence."""

from __future__ import annotations

from rich.console import Console

from specmargin.cli import render
from specmargin.decisions.unverified import LABEL, Unverified, UnverifiedRound


def sentence(bound: UnverifiedRound) -> str:
    took, seconds = render.seconds(bound.unverified_seconds), render.seconds(bound.verification_seconds)
    return (
        f"unverified ({LABEL}): {bound.drafted + 1:g} tokens per sequence in {took}, {bound.speedup:.2f}× no "
        f"speculation; verification takes {seconds}, {bound.verification_share:.0%} of the round"
    )


def show(out: Console, unverified: Unverified) -> None:
    columns = [("batch", "right"), ("draft", "right"), ("plan", "right"), ("free verification", "right")]
    columns += [("unverified bound", "right"), ("verification", "right"), ("share of round", "right")]
    shown = render.table(f"Unverified decoding ({LABEL})", columns)
    for row in unverified.rows:
        bound = row.bound
        shown.add_row(
            str(row.batch),
            str(bound.depth) if row.planned_depth else f"0 (bound: {bound.depth})",
            f"{row.planned_speedup:.2f}×",
            f"{row.free_speedup:.2f}×",
            f"{bound.speedup:.2f}×",
            render.seconds(bound.verification_seconds),
            f"{bound.verification_share:.0%}",
        )
    out.print(shown)
    out.print(
        "bound: every draft token is committed for the price of drafting and one plain step. It leaves out that the "
        "target needs the KV of these tokens, which takes nearly as long as verifying them. Free verification: the "
        "same round, but only the tokens that the target accepts; verification: time of the verify step beyond a "
        "plain step",
        style="dim",
    )
    out.print()
