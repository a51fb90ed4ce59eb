"""A day under the controller: the example's schedule, with hours of six minutes so that the test is quick.

With captured rounds and their confidences the controller beats every fixed depth and no speculation, over the day and
in every hour. Without the bank, rounds are drawn from the example's curves: then it commits the most, and that is all.
The whole day, hour by hour, is in docs/results/simulator.md and in `lab/speed/simulator.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from specmargin.simulator.results import Result
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import RateSchedule
from specmargin.verbs.simulate.request_schema import SimulateRequest, completed
from specmargin.verbs.simulate.serving import serving_of
from tests.conftest import ROOT
from tests.data import REFERENCE_BANK

SHORTER = 10.0
OTHERS = ("none", "fixed:1", "fixed:2", "fixed:3", "fixed:4")


def _day(bank: Path | None) -> Serving:
    path = ROOT / "examples" / "day.toml"
    serving = serving_of(*completed(SimulateRequest(model=str(path), bank=None if bank is None else str(bank))))
    arrivals = serving.workload.arrivals
    assert isinstance(arrivals, RateSchedule)
    assert arrivals.hours[-1] == 24.0
    short = replace(arrivals, hours=tuple(hour / SHORTER for hour in arrivals.hours))
    return replace(serving, workload=replace(serving.workload, arrivals=short))


def _median_tpot_by_hour(result: Result) -> list[float]:
    tpot = result.tpot_by_request
    several = np.isfinite(tpot)
    hour_by_request = (result.requests["arrival_seconds"] * SHORTER // 3600.0).astype(np.int64)
    return [float(np.median(tpot[several & (hour_by_request == hour)])) for hour in range(24)]


def test_the_controller_follows_the_day_and_beats_every_fixed_depth() -> None:
    day = _day(REFERENCE_BANK)
    controller = simulate(replace(day, policy="controller"))
    others = {name: simulate(replace(day, policy=name)) for name in OTHERS}
    assert controller.summary()["finished"] == controller.requests.size
    for name, result in others.items():
        assert controller.busy_goodput > result.busy_goodput, name
    best = np.min([_median_tpot_by_hour(result) for result in others.values()], axis=0)
    assert (np.array(_median_tpot_by_hour(controller)) <= best).all()
    _follows_the_load(controller)


def _follows_the_load(result: Result) -> None:
    """Deeper when it is quiet, shallower when it is busy."""
    rows = [row for row in result.timeline() if row["batch"] > 0]
    batch, depth = (np.array([row[name] for row in rows]) for name in ("batch", "depth"))
    quiet, busy = depth[batch < 3.0], depth[batch > 20.0]
    assert min(quiet.size, busy.size) > 20
    assert np.median(quiet) > 1.15 * np.median(busy)


def test_without_confidences_it_still_commits_the_most() -> None:
    day = _day(None)
    controller = simulate(replace(day, policy="controller")).busy_goodput
    for name in OTHERS:
        assert controller > simulate(replace(day, policy=name)).busy_goodput, name
