"""Width against depth, as a table."""

from __future__ import annotations

from specmargin.app.dueling import DuelAnswer
from specmargin.cli import render


def show(answer: DuelAnswer) -> None:
    out = render.console()
    out.print(answer.verdict, style="bold")
    out.print()
    columns = [("one more", "left"), ("tok/s", "right"), ("distinct experts", "right"), ("step", "right")]
    shown = render.table("", columns)
    for name, side in (("sequence (width)", answer.duel.width), ("draft token (depth)", answer.duel.depth)):
        experts = "–" if side.distinct_experts is None else f"{side.distinct_experts:.2f}"
        shown.add_row(name, f"{side.goodput_tokens_per_second:,.1f}", experts, render.seconds(side.step_seconds))
    out.print(shown)
    out.print()
    render.sources(out, {name: s for name, s in answer.pricer.sources.items() if name != "acceptance"})
