"""An engine in its own process that runs one contestant at a time; commands and replies are JSON lines.

Contestants of one engine differ only in the policy. They take turns with the same sequences, a fraction of a second
each, so that changes in the speed of the machine affect all of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from lab.live.talking import serve

_SETTLE_STEPS = 2  # after a switch: the first verifies drafts of the previous contestant


def start(job: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    engine = Engine(job)
    return lambda command: getattr(engine, command.pop("do"))(**command)


class Engine:
    def __init__(self, job: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams  # noqa: PLC0415 (the environment comes first)
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        self.llm = LLM(**job["engine"])
        self.engine = self.llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.parameters = SamplingParams(
            temperature=0.0, max_tokens=128, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        self.depth = job["depth"]
        self.drivers: dict[str, Any] = {}
        self.prompts: list[list[int]] = []
        self.concurrency = 0
        self.running = set[str]()
        self.prompts_used = 0  # in this phase
        self.requests_added = 0
        self._forward_requests()

    def _forward_requests(self) -> None:
        """Announce new and finished requests to all contestants, not only to the active one."""
        scheduler = self.scheduler
        add, free = scheduler.add_request, scheduler._free_request

        def others() -> list[Any]:
            return [driver for driver in self.drivers.values() if driver is not scheduler._driver]

        def add_request(request: Any) -> None:
            for driver in others():
                driver.add(request.request_id, None)
            add(request)

        def free_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            for driver in others():
                driver.drop(request.request_id)
            return free(request, *args, **kwargs)

        scheduler.add_request, scheduler._free_request = add_request, free_request

    def contestant(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Add a contestant, or replace the one of this name."""
        from specmargin.live.capture import Identity  # noqa: PLC0415
        from specmargin.live.driver_builder import build_driver  # noqa: PLC0415
        from specmargin.live.settings_schema import read_settings  # noqa: PLC0415

        self.drivers[name] = build_driver(
            read_settings(settings, name),
            max_depth=self.depth,
            candidates=None,
            identity=Identity(model="", speculator="", config=""),
            engine="0",
            log=lambda text: print(text, file=sys.stderr),
        )
        return {}

    def answers(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """Greedy outputs of the engine."""
        self._stop()
        outputs: list[list[int]] = [[] for _ in prompts]
        parameters = self.parameters.clone()
        parameters.max_tokens = tokens
        for i, prompt in enumerate(prompts):
            self.engine.add_request(str(i), {"prompt_token_ids": prompt}, parameters)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                outputs[int(output.request_id)].extend(output.outputs[0].token_ids)
        return {"answers": outputs}

    def phase(self, prompts: list[list[int]], concurrency: int) -> dict[str, Any]:
        """Keep `concurrency` sequences running from now on, starting with the first of these prompts."""
        self._stop()
        self.prompts, self.concurrency, self.prompts_used = prompts, concurrency, 0
        self._fill()
        while self._prefills():
            self._step()
        return {}

    def _stop(self) -> None:
        self.engine.abort_request(list(self.running))
        while self.engine.has_unfinished_requests():
            self.engine.step()
        self.running.clear()

    def _prefills(self) -> bool:
        """Whether the next step contains prompts."""
        return bool(self.scheduler.waiting) or any(request.is_prefill_chunk for request in self.scheduler.running)

    def slice(self, name: str, seconds: float, prompts: list[list[int]] | None = None) -> dict[str, Any]:
        """A contestant's turn, with new sequences if prompts are given; steps that contain prompts are not counted."""
        driver = self.drivers.get(name)
        if driver is not None:
            self.scheduler._driver = driver
            self.scheduler._last_done = float("nan")
        if prompts is not None:
            self.phase(prompts, len(prompts))
        for _ in range(_SETTLE_STEPS):
            self._step()
        before = _counters(driver)
        committed, steps, wall, processor = 0, 0, 0.0, 0.0
        while wall < seconds or steps < 3:
            self._fill()
            counts, started = not self._prefills(), _clocks()
            tokens = self._step()
            if counts:
                committed, steps = committed + tokens, steps + 1
                wall, processor = wall + time.perf_counter() - started[0], processor + time.process_time() - started[1]
        counters = {key: value - before[key] for key, value in _counters(driver).items()}
        return {"wall_seconds": wall, "processor_seconds": processor, "tokens": committed, "steps": steps, **counters}

    def _fill(self) -> None:
        while len(self.running) < self.concurrency:
            name = f"r{self.requests_added}"
            self.running.add(name)
            prompt = self.prompts[self.prompts_used % len(self.prompts)]
            self.engine.add_request(name, {"prompt_token_ids": prompt}, self.parameters)
            self.prompts_used, self.requests_added = self.prompts_used + 1, self.requests_added + 1

    def _step(self) -> int:
        self._fill()
        committed = 0
        for output in self.engine.step():
            committed += len(output.outputs[0].token_ids)
            if output.finished:
                self.running.discard(output.request_id)
        return committed


def _clocks() -> tuple[float, float]:
    """Wall time, and the processor time of this process, which other load hardly affects."""
    return time.perf_counter(), time.process_time()


def _counters(driver: Any) -> dict[str, float]:
    if driver is None:
        return {}
    driver.settle()
    names = ("verify_positions", "committed_tokens", "decision_seconds", "step_seconds", "accepted_tokens", "steps")
    totals = {name: driver.board[f"{name}_total"] for name in names}
    depths = {f"depth_{depth}": float(steps) for depth, steps in enumerate(driver.board.steps_by_depth()[:8])}
    return {f"counted_{name}": value for name, value in (totals | depths).items()} | {
        "faults": driver.guard.faults.total()
    }


if __name__ == "__main__":
    serve(start)
