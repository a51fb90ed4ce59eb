"""Width against depth, as a table."""

from __future__ import annotations

from specmargin.app.dueling import DuelAnswer
from specmargin.cli import render
from specmargin.decisions.unverified import LABEL


def show(answer: DuelAnswer) -> None:
    out, duel = render.console(), answer.duel
    out.print(answer.verdict, style="bold")
    out.print()
    columns = [("one more", "left"), ("tok/s", "right"), ("distinct experts", "right"), ("step", "right")]
    shown = render.table("", columns)
    sides = (
        ("sequence (width)", duel.width),
        ("draft token (depth)", duel.depth),
        ("draft token, unverified *", duel.unverified),
    )
    for name, side in sides:
        experts = "–" if side.distinct_experts is None else f"{side.distinct_experts:.2f}"
        shown.add_row(name, f"{side.goodput_tokens_per_second:,.1f}", experts, render.seconds(side.step_seconds))
    out.print(shown)
    out.print(f"* {LABEL}", style="dim", markup=False)
    out.print()
    render.sources(out, {name: s for name, s in answer.pricer.sources.items() if name != "acceptance"})
