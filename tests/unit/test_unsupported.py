"""Drafters that no engine runs yet: verdict, notes and JSON say so, and nobody is told to speculate."""

from __future__ import annotations

import pytest

from specmargin.formats import ENGINES
from specmargin.verbs.plan.drafter_plan import drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.plan.values import plan_values


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("drafter", ["ssd", "free"])
def test_a_drafter_without_an_engine_is_not_recommended(engine: str, drafter: str) -> None:
    request = PlanRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter=drafter, engine=engine)
    plan = plan_values(drafter_plans(request))
    assert plan["config_supported"] is False and plan["config"] == ""
    assert plan["verdict"].startswith("Not yet: ") and "Yes" not in plan["verdict"]
    (note,) = plan["config_notes"]
    assert note.endswith("there is nothing to configure yet") and "leave it out" not in note
    assert any(row["depth"] > 0 and row["speedup"] > 1.0 for row in plan["rows"])  # what it would give


def test_every_other_drafter_is_supported_whether_it_pays_or_not() -> None:
    for drafter, acceptance in (("mtp", None), ("ngram", None), ("mtp", "0.01")):
        request = PlanRequest(
            model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter=drafter, acceptance=acceptance
        )
        plan = plan_values(drafter_plans(request))
        assert plan["config_supported"] is True
        assert plan["verdict"].startswith(("Yes", "Mostly yes: ", "Only if ", "Uncertain: ", "No: "))
