"""Figures over batch: the best depth is the best of those that fit, and nothing is drawn beyond the memory limit."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("altair")

from specmargin.decisions.plan import Plan
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.show.figures.curve import curve
from specmargin.show.figures.overlay import OVERLAYS, overlay_figure
from specmargin.show.figures.pareto import pareto_figure
from specmargin.show.figures.payoff import speedup_figure
from specmargin.verbs.plan.drafter_plan import drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest


@lru_cache(maxsize=16)
def plan(**changes: Any) -> Plan:
    request = {"model": "qwen3.6-35b-a3b", "gpu": "h200", "prices": "laws", "drafter": "mtp"} | changes
    return drafter_plans(PlanRequest(**request))[0].plan


def best_that_fits(pricer: Pricer, batch: int, graph_limit: int | None) -> float | None:
    """By hand: every depth from 0 to 8, one at a time."""
    grid = pricer.grid([batch], 8)
    speedups = [
        float(grid.goodput[0, depth] / grid.no_spec_goodput[0])
        for depth in range(9)
        if batch <= pricer.largest_batch(depth) and (not depth or not graph_limit or batch * (depth + 1) <= graph_limit)
    ]
    return max(speedups) if speedups else None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("context", [1024, 8192, 65_536])
def test_the_best_depth_is_the_best_of_those_that_fit(engine: str, context: int) -> None:
    pricer = plan(engine=engine, context=context).pricer
    graph_limit = pricer.scenario.engine_time.graph_limit
    drawn = speedup_figure(pricer, Setting.of(pricer.scenario, max_depth=8), batch=1)
    rows = {row["batch"]: row["speedup"] for row in drawn.tables["best"]}
    shown = [size for size in (1, 4, 16, 64, 128, 192, 256, 384, 512) if size <= pricer.no_spec_largest_batch]
    for size in shown:
        best = best_that_fits(pricer, size, graph_limit)
        assert (size in rows) == (best is not None)
        if best is not None:
            assert rows[size] == pytest.approx(best, rel=1e-3)


def test_thin_lines_and_the_pareto_front_end_where_memory_is_full() -> None:
    seen = plan(engine="sglang")
    pricer, limit = seen.pricer, seen.largest_batch
    assert 1 < limit < 512 <= seen.no_spec_largest_batch
    drawn = speedup_figure(pricer, seen.setting, batch=1)
    for row in drawn.tables["fixed"]:
        assert row["batch"] <= pricer.largest_batch(row["depth"])
    assert max(row["batch"] for row in drawn.tables["best"]) == limit
    (shaded,) = drawn.tables["limit"]
    assert (shaded["batch"], shaded["end"]) == (limit, 512)
    front = pareto_figure(pricer, seen.setting, batch=1)
    by_side = {row["side"]: row["batch"] for row in front.tables["lines"]}  # the last of each
    assert by_side == {"no speculation": 512, "with speculation": limit}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_names_of_thin_lines_do_not_touch(engine: str) -> None:
    seen = plan(engine=engine)
    drawn = speedup_figure(seen.pricer, seen.setting, batch=1)
    speedups = [row["speedup"] for row in drawn.tables["fixed"]]
    names = drawn.tables["fixed_labels"]
    depths = {row["depth"] for row in drawn.tables["fixed"]}
    assert {int(row["series"]) for row in names} >= {min(depths), max(depths)}
    for one, other in combinations(names, 2):
        apart = abs(one["speedup"] - other["speedup"]) / (max(speedups) - 1.0)
        assert apart > 0.03 or abs(math.log2(one["batch"] / other["batch"])) >= 0.5


def test_nothing_is_drawn_where_nothing_fits() -> None:
    pricer = plan(gpu="h100").pricer.with_context(262_144.0)
    assert pricer.largest_batch(1) == 0
    setting = Setting(max_depth=8)
    drawn = speedup_figure(pricer, setting, batch=1)
    assert drawn.tables["best"] == [] == drawn.tables["fixed"]
    assert "no sequence fits" in drawn.takeaway
    assert "no sequence fits" in pareto_figure(pricer, setting, batch=1).takeaway


# --- several scenarios in one chart ---


def test_an_overlay_has_every_side_with_the_numbers_of_its_plan() -> None:
    sides = [(kind, plan(drafter=kind)) for kind in ("mtp", "eagle", "ngram")]
    speedup, speed = (overlay_figure(name, sides, batch=24) for name in OVERLAYS)
    for label, one in sides:
        for row in one.rows:
            drawn = [r for r in speedup.tables["lines"] if (r["series"], r["batch"]) == (label, row.batch)]
            assert bool(drawn) == row.fits
            if row.fits:
                assert drawn[0]["value"] == pytest.approx(row.speedup, rel=1e-3)
                assert drawn[0]["depth"] == row.depth
        at = one.row_at(24)
        assert f"{label} {at.speedup:.2f}×" in speedup.takeaway
        assert f"{label} {1.0 / at.tpot_seconds:,.0f} tokens/s" in speed.takeaway
    assert {row["series"] for row in speedup.tables["labels"]} == {"mtp", "eagle", "ngram"}
    assert {row["slot"] for row in speed.tables["plain"]} == {"0"}  # one machine, one line without speculation


def test_an_overlay_says_which_side_does_not_fit() -> None:
    roomy, full = plan(), plan(gpu="h100")
    assert full.largest_batch < 64 < roomy.largest_batch
    speedup = overlay_figure("overlay-speedup", [("h200", roomy), ("h100", full)], batch=64)
    assert speedup.takeaway.endswith("h100: does not fit.")
    assert speedup.shape == (False, 2)  # the same drafter twice: colours tell the sides apart


def test_a_curve_reaches_the_memory_limit_exactly() -> None:
    shown = curve(plan().pricer, plan().setting)
    assert shown.batches[shown.shown[-1]] == shown.limit == plan().largest_batch
    assert np.isnan(shown.goodput[shown.shown[-1] + 1])
