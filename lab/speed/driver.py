"""Time per step of the live driver (decision, order, outcome), with and without a gate in the workers, compared with a
plain schedule.

python -m lab.speed.driver
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.live.policies import small_policy
from lab.terminal import run
from specmargin.live.capture import Identity
from specmargin.live.driver import Driver
from specmargin.live.driver_builder import build_driver
from specmargin.live.gate_messages import Returned, expectation
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import read_settings

DEPTH = 5
STEPS = 2000


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        policy = Path(scratch) / "bench.policy.json"
        policy.write_text(small_policy(DEPTH))
        for batch in (1, 8, 32):
            adaptive = {"mode": "adaptive", "policy": str(policy)}
            gated, whole = (_microseconds(_driver(adaptive, device_gate=gate), batch) for gate in (True, False))
            schedule = _microseconds(_driver({"mode": "schedule", "schedule": [[1, 32, 2]]}), batch)
            print(
                f"{batch:3d} sequences: adaptive {whole:5.0f} µs per step, gated {gated:5.0f}, "
                f"schedule {schedule:5.0f}, "
                f"ratios {whole / schedule:.1f} and {gated / schedule:.1f}"
            )


def _driver(settings: dict[str, Any], *, device_gate: bool = False) -> Driver:
    return build_driver(
        read_settings(settings, "benchmark"),
        max_depth=DEPTH,
        device_gate=device_gate,
        candidates=None,
        identity=Identity(model="", speculator="", config=""),
        engine="0",
        log=print,
    )


def _microseconds(driver: Driver, batch: int) -> float:
    generator = np.random.default_rng(0)
    names = [f"request {i}" for i in range(batch)]
    for name in names:
        driver.add(name, None)
    drafted, seconds_by_step = np.full(batch, 2), []
    for _ in range(STEPS):
        back = Returned(drafted.astype(np.int32), generator.random((batch, DEPTH)).astype(np.float32))
        started = time.perf_counter()
        depth = driver.draft_depth(names) or 0
        step = StepDone.of(drafted, np.minimum(drafted, 1), prompt_tokens=0, seconds=0.008 + 0.0003 * batch)
        if driver.device_gate:
            driver.gate_order(batch, depth)
            step.expected = expectation(back, drafted, drafted, DEPTH)
        driver.done(step, depth)
        seconds_by_step.append(time.perf_counter() - started)
        drafted = np.full(batch, depth)
    # The driver learns every few steps: median of means over so many steps.
    return 1e6 * float(np.median(np.reshape(seconds_by_step, (-1, driver.learn_every)).mean(axis=1)))


if __name__ == "__main__":
    run(main, __doc__)
