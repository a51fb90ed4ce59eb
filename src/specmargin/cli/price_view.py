"""The ledger of one step as a table."""

from __future__ import annotations

from specmargin.app.ledger import Ledger
from specmargin.cli import render, unverified_view
from specmargin.prices.model import ComponentPrice


def show(ledger: Ledger) -> None:
    out, request, scenario = render.console(), ledger.request, ledger.pricer.scenario
    verify, bound, warnings = ledger.verify_seconds, ledger.bound, ledger.warnings
    out.print(ledger.verdict, style="bold")
    out.print()
    columns = [("component", "left"), ("time", "right"), ("share", "right"), ("bytes", "right"), ("FLOPs", "right")]
    title = f"verify step on {scenario.device.title}, {scenario.prices.name} prices"
    shown = render.table(title, [*columns, ("one more position", "right"), ("bound by", "left")])
    for line, added in ledger.components:
        shown.add_row(*_cells(line, verify), render.seconds(added), str(line.resource()))
    out.print(shown)
    if ledger.drafting is not None:
        out.print()
        shown = render.table(f"drafting {request.depth} with {scenario.drafter.name}", [*columns, ("bound by", "left")])
        for line in ledger.drafting.components:
            shown.add_row(*_cells(line, ledger.draft_seconds), str(line.resource()))
        out.print(shown)
        out.print(
            f"draft {render.seconds(ledger.draft_seconds)}, verify {render.seconds(verify)}, "
            f"round {render.seconds(ledger.round_seconds)}"
        )
    if bound is not None:
        out.print(unverified_view.sentence(bound), style="dim", markup=False)
    out.print()
    render.warnings(out, warnings)
    if warnings:
        out.print()
    render.sources(out, {name: s for name, s in ledger.pricer.sources.items() if name != "acceptance"})


def _cells(line: ComponentPrice, total: float) -> list[str]:
    return [
        str(line.component),
        render.seconds(float(line.seconds)),
        f"{float(line.seconds) / total:.0%}",
        render.amount(float(line.bytes), "B"),
        render.amount(float(line.flops), ""),
    ]
