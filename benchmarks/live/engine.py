"""An engine in its own process that plays one contestant at a time: commands come as JSON lines, answers go back so.

Contestants of one engine share everything but the policy, so that what differs between them is what they decide.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the engine prints is not an answer


def main() -> None:
    job = json.loads(sys.stdin.readline())
    engine = Engine(job)
    _answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        _answer(getattr(engine, command.pop("do"))(**command))


def _answer(found: object) -> None:
    OUT.write(json.dumps(found) + "\n")
    OUT.flush()


class Engine:
    def __init__(self, job: dict[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415 (the environment comes first)

        self.llm = LLM(**job["engine"])
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.depth = job["depth"]
        self.drivers: dict[str, Any] = {"none": None}
        self.count = 0

    def contestant(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """A policy of this name, fresh."""
        from specmargin.engines.live.building import build_driver  # noqa: PLC0415
        from specmargin.engines.live.capture import Identity  # noqa: PLC0415
        from specmargin.engines.live.settings_schema import read_settings  # noqa: PLC0415

        self.drivers[name] = build_driver(
            read_settings(settings, name),
            max_depth=self.depth,
            ragged=settings.get("ragged", True),
            confidence=True,
            candidates=None,
            identity=Identity(model="", speculator="", config=""),
            engine="0",
            log=lambda text: print(text, file=sys.stderr),
        )
        return {}

    def run(self, name: str, prompts: list[list[int]], concurrency: int, tokens: int, warm: int) -> dict[str, Any]:
        """So many sequences at once, always, until so many tokens are committed after the first `warm`."""
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        engine, driver = self.llm.llm_engine, self.drivers[name]
        if name != "none":
            self.core.scheduler._driver = driver
            self.core.scheduler._last_done = float("nan")
        parameters = SamplingParams(
            temperature=0.0, max_tokens=64, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        waiting, running = list(reversed(prompts)), set[str]()
        committed, started, before = -warm, _clocks(), _counters(driver)
        steps = 0
        while committed < tokens:
            while len(running) < concurrency:
                self.count += 1
                prompt = waiting.pop() if waiting else prompts[self.count % len(prompts)]
                running.add(f"r{self.count}")
                engine.add_request(f"r{self.count}", {"prompt_token_ids": prompt}, parameters)
            counting = committed >= 0
            for output in engine.step():
                committed += len(output.outputs[0].token_ids)
                if output.finished:
                    running.discard(output.request_id)
            steps += 1
            if committed >= 0 and not counting:
                started, before, steps = _clocks(), _counters(driver), 0
        wall, processor = (now - then for now, then in zip(_clocks(), started, strict=True))
        found = {key: value - before[key] for key, value in _counters(driver).items()}
        engine.abort_request(list(running))
        while engine.has_unfinished_requests():
            engine.step()
        return {"wall_seconds": wall, "processor_seconds": processor, "tokens": committed, "steps": steps, **found}


def _clocks() -> tuple[float, float]:
    """The wall's, and the processor's time of this process, which other programs do not change much."""
    return time.perf_counter(), time.process_time()


def _counters(driver: Any) -> dict[str, float]:
    if driver is None:
        return {}
    names = ("verify_positions", "committed_tokens", "decision_seconds", "step_seconds", "accepted_tokens", "steps")
    found = {name: driver.board[f"{name}_total"] for name in names}
    return {f"counted_{name}": value for name, value in found.items()} | {"faults": driver.guard.faults.total()}


if __name__ == "__main__":
    main()
