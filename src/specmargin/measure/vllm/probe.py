"""Step times from inside a running vLLM: one engine, many points.

`specmargin measure vllm` starts one process per engine run (`python -m specmargin.measure.vllm.probe JOB.json`), so
that an engine that runs out of memory does not end the measurement. The process appends its records to a file, one
line each. It holds the engine and calls its steps directly; only the step of the engine core is timed, which is what a
server repeats.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.measure.nvidia_smi import nvidia_smi
from specmargin.measure.points import other_scheduling
from specmargin.measure.records import Records
from specmargin.measure.vllm.forced import CLASS_PATH, WANTED
from specmargin.measure.vllm.hooks import DraftClock, ExpertCounter, GraphMode
from specmargin.measure.vllm.versions import check_version

_SETTLE_STEPS = 2  # after a change of depth: a draft is verified in the step after the one that proposed it
_ASYNC_STEPS = 2  # more with async scheduling, where an output is that of an earlier step
_MAX_GROWTH_TOKENS = 256  # beyond its prompt, before a sequence is replaced by a new one


class Probe:
    """One engine and its running sequences."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.clock = time.process_time if job["clock"] == "cpu" else time.perf_counter
        self.random = np.random.default_rng(job["seed"])
        self.counter = ExpertCounter() if job["counts"] else None
        self.engine = _engine(job, self.counter)
        self.core = self.engine.engine_core.engine_core
        self.runner = _runner(self.core)
        self.layers_counted = self._attach_counter()
        self.graph = GraphMode(self.runner)
        self.is_async = bool(self.engine.vllm_config.scheduler_config.async_scheduling)
        timed = job["kind"] == "drafter" and not self.is_async  # waiting for the device would undo async scheduling
        self.draft = DraftClock(self.runner, self.clock) if timed else None
        self.vocabulary = int(self.engine.model_config.get_vocab_size())
        self.largest = int(self.engine.model_config.max_model_len)
        self.prompts: list[list[int]] = job["prompts"]
        self._requests_added = 0
        self._context = 0
        self._started = self._core_seconds = 0.0
        self._install_clock()

    def _attach_counter(self) -> int:
        if self.counter is None:
            return 0
        attached = self.counter.attach(self.runner.model) if not self.job["graphs"] else 1
        self.counter.enabled = bool(self.job["graphs"])  # inside graphs it cannot be switched off
        return attached

    # --- sequences ---

    def fill(self, batch: int, context: int) -> None:
        """`batch` sequences of about `context` tokens, all past their prompts."""
        grown = any(tokens > self._limit(context) for tokens in self._lengths())
        if grown or context != self._context or len(self._lengths()) > batch:
            self.clear()
        self._context = context
        WANTED.depth = 0
        while len(self._lengths()) < batch:
            self._add(context)
        while any(r.num_computed_tokens < r.num_prompt_tokens for r in self._requests()):
            self._step()
        if len(self.core.scheduler.running) < batch:
            raise MemoryError(f"only {len(self.core.scheduler.running)} of {batch} sequences fit in the KV cache")

    def clear(self) -> None:
        self.engine.abort_request(list(self.core.scheduler.requests), internal=True)
        for _ in range(2 + self._lag):
            self.engine.step()

    @property
    def _lag(self) -> int:
        return _ASYNC_STEPS if self.is_async else 0

    def _limit(self, context: int) -> int:
        """Tokens beyond which a sequence is replaced: it has grown too long, or the deepest drafts might not fit."""
        deepest = max(point["depth"] for point in self.job["points"])
        room = self.largest - (int(deepest) + 1) * (int(self.job["steps"]) + _SETTLE_STEPS + self._lag + 1)
        return min(context + _MAX_GROWTH_TOKENS, room)

    def _add(self, context: int) -> None:
        from vllm import SamplingParams  # noqa: PLC0415

        self._requests_added += 1
        endless = SamplingParams(
            temperature=self.job["temperature"], max_tokens=self.largest, ignore_eos=True, detokenize=False
        )
        self.engine.add_request(str(self._requests_added), {"prompt_token_ids": self._prompt(context)}, endless)

    def _prompt(self, context: int) -> list[int]:
        """The end of a random prompt of the user, or random tokens if there are no prompts."""
        if self.prompts:
            return self.prompts[int(self.random.integers(len(self.prompts)))][-context:]
        drawn: list[int] = self.random.integers(0, self.vocabulary, context).tolist()
        return drawn

    def _requests(self) -> list[Any]:
        return list(self.core.scheduler.requests.values())

    def _lengths(self) -> list[int]:
        return [int(request.num_tokens) for request in self._requests()]

    # --- steps ---

    def _install_clock(self) -> None:
        step, after = self.core.step_fn, self.core.post_step

        def timed_step(*arguments: Any, **named: Any) -> Any:
            self._started = self.clock()
            return step(*arguments, **named)

        def timed_after(*arguments: Any, **named: Any) -> Any:
            result = after(*arguments, **named)
            self._core_seconds = self.clock() - self._started
            return result

        self.core.step_fn, self.core.post_step = timed_step, timed_after

    def _step(self) -> tuple[float, float]:
        """Seconds of the engine core's step, and of the whole step with the front end."""
        begin = self.clock()
        self.engine.step()
        return self._core_seconds, self.clock() - begin

    def want(self, point: dict[str, Any]) -> None:
        WANTED.depth, WANTED.repeated = point["depth"], point["kind"] == "alike"
        if self.job["kind"] == "drafter":
            self.core.scheduler.dynamic_sd_lookup = [point["depth"]] * (self.job["max_sequences"] + 1)

    def time(self, point: dict[str, Any], samples: dict[str, list[Any]]) -> None:
        """Append the samples of a few steps of one point."""
        self.want(point)
        for _ in range(_SETTLE_STEPS + self._lag):
            self._step()
        begin = len(samples["seconds"])
        for _ in range(self.job["steps"]):
            before = np.array(self._lengths())
            core_seconds, step_seconds = self._step()
            committed = np.array(self._lengths()) - before
            samples["seconds"].append(core_seconds)
            samples["whole"].append(step_seconds)
            samples["draft"].append(self.draft.seconds if self.draft else 0.0)
            samples["context"].append(float(before.mean()))
            samples["committed"].append(float(committed.mean()))
            samples["accepted"] += (committed - 1).tolist()
        samples["graphs"].append(self.graph.last)
        samples["turns"].append([sum(samples["seconds"][begin:]), sum(samples["committed"][begin:]) * point["batch"]])

    def count(self, point: dict[str, Any]) -> float | None:
        if self.counter is None or not self.layers_counted:
            return None
        self.want(point)
        for _ in range(_SETTLE_STEPS):
            self._step()
        distinct_by_step = []
        self.counter.enabled = True
        for _ in range(3):
            self.counter.reset()
            self._step()
            distinct_by_step.append(self.counter.distinct() or 0.0)
        self.counter.enabled = bool(self.job["graphs"])
        return statistics.fmean(distinct_by_step) or None  # 0: a compiled router does not call the hook

    def run(self) -> Iterator[dict[str, Any]]:
        """Rows of all points. Points of one batch and context are measured in turns, so that noise hits them alike."""
        by_context_and_batch: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for point in self.job["points"]:
            by_context_and_batch.setdefault((point["context"], point["batch"]), []).append(point)
        for (context, batch), points in sorted(by_context_and_batch.items()):
            samples: list[dict[str, list[Any]]] = [{name: [] for name in _SAMPLED} for _ in points]
            for turn in range(self._turns(batch)):
                for index in np.roll(np.arange(len(points)), turn):
                    self.fill(batch, context)
                    self.time(points[index], samples[index])
            for point, point_samples in zip(points, samples, strict=True):
                self.fill(batch, context)
                yield self._row(point, point_samples, self.count(point))
            if time.time() > self.job["deadline"]:
                return

    def _turns(self, batch: int) -> int:
        """Turns per point; small batches need more of them to reach the wanted number of rounds."""
        rounds_per_turn = batch * int(self.job["steps"])
        return max(int(self.job["repeats"]), -(-int(self.job["rounds"]) // rounds_per_turn))

    def _row(self, point: dict[str, Any], samples: dict[str, list[Any]], distinct: float | None) -> dict[str, Any]:
        seconds = sorted(samples["seconds"])
        quarter = len(seconds) // 4
        return {
            "record": "row",
            "run": self.job["name"],
            **point,
            "context": round(statistics.fmean(samples["context"]), 1),
            "prompt": point["context"],
            "seconds": statistics.median(seconds),
            "low_seconds": seconds[quarter],
            "high_seconds": seconds[-1 - quarter],
            "whole_seconds": statistics.median(samples["whole"]),
            "draft_seconds": statistics.median(samples["draft"]),
            "low_draft_seconds": sorted(samples["draft"])[quarter],
            "committed": round(statistics.fmean(samples["committed"]), 4),
            "steps": len(seconds),
            "graph": max(set(samples["graphs"]), key=samples["graphs"].count),
            "distinct": distinct,
            "survival": [round(float(np.mean(np.array(samples["accepted"]) >= d)), 4) for d in _depths(point)],
            "turns": samples["turns"],
        }


_SAMPLED = ("seconds", "whole", "draft", "context", "committed", "accepted", "graphs", "turns")


def _depths(point: dict[str, Any]) -> range:
    return range(1, point["depth"] + 1 if point["kind"] == "drafted" else 1)


def _engine(job: dict[str, Any], counter: ExpertCounter | None) -> Any:
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

    arguments = dict(job["engine_args"])
    if job["kind"] == "forced":
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": CLASS_PATH,
            "num_speculative_tokens": job["drafts"],
        }
    with _counted_graphs(counter) if counter is not None and job["graphs"] else contextlib.nullcontext():
        return LLMEngine.from_engine_args(EngineArgs(model=job["model"], **arguments))


@contextlib.contextmanager
def _counted_graphs(counter: ExpertCounter) -> Iterator[None]:
    """Attach the counter between loading the model and capturing its graphs."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

    original = GPUModelRunner.load_model

    def load_model(runner: Any, *arguments: Any, **named: Any) -> None:
        original(runner, *arguments, **named)
        counter.attach(runner.model)

    GPUModelRunner.load_model = load_model
    try:
        yield
    finally:
        GPUModelRunner.load_model = original


def _runner(core: Any) -> Any:
    worker = core.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


# --- engine and machine ---


def _engine_record(probe: Probe) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    import vllm  # noqa: PLC0415

    config = probe.engine.vllm_config
    compilation = config.compilation_config
    return {
        "record": "engine",
        "run": probe.job["name"],
        "clock": probe.job["clock"],
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "graph_mode": str(compilation.cudagraph_mode.name).lower() if compilation.cudagraph_mode else "none",
        "capture_sizes": list(compilation.cudagraph_capture_sizes or []),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "runner": type(probe.runner).__module__,
        "attention": _backend(probe.runner),
        "weights": str(config.load_config.load_format),
        "dtype": str(config.model_config.dtype),
        "host": f"{os.cpu_count()} CPUs, {platform.machine()}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **_gpu(),
    }


def _backend(runner: Any) -> str:
    try:
        return str(runner.attn_groups[0][0].backend.get_name())
    except (AttributeError, IndexError):
        return "unknown"


def _gpu() -> dict[str, Any]:
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return {"gpu": "", "driver": "", "cuda": ""}
    return {"gpu": torch.cuda.get_device_name(), "driver": nvidia_smi("driver_version"), "cuda": torch.version.cuda}


def _clocks() -> dict[str, str]:
    names = ("clocks.sm", "clocks.mem", "clocks_throttle_reasons.active", "temperature.gpu")
    return {name: nvidia_smi(name) for name in names}


def main(path: str) -> int:
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    records = Records(path=Path(job["out"]))

    def failed(error: str, *, final: bool) -> None:
        records.append({"record": "failure", "run": job["name"], "error": error, "final": final})

    try:
        import vllm  # noqa: PLC0415

        problem = check_version(vllm.__version__)
        if problem:
            failed(problem, final=True)
            return 2
        probe = Probe(job)
        records.append(_engine_record(probe))
        problem = other_scheduling(job["scheduling"], is_async=probe.is_async, runner=type(probe.runner).__module__)
        if problem:
            failed(problem, final=False)
            return 0
        for row in probe.run():
            records.append(row)
        if _gpu()["gpu"]:
            records.append({"record": "clocks", "run": job["name"], **_clocks()})
        records.append({"record": "done", "run": job["name"]})
    except ModuleNotFoundError as error:
        failed(f"{error.name} is not installed", final=True)
        return 2
    except Exception as error:  # whatever an engine raises ends only this run
        failed(_one_line(error), final=False)
        raise
    return 0


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "out of memory" in text.lower():
        return "out of GPU memory: lower the largest batch or context, or pass --set gpu_memory_utilization=0.8"
    return f"{type(error).__name__}: {text[:300]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
