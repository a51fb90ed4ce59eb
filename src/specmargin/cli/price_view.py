"""The ledger of one step: table and JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from specmargin.cli import render, unverified_view
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component, rounded_seconds
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.unverified import UnverifiedRound, unverified_seconds
from specmargin.decisions.warnings import price_warnings
from specmargin.prices.drafters import round_seconds
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.step import Step


def show(pricer: Pricer, batch: int, depth: int, *, json: bool) -> None:
    now, more = pricer.marginal(Step.uniform(batch=batch, depth=depth, context=pricer.scenario.context))
    drafting = pricer.draft_ledger(batch, depth)
    (_emit_json if json else _emit_table)(pricer, batch, depth, now, more, drafting)


def _line(line: ComponentPrice, marginal: float | None) -> dict[str, Any]:
    return {
        "name": str(line.component),
        "seconds": float(line.seconds),
        "bytes": float(line.bytes),
        "flops": float(line.flops),
        "marginal_seconds": marginal,
        "bound_by": str(line.resource()),
        "source": str(line.source),
    }


def _totals(scenario: Scenario, now: StepPrice, drafting: StepPrice | None) -> tuple[float, float, float]:
    verify = now.total_seconds
    draft = drafting.total_seconds if drafting is not None else verify * 0.0
    return float(verify), float(draft), float(round_seconds(scenario.drafter, verify, draft))


def _bound(
    pricer: Pricer, batch: int, depth: int, now: StepPrice, drafting: StepPrice | None
) -> UnverifiedRound | None:
    """The round without verification; None without drafts."""
    if depth == 0:
        return None
    scenario = pricer.scenario
    _, draft, round_total = _totals(scenario, now, drafting)
    plain = pricer.verify(Step.uniform(batch=batch, depth=0, context=scenario.context)).total_seconds
    return UnverifiedRound(
        depth=depth,
        drafted=float(depth),
        plain_seconds=float(plain),
        round_seconds=round_total,
        unverified_seconds=float(unverified_seconds(scenario.drafter, plain, np.asarray(draft))),
    )


def _emit_json(
    pricer: Pricer, batch: int, depth: int, now: StepPrice, more: StepPrice, drafting: StepPrice | None
) -> None:
    scenario = pricer.scenario
    verify, draft, round_total = _totals(scenario, now, drafting)
    bound = _bound(pricer, batch, depth, now, drafting)
    distinct = pricer.distinct_experts(Step.uniform(batch=batch, depth=depth, context=scenario.context))
    render.json_out(
        {
            "schema": "specmargin.price/1",
            "model": scenario.architecture.name,
            "gpu": scenario.device.name,
            "gpus": scenario.layout.gpus,
            "parallel": str(scenario.layout.parallel),
            "batch": batch,
            "depth": depth,
            "context": scenario.context,
            "distinct_experts": None if distinct is None else float(distinct),
            "components": [
                _line(line, rounded_seconds(float(added)))
                for line, added in marginal_by_component(now, more, positions=scenario.layout.sequence_ranks)
            ],
            "total_seconds": verify,
            "draft": {
                "drafter": scenario.drafter.name,
                "components": [] if drafting is None else [_line(line, None) for line in drafting.components],
                "total_seconds": draft,
            },
            "round_seconds": round_total,
            "unverified": None if bound is None else unverified_view.round_payload(bound),
            "prices": scenario.prices.name,
            "warnings": list(price_warnings(pricer, batch=batch, depth=depth)),
            "sources": {name: str(source) for name, source in pricer.sources.items() if name != "acceptance"},
        }
    )


def _emit_table(
    pricer: Pricer, batch: int, depth: int, now: StepPrice, more: StepPrice, drafting: StepPrice | None
) -> None:
    scenario = pricer.scenario
    out = render.console()
    verify, draft, round_total = _totals(scenario, now, drafting)
    positions = batch * (depth + 1)
    marginal = (float(more.total_seconds) - verify) / scenario.layout.sequence_ranks
    out.print(
        f"A step of {batch} sequences × {depth + 1} positions takes {render.seconds(verify)}; one more position adds "
        f"{render.seconds(marginal)}, {marginal / (verify / positions):.0%} of the average position.",
        style="bold",
    )
    out.print()
    columns = [("component", "left"), ("time", "right"), ("share", "right"), ("bytes", "right"), ("FLOPs", "right")]
    title = f"verify step on {scenario.device.title}, {scenario.prices.name} prices"
    shown = render.table(title, [*columns, ("one more position", "right"), ("bound by", "left")])
    for line, added in marginal_by_component(now, more, positions=scenario.layout.sequence_ranks):
        shown.add_row(*_cells(line, verify), render.seconds(rounded_seconds(float(added))), str(line.resource()))
    out.print(shown)
    if drafting is not None:
        out.print()
        shown = render.table(f"drafting {depth} with {scenario.drafter.name}", [*columns, ("bound by", "left")])
        for line in drafting.components:
            shown.add_row(*_cells(line, draft), str(line.resource()))
        out.print(shown)
        out.print(
            f"draft {render.seconds(draft)}, verify {render.seconds(verify)}, round {render.seconds(round_total)}"
        )
    bound = _bound(pricer, batch, depth, now, drafting)
    if bound is not None:
        out.print(unverified_view.sentence(bound), style="dim", markup=False)
    out.print()
    warnings = price_warnings(pricer, batch=batch, depth=depth)
    render.warnings(out, warnings)
    if warnings:
        out.print()
    render.sources(out, {name: s for name, s in pricer.sources.items() if name != "acceptance"})


def _cells(line: ComponentPrice, total: float) -> list[str]:
    return [
        str(line.component),
        render.seconds(float(line.seconds)),
        f"{float(line.seconds) / total:.0%}",
        render.amount(float(line.bytes), "B"),
        render.amount(float(line.flops), ""),
    ]
