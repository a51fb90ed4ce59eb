"""A request as the command that repeats it: what it prints is read back as the same request."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from specmargin.answers.command_line import command_line
from specmargin.cli.main import run
from specmargin.modes import Parallel
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.verbs.plan.request_schema import PlanRequest


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "specmargin report m --gpu h200"),
        ({"gpus": 8, "parallel": Parallel.DP_EP}, "specmargin report m --gpu h200 --gpus 8 --parallel dp-ep"),
        ({"acceptance": "0.7,0.5", "batch": 64}, "specmargin report m --gpu h200 --acceptance 0.7,0.5 --batch 64"),
        ({"drafter": "eagle:my head"}, "specmargin report m --gpu h200 --drafter 'eagle:my head'"),
    ],
)
def test_only_what_differs_from_the_default_is_written(changes: dict[str, Any], expected: str) -> None:
    request = PageRequest(**{"model": "m", "gpu": "h200", **changes})
    assert sorted(shlex.split(command_line("report", request))) == sorted(shlex.split(expected))


def test_a_plan_is_planned_again_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    request = PlanRequest(
        model="qwen3-30b-a3b", gpu="h200", prices="laws", batch=(1, 2, 3, 4, 16), ignore_graph_limit=True, min_gain=0.05
    )
    run("plan", [*shlex.split(command_line("plan", request))[2:], "--json"])
    options = json.loads(capsys.readouterr().out)["options"]
    for name, value in request.model_dump(mode="json").items():
        if value is not None and name in options:
            assert options[name] == value, name
