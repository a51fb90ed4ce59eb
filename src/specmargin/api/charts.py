"""The Altair chart of each answer: the same for `--plot` and for `plot()` in Python."""

from __future__ import annotations

from specmargin.app.covering import Coverage
from specmargin.app.ledger import Ledger
from specmargin.app.plan_answer import PlanAnswer
from specmargin.figures.experts import coverage_figure
from specmargin.figures.figure import Chart
from specmargin.figures.payoff import plan_figure
from specmargin.figures.step import step_figure


def plan_chart(answer: PlanAnswer) -> Chart:
    return plan_figure(answer.best.plan, by_context=bool(answer.best.by_context)).chart()


def ledger_chart(ledger: Ledger) -> Chart:
    request = ledger.request
    return step_figure(
        ledger.pricer,
        batch=request.batch,
        depth=request.depth,
        components=ledger.components,
        drafting=ledger.drafting,
        verdict=ledger.verdict,
    ).chart()


def coverage_chart(coverage: Coverage) -> Chart:
    profile = coverage.profile
    return coverage_figure(coverage.architecture.name, profile.name, coverage.rows, profile.source).chart()
