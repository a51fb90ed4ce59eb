"""vLLM's scheduler with a log of its steps; `--scheduler-cls lab.live.step_log.StepLog` (`SyncStepLog` on a CPU).

A step appends one tuple to a queue: 33 µs with 256 sequences (`python -m lab.live.step_log` measures it), while the GPU
is busy with the step before. A thread writes
the queue to STEP_LOG_FOLDER/steps.jsonl while the engine is idle. There it also reads depths.json, if that is newer: a
depth by batch size that replaces the table of the flags, so that contestants can take turns in one engine.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

try:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
except ImportError:  # the columns are read where there is no engine
    AsyncScheduler = Scheduler = object

FOLDER = "SPECMARGIN_STEP_LOG_FOLDER"
STEPS, DEPTHS = "steps.jsonl", "depths.json"
# Seconds are of the monotonic clock, which all processes of a machine share.
COLUMNS = (
    "begun",  # when the scheduler started on the step
    "ended",  # when its tokens were known to the scheduler
    "sequences",
    "decoding",  # sequences without prompt tokens in the step
    "prompt_tokens",
    "verified",  # draft tokens
    "depth",  # of the drafts that are made at the end of the step
    "committed",  # tokens
    "running",
    "waiting",
    "kv_usage",
)
IDLE_SECONDS = 0.4


class _Logged:
    """Mixin of both schedulers, before vLLM's class in the method resolution order."""

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._log = Log()
        folder = os.environ.get(FOLDER)
        if folder is not None:
            threading.Thread(target=self._write, args=(Path(folder),), daemon=True).start()

    def schedule(self: Any, *arguments: Any, **options: Any) -> Any:
        begun = time.monotonic()
        output = super().schedule(*arguments, **options)  # type: ignore[misc]
        if output.total_num_scheduled_tokens > 0:
            self._log.scheduled(begun, output, self)
        return output

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if scheduler_output.total_num_scheduled_tokens > 0:
            self._log.done(outputs)
        return outputs

    def _write(self: Any, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        depths, read = folder / DEPTHS, 0.0
        while True:
            time.sleep(IDLE_SECONDS / 2.0)
            if self._log.idle():
                with (folder / STEPS).open("a") as out:
                    self._log.write(out)
                if self.dynamic_sd_lookup is not None and depths.exists() and depths.stat().st_mtime > read:
                    read = depths.stat().st_mtime
                    self.dynamic_sd_lookup = json.loads(depths.read_text())


class StepLog(_Logged, AsyncScheduler):  # type: ignore[misc]
    pass


class SyncStepLog(_Logged, Scheduler):  # type: ignore[misc]
    pass


class Log:
    """Steps that were scheduled and steps that are done, in the same order."""

    def __init__(self) -> None:
        self._scheduled: deque[tuple[Any, ...]] = deque()
        self._done: deque[tuple[Any, ...]] = deque()
        self._prefilling: set[str] = set()  # requests with prompt tokens left
        self._last = 0.0

    def scheduled(self, begun: float, output: Any, scheduler: Any) -> None:
        """vLLM has already counted the tokens of this step as computed."""
        tokens, prefilling = output.num_scheduled_tokens, self._prefilling
        prefilling.update(new.req_id for new in output.scheduled_new_reqs)
        prefilling.update(output.scheduled_cached_reqs.resumed_req_ids)
        prompt_tokens = prompts = 0
        for name in [*prefilling]:
            request = scheduler.requests.get(name)
            if name in tokens:
                prompt_tokens, prompts = prompt_tokens + tokens[name], prompts + 1
            if request is None or not request.is_prefill_chunk:
                prefilling.discard(name)
        decoding = len(tokens) - prompts
        verified = output.total_num_scheduled_tokens - prompt_tokens - decoding
        queued, usage = len(scheduler.waiting), scheduler.kv_cache_manager.usage
        counts = (len(tokens), decoding, prompt_tokens, verified, output.num_spec_tokens_to_schedule)
        self._scheduled.append((begun, counts, (len(scheduler.running), queued, round(usage, 4))))

    def done(self, outputs: Any) -> None:
        begun, counts, load = self._scheduled.popleft()
        committed = sum([len(one.new_token_ids) for each in outputs.values() for one in each.outputs])
        self._last = time.monotonic()
        self._done.append((begun, self._last, *counts, committed, *load))

    def idle(self) -> bool:
        return time.monotonic() - self._last > IDLE_SECONDS

    def write(self, out: Any) -> None:
        while self._done:
            out.write(json.dumps(self._done.popleft()) + "\n")


def read_steps(path: Path, first: float, last: float) -> dict[str, list[Any]]:
    """Columns of the steps that began between two moments."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    chosen = [row for row in rows if first <= row[0] <= last]
    return {name: [row[i] for row in chosen] for i, name in enumerate(COLUMNS)}


def main() -> None:
    """The time that logging takes, with 256 sequences of which 4 have prompt tokens."""
    names = [f"cmpl-{i}" for i in range(256)]
    requests = {name: SimpleNamespace(is_prefill_chunk=i < 4) for i, name in enumerate(names)}
    usage = SimpleNamespace(usage=0.5)
    scheduler = SimpleNamespace(requests=requests, waiting=[], running=names, kv_cache_manager=usage)
    resumed = SimpleNamespace(resumed_req_ids=set())
    new = [SimpleNamespace(req_id=name) for name in names[:4]]
    output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 4),
        total_num_scheduled_tokens=1024,
        scheduled_new_reqs=new,
        scheduled_cached_reqs=resumed,
        num_spec_tokens_to_schedule=3,
    )
    outputs = {0: SimpleNamespace(outputs=[SimpleNamespace(new_token_ids=[1, 2]) for _ in names])}
    log, took = Log(), []
    for _ in range(2000):
        begun = time.perf_counter()
        log.scheduled(0.0, output, scheduler)
        log.done(outputs)
        took.append(time.perf_counter() - begun)
    print(f"{1e6 * statistics.median(took):.1f} µs per step")


if __name__ == "__main__":
    main()
