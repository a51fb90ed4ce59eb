"""Width against depth: table and JSON."""

from __future__ import annotations

from typing import Any

from specmargin.cli import render
from specmargin.decisions.duel import Duel, Side
from specmargin.decisions.pricer import Pricer


def show(pricer: Pricer, result: Duel, *, json: bool) -> None:
    (_emit_json if json else _emit_table)(pricer, result)


def _side(side: Side) -> dict[str, Any]:
    return {
        "goodput_tokens_per_second": side.goodput_tokens_per_second,
        "distinct_experts": side.distinct_experts,
        "step_seconds": side.step_seconds,
    }


def _sources(pricer: Pricer) -> dict[str, Any]:
    return {name: source for name, source in pricer.sources.items() if name != "acceptance"}


def _emit_json(pricer: Pricer, result: Duel) -> None:
    scenario = pricer.scenario
    render.json_out(
        {
            "schema": "specmargin.duel/1",
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "batch": result.batch,
            "alpha": result.alpha,
            "context": scenario.context,
            "routing": scenario.routing.name if scenario.architecture.is_moe else None,
            "width": _side(result.width),
            "depth": _side(result.depth),
            "winner": result.winner,
            "turning_alpha": result.turning_alpha,
            "sources": {name: str(source) for name, source in _sources(pricer).items()},
        }
    )


def _emit_table(pricer: Pricer, result: Duel) -> None:
    out, scenario = render.console(), pricer.scenario
    turning = result.turning_alpha
    threshold = (
        f"depth wins above an acceptance of {turning:.3f}" if turning <= 1 else "depth does not win at any acceptance"
    )
    routing = f", {scenario.routing.name} routing" if scenario.architecture.is_moe else ""
    out.print(
        f"{result.winner.capitalize()} wins: {scenario.architecture.name} on {scenario.device.name}, batch "
        f"{result.batch}, acceptance {result.alpha:g}{routing}; {threshold}.",
        style="bold",
    )
    out.print()
    columns = [("one more", "left"), ("tok/s", "right"), ("distinct experts", "right"), ("step", "right")]
    shown = render.table("", columns)
    for name, side in (("sequence (width)", result.width), ("draft token (depth)", result.depth)):
        experts = "–" if side.distinct_experts is None else f"{side.distinct_experts:.2f}"
        shown.add_row(name, f"{side.goodput_tokens_per_second:,.1f}", experts, render.seconds(side.step_seconds))
    out.print(shown)
    out.print()
    render.sources(out, _sources(pricer))
