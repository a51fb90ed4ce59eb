"""(batch, depth) step prices per second, compared with a plain Python loop over the same formulas.

Run: make bench
"""

from __future__ import annotations

import time

import numpy as np

from lab.terminal import run
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.drafters import find_drafter
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices.roofline import Roofline
from specmargin.routing.profile import UNIFORM
from specmargin.step import Step

BATCHES, DEPTHS = 4096, 64
ONE_BY_ONE = 300


def main() -> None:
    architecture, device = find_model("qwen3.6-35b-a3b"), find_device("h200")
    scenario = Scenario(
        architecture=architecture,
        device=device,
        prices=Roofline(device=device),
        routing=UNIFORM,
        drafter=find_drafter("mtp", architecture).drafter,
        survival=parse_acceptance("0.8"),
    )
    pricer = Pricer(scenario)
    batch, depth = np.arange(1.0, BATCHES + 1)[:, np.newaxis], np.arange(0.0, DEPTHS)
    grid = Step.uniform(batch=batch, depth=depth, context=1024)
    pricer.verify(grid)  # warm-up
    best = min(_timed(lambda: pricer.verify(grid).total_seconds) for _ in range(5))
    vectorised = BATCHES * DEPTHS / best

    started = time.perf_counter()
    for index in range(ONE_BY_ONE):
        pricer.verify(Step.uniform(batch=1 + index % 64, depth=index % 8, context=1024)).total_seconds.item()
    looped = ONE_BY_ONE / (time.perf_counter() - started)

    print(f"step prices from one NumPy call: {vectorised / 1e6:6.2f} million per second ({BATCHES} × {DEPTHS} grid)")
    print(f"one step per call:               {looped / 1e6:6.4f} million per second")
    print(f"ratio:                           {vectorised / looped:6.0f}")


def _timed(call) -> float:  # type: ignore[no-untyped-def]
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    run(main, __doc__)
