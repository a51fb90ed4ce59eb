"""The Altair chart of each answer: the same for `--plot` and for `plot()` in Python."""

from __future__ import annotations

from specmargin.app.plan_answer import PlanAnswer
from specmargin.figures.figure import Chart
from specmargin.figures.payoff import plan_figure


def plan_chart(answer: PlanAnswer) -> Chart:
    return plan_figure(answer.best.plan, by_context=bool(answer.best.by_context)).chart()
