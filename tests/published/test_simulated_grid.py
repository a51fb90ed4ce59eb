"""The adaptive post's grid once more, this time served: a closed loop of 1 token in and 1024 out, sequence by sequence.

The closed form of the same numbers is in `test_drafter_grid.py`, with the assumptions. Here every request replays
rounds drawn from the published histogram, contexts grow from 1 to 1024, and goodput is counted while all decode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specmargin.decisions.pricer import Pricer
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.rounds import drawn_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import ClosedLoop, FixedLength, Workload
from tests.data import read_published
from tests.published.test_drafter_grid import CONCURRENCY, grid_scenario

TOLERANCE = 0.04
NEIGHBOUR = 0.005  # goodput that another depth may lose
# Here compute becomes the bottleneck one depth earlier than in the post: the post's choice loses 0.7% and 1.1% here,
# the simulated choice 1.0% and 1.2% there. The closed form with the same assumptions agrees with the simulation.
SHIFTED = {("dflash", 256), ("dflash", 512)}


def _serving(kind: str, histogram: list[float], deepest: int, users: int) -> Serving:
    pricer = Pricer(grid_scenario(kind, histogram))
    workload = Workload(
        arrivals=ClosedLoop(users=users, requests=max(users, 320)),
        prompt=FixedLength(tokens=1),
        output=FixedLength(tokens=1024),
    )
    most = max(CONCURRENCY)
    engine = EngineSettings(max_num_seqs=most, max_num_batched_tokens=most * (deepest + 1), kv_blocks=10_000_000)
    bank = drawn_rounds({"all": pricer.scenario.survival}, deepest)
    return Serving(pricer=pricer, workload=workload, bank=bank, engine=engine, max_depth=deepest)


def _goodput(serving: Serving, users: int) -> float:
    """Tokens per second in steps where all users decode and none prefills."""
    steps = simulate(serving, log_steps=True).step_columns()
    full = (steps["sequences"] == users) & (steps["prefill_tokens"] == 0)
    tokens = (steps["sequences"] + steps["accepted"])[full].sum()
    return float(tokens / steps["seconds"][full].sum())


@pytest.mark.parametrize(("kind", "deepest"), [("mtp", 8), ("dflash", 15)])
def test_served_goodput_and_depths_are_the_published_ones(kind: str, deepest: int) -> None:
    cells: dict[str, Any] = read_published("drafter-grid.json")["drafters"][kind]
    acceptance = read_published("acceptance-by-dataset.json")
    histogram = acceptance[kind]["datasets"]["speedbench/all"]["hist"]
    base = _serving(kind, histogram, deepest, 1)
    fixed = {row["gamma"]: row["goodput"] for row in cells["fixed"]}
    worst = 0.0
    for index, users in enumerate(CONCURRENCY):
        serving = replace(base, workload=_serving(kind, histogram, deepest, users).workload)
        printed = {"none": cells["nospec"]["goodput"][index]}
        printed |= {f"fixed:{depth}": fixed[depth][index] for depth in fixed if depth <= deepest}
        simulated = {name: _goodput(replace(serving, policy=name), users) for name in printed}
        for name, printed_goodput in printed.items():
            assert simulated[name] == pytest.approx(printed_goodput, rel=TOLERANCE), (users, name)
            worst = max(worst, abs(simulated[name] / printed_goodput - 1.0))
        adaptive = _goodput(replace(serving, policy="schedule"), users)
        assert adaptive == pytest.approx(cells["adaptive"]["goodput"][index], rel=TOLERANCE), users
        closed = int(base.pricer.grid([users], deepest).goodput[0].argmax())
        _check_depth(cells["adaptive"]["gstar"][index], simulated, closed, known_shift=(kind, users) in SHIFTED)
    assert worst > 0.001  # not a comparison with itself


def _check_depth(printed_depth: int, goodput: dict[str, float], closed: int, *, known_shift: bool) -> None:
    """The simulated depth with the most goodput is the published one, or a neighbour with nearly the same goodput."""
    best = max((name for name in goodput if name != "none"), key=lambda name: goodput[name])
    chosen = int(best.removeprefix("fixed:"))
    assert abs(chosen - printed_depth) <= 1
    if known_shift:
        assert chosen == closed != printed_depth  # from the prices, not from the engine
    else:
        assert goodput[f"fixed:{printed_depth}"] == pytest.approx(goodput[best], rel=NEIGHBOUR)
