"""What the plug-in adds to a whole step: a stub engine with it and without it, at the same depth, in turns.

python -m lab.speed.overhead

The last column compares it with a round of Qwen3-30B-A3B on an H200 (vLLM 0.32, `lab/data/measurements`).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.live.stub_engine import ModelRunnerOutput, Request, Scheduler, configuration, specmargin_scheduler
from lab.terminal import run
from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import policy_text
from specmargin.policies.tables import study_table

DEPTH = 3
STEPS, TURNS = 8, 600  # steps per turn, as many as the driver learns from at once; turns of each
ROUND_SECONDS = {1: 5.1e-3, 16: 15.8e-3, 64: 18.7e-3, 256: 26.0e-3}  # measured, depth 1


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, specmargin_scheduler() as ours:
        policy = Path(scratch) / "bench.policy.json"
        policy.write_text(_policy())
        settings = {"mode": "adaptive", "policy": str(policy), "log_seconds": 1e9}
        for batch, round_seconds in ROUND_SECONDS.items():
            with_it, without = Engine(ours, batch, settings), Engine(Scheduler, batch, settings)
            before, steps = with_it.own_seconds, with_it.steps
            turns = [(with_it.turn(), without.turn()) for _ in range(TURNS)]
            # Medians: other processes interrupt single turns for longer than all the others take.
            added = statistics.median(one - other for one, other in turns)
            base = statistics.median(other for _, other in turns)
            shown = (with_it.own_seconds - before) / (with_it.steps - steps)
            print(
                f"{batch:3d} sequences: {added * 1e6:6.1f} µs per step added to {base * 1e6:6.1f} of the stub "
                f"(ratio {(base + added) / base:.2f}), {shown * 1e6:6.1f} by its own clock; "
                f"{added / round_seconds:.2%} of a round of {round_seconds * 1e3:.1f} ms"
            )


class Engine:
    """Steps of one engine. Both engines draft the depth that the controller chose last, so that they do the same."""

    def __init__(self, kind: type[Any], batch: int, settings: dict[str, Any]) -> None:
        self.scheduler = kind(vllm_config=configuration(settings), depth=DEPTH)
        self.steps = 0
        for i in range(batch):
            self.scheduler.add_request(Request(f"request-{i}"))
        generator = np.random.default_rng(0)
        self._accepted = [generator.integers(0, DEPTH + 1, batch).tolist() for _ in range(16)]
        for _ in range(40):
            self.turn()  # past its first probes

    @property
    def own_seconds(self) -> float:
        """By the plug-in's own clock, interruptions included."""
        return float(self.scheduler._driver.guard.decision_seconds)

    def turn(self) -> float:
        """Mean seconds of a step, without the time of the model's output."""
        seconds = 0.0
        for _ in range(STEPS):
            started = time.perf_counter()
            scheduled = self.scheduler.schedule()
            seconds += time.perf_counter() - started
            output = self._output(scheduled)
            started = time.perf_counter()
            self.scheduler.update_from_output(scheduled, output)
            seconds += time.perf_counter() - started
            self.steps += 1
        return seconds / STEPS

    def _output(self, scheduled: Any) -> ModelRunnerOutput:
        ids = list(scheduled.num_scheduled_tokens)
        rows = zip(self._accepted[self.steps % 16], scheduled.num_scheduled_tokens.values(), strict=True)
        sampled = [[1] * min(1 + accepted, tokens) for accepted, tokens in rows]
        return ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, sampled)


def _policy() -> str:
    table = study_table(by_pass=True, max_batch=256, max_depth=DEPTH)
    return policy_text(
        make_policy(
            table=table,
            survival=0.7 ** np.arange(1.0, DEPTH + 1.0),
            schedule=[(1, 256, DEPTH)],
            model="stub",
            drafter="eagle",
            device="cpu",
            context=128.0,
            sources={"prices": "made up, for the benchmark"},
        )
    )


if __name__ == "__main__":
    run(main, __doc__)
