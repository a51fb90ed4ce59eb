"""A fixed sample of models × GPUs × engines: table, verdict and parsed flags agree. `make test-matrix` checks all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from specmargin.catalog.lookup import device_names, model_names
from specmargin.formats import ENGINES
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.conftest import ROOT
from tests.matrix import check, faults, sample

_PARTS = 8


@pytest.mark.parametrize("part", range(_PARTS))
def test_table_verdict_and_flags_agree(part: int) -> None:
    for cell in sample()[part::_PARTS]:
        assert check(cell).faults == (), cell


def test_the_sample_has_everything_and_is_small() -> None:
    cells = sample()
    assert len(cells) <= 150
    assert {cell.engine for cell in cells} == set(ENGINES)
    assert {cell.gpu for cell in cells} == set(device_names())
    left_out = set(model_names()) - {cell.model for cell in cells}
    assert left_out == {"qwen3.8-2.4t-a95b"}  # in bf16 it needs more than eight of any GPU
    assert {cell.engine for cell in cells if cell.parallel == "dp-ep"} == {"vllm", "sglang", "trtllm"}


def test_results_are_kept_over_changes_that_no_plan_depends_on() -> None:
    command = [sys.executable, "-c", "from tests.matrix import plan_modules; print(*plan_modules())"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    packages = {name.split(".")[1] for name in modules if "." in name}
    assert {"architecture", "hardware", "prices", "routing", "acceptance", "decisions", "formats"} <= packages
    assert {"specmargin.catalog.module_bounds", "specmargin.verbs.plan.text"} <= modules
    assert not packages & {"live", "measure", "simulator", "policies"}
    assert {name for name in modules if name.startswith("specmargin.show")} <= {
        "specmargin.show",
        "specmargin.show.terminal",
    }


def test_the_check_can_fail() -> None:
    (result,) = drafter_plans(PlanRequest(model="qwen3.6-35b-a3b", gpu="h200", batch=(1, 64)))
    assert list(faults(result, "vllm")) == []
    for broken in _broken(result):
        assert list(faults(broken, "vllm"))


def _broken(result: DrafterPlan) -> list[DrafterPlan]:
    plan, row = result.plan, result.plan.rows[0]
    rows = [replace(row, depth=row.depth + 1), replace(row, speedup=1.1 * row.speedup), replace(row, hurdle=1.2)]
    flags = replace(result.config, text=result.config.text.replace(f", {row.depth}]", f", {row.depth - 1}]"))
    return [
        *(replace(result, plan=replace(plan, rows=(wrong, *plan.rows[1:]))) for wrong in rows),
        replace(result, plan=replace(plan, payoff=replace(plan.payoff, speedups=1.0 / plan.payoff.speedups))),
        replace(result, config=flags),
        replace(result, config=replace(result.config, text="")),
    ]
