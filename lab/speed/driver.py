"""Time per step of the live driver (drafts, both decisions, outcome), compared with a plain schedule.

python -m lab.speed.driver
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.live.policies import small_policy
from specmargin.live.building import build_driver
from specmargin.live.capture import Identity
from specmargin.live.driver import Driver
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import read_settings

DEPTH = 5
STEPS = 2000


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        policy = Path(scratch) / "bench.policy.json"
        policy.write_text(small_policy(DEPTH))
        for batch in (1, 8, 32):
            adaptive = _microseconds(_driver({"mode": "adaptive", "policy": str(policy)}), batch)
            schedule = _microseconds(_driver({"mode": "schedule", "schedule": [[1, 32, 2]]}), batch)
            print(
                f"{batch:3d} sequences: adaptive {adaptive:5.0f} µs per step, schedule {schedule:5.0f}, "
                f"ratio {adaptive / schedule:.1f}"
            )


def _driver(settings: dict[str, Any]) -> Driver:
    return build_driver(
        read_settings(settings, "benchmark"),
        max_depth=DEPTH,
        ragged=True,
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
    drafted, seconds_by_step = [2] * batch, []
    for _ in range(STEPS):
        confidence = generator.random((batch, max(drafted[0], 1))).astype(np.float32)
        started = time.perf_counter()
        driver.drafts(names, confidence)
        verified = driver.verify(names, drafted) or drafted
        depth = driver.draft_depth(names)
        step = StepDone.of(
            request_ids=names,
            verified=np.array(verified, dtype=np.int64),
            accepted=np.minimum(verified, 1),
            contexts=[200] * batch,
            prompt_tokens=0,
            seconds=0.008 + 0.0003 * batch,
        )
        driver.done(step, depth or 0)
        seconds_by_step.append(time.perf_counter() - started)
        drafted = [depth or 0] * batch
    # The driver learns every few steps: median of means over so many steps.
    return 1e6 * float(np.median(np.reshape(seconds_by_step, (-1, driver.learn_every)).mean(axis=1)))


if __name__ == "__main__":
    main()
