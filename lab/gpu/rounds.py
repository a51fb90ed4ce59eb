"""Seconds of whole speculative rounds of a real vLLM on a GPU, by batch and depth.

    python -m lab.gpu.rounds engine JOB.json RESULT.json    one engine
    python -m lab.gpu.rounds phases PLAN.json FOLDER        engines that start side by side, measured one by one

Exactly `batch` sequences decode throughout a window. The engine core runs inside this process and is stepped without
the front end, which a server runs in another process. Depths take turns in one engine, through the table that vLLM's
dynamic speculation looks up, so that noise affects all of them alike. Draft tokens are replaced by random ones
(independent tokens, whatever dummy weights would propose), which takes one small kernel per round; acceptance is
synthetic, by vLLM. With `count` the engine runs eagerly, and distinct experts are counted instead of seconds. With
`prompts` every measured step also takes one new prompt of that many tokens, which ends with its first token. With
`graph_modes` steps run in each mode ("FULL", "PIECEWISE", "NONE": compiled code without a graph; "" as the engine
chooses), and launches are counted; batch 0 then stands for one prompt alone, of each length in `prompts`.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETTLE_ROUNDS = 5
TURNS = 3
PROMPT_ROUNDS = 8
MODE_ROUNDS = 25
WINDOW_SECONDS = 0.45
LEAST_ROUNDS, MOST_ROUNDS = 8, 60
POLL_SECONDS = 0.25


class Engine:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.vocabulary = int(job["vocabulary"])
        if job.get("speculative"):
            randomise_drafts(self.vocabulary)
            keep_own_vocabulary()
        if any(job.get("graph_modes", ())):
            allow_forced_graph_modes()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        begun = time.perf_counter()
        self.engine = LLMEngine.from_engine_args(EngineArgs(**job["engine"]))
        self.start_seconds = time.perf_counter() - begun
        self.core = self.engine.engine_core.engine_core
        worker = self.core.model_executor.driver_worker
        self.runner = getattr(worker, "worker", worker).model_runner
        self.counter = ExpertCounter(self.runner.model) if job.get("count") else None
        self.requests_added = 0

    # --- sequences ---

    def fill(self, batch: int, prompt_tokens: int) -> None:
        """`batch` sequences past their prompts."""
        import numpy as np
        from vllm import SamplingParams

        generator = np.random.default_rng([7, batch])
        endless = SamplingParams(temperature=0.0, max_tokens=30_000, ignore_eos=True, detokenize=False)
        for _ in range(batch):
            self.requests_added += 1
            prompt = generator.integers(100, self.vocabulary - 100, prompt_tokens).tolist()
            self.engine.add_request(str(self.requests_added), {"prompt_token_ids": prompt}, endless)
        self.want(0)
        until = time.monotonic() + 60.0
        while any(r.num_computed_tokens <= r.num_prompt_tokens for r in self.requests()):
            self.rounds(1)
            if time.monotonic() > until:
                raise TimeoutError(f"{batch} sequences do not decode together; the KV cache is probably too small")

    def requests(self) -> list[Any]:
        return list(self.core.scheduler.requests.values())

    def clear(self) -> None:
        self.engine.abort_request(list(self.core.scheduler.requests), internal=True)
        for _ in range(4):
            self._step()

    def context(self) -> float:
        return statistics.fmean(request.num_tokens for request in self.requests())

    # --- rounds ---

    def want(self, depth: int) -> None:
        if self.job.get("speculative"):
            sequences = self.core.scheduler.scheduler_config.max_num_seqs
            self.core.scheduler.dynamic_sd_lookup = [depth] * (sequences + 1)

    def _step(self) -> int:
        """Tokens returned; −1 without output (with async scheduling the first step only fills the queue)."""
        outputs, executed = self.core.step_fn()
        self.core.post_step(model_executed=executed)
        if not outputs:
            return -1
        return sum(len(one.new_token_ids) for batch in outputs.values() for one in batch.outputs)

    def rounds(self, count: int) -> tuple[float, int]:
        """Seconds and tokens of `count` rounds with output."""
        begun, done, tokens = time.perf_counter(), 0, 0
        while done < count:
            new_tokens = self._step()
            if new_tokens >= 0:
                done, tokens = done + 1, tokens + new_tokens
        return time.perf_counter() - begun, tokens

    def measure(self, batch: int, depths: list[int], prompt_tokens: int) -> list[dict[str, Any]]:
        self.fill(batch, prompt_tokens)
        samples: dict[int, list[tuple[float, float, float]]] = {depth: [] for depth in depths}
        sizes: dict[int, int] = {}
        for turn in range(TURNS):
            for depth in depths[turn % len(depths) :] + depths[: turn % len(depths)]:
                self.want(depth)
                self.rounds(SETTLE_ROUNDS)
                if depth not in sizes:
                    trial, _ = self.rounds(4)
                    sizes[depth] = int(min(max(WINDOW_SECONDS / (trial / 4), LEAST_ROUNDS), MOST_ROUNDS))
                seconds, tokens = self.rounds(sizes[depth])
                samples[depth].append((seconds / sizes[depth], tokens / sizes[depth] / batch, self.context()))
        self.clear()
        return [_row(batch, depth, sizes[depth], rows) for depth, rows in samples.items()]

    def measure_prompts(self, batch: int, depths: list[int], prompt_tokens: int) -> list[dict[str, Any]]:
        """Steps in which `batch` sequences decode (0: none) and one prompt is read."""
        if batch:
            self.fill(batch, prompt_tokens)
        rows = []
        for depth in depths if batch else depths[:1]:
            for tokens in self.job["prompts"]:
                self.want(depth)
                self._rounds_with_prompts(2, tokens)
                turns = [self._rounds_with_prompts(PROMPT_ROUNDS, tokens) / PROMPT_ROUNDS for _ in range(TURNS)]
                milliseconds = [round(seconds * 1e3, 4) for seconds in turns]
                context = round(self.context(), 1) if batch else 0.0
                row = {"batch": batch, "depth": depth, "prompt": tokens, "context": context, "turns_ms": milliseconds}
                rows.append(row | {"round_ms": statistics.median(milliseconds)})
        self.clear()
        return rows

    # --- graph modes ---

    def measure_modes(self, batch: int, depths: list[int], prompt_tokens: int) -> list[dict[str, Any]]:
        if batch:
            self.fill(batch, prompt_tokens)
        rows = []
        for mode in self.job["graph_modes"]:
            force_graph_mode(mode)
            rows += self._mode_rows(batch, depths, mode) if batch else self._prompt_mode_rows(mode)
        force_graph_mode("")
        self.clear()
        return rows

    def _mode_rows(self, batch: int, depths: list[int], mode: str) -> list[dict[str, Any]]:
        rows = []
        for depth in depths:
            self.want(depth)
            self.rounds(SETTLE_ROUNDS)
            turns = [round(self.rounds(MODE_ROUNDS)[0] / MODE_ROUNDS * 1e3, 4) for _ in range(TURNS)]
            launches = launches_of(lambda: self.rounds(4), 4)
            keys = {"batch": batch, "depth": depth, "mode": mode, "context": round(self.context(), 1)}
            rows.append(keys | {"round_ms": statistics.median(turns), "turns_ms": turns} | launches)
        return rows

    def _prompt_mode_rows(self, mode: str) -> list[dict[str, Any]]:
        rows = []
        for tokens in self.job["prompts"]:
            self.want(0)
            self._rounds_with_prompts(2, tokens)
            turns = [round(self._rounds_with_prompts(PROMPT_ROUNDS, tokens) / PROMPT_ROUNDS * 1e3, 4) for _ in range(3)]
            launches = launches_of(lambda tokens=tokens: self._rounds_with_prompts(4, tokens), 4)
            keys = {"batch": 0, "depth": 0, "mode": mode, "prompt": tokens}
            rows.append(keys | {"round_ms": statistics.median(turns), "turns_ms": turns} | launches)
        return rows

    def _rounds_with_prompts(self, count: int, tokens: int) -> float:
        """Seconds of `count` steps with one prompt each; the steps after them, without prompts, are not counted."""
        import numpy as np
        from vllm import SamplingParams

        generator = np.random.default_rng([11, tokens])
        once = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
        begun, done, added = time.perf_counter(), 0, 0
        while done < count:
            if added < count:
                added, self.requests_added = added + 1, self.requests_added + 1
                prompt = generator.integers(100, self.vocabulary - 100, tokens).tolist()
                self.engine.add_request(f"p{self.requests_added}", {"prompt_token_ids": prompt}, once)
            done += self._step() >= 0
        seconds = time.perf_counter() - begun
        for _ in range(3):
            self._step()
        return seconds

    def count(self, batch: int, depths: list[int], prompt_tokens: int) -> list[dict[str, Any]]:
        assert self.counter is not None
        self.fill(batch, prompt_tokens)
        rows = []
        for depth in depths:
            self.want(depth)
            self.rounds(SETTLE_ROUNDS)
            distinct_by_round = []
            for _ in range(4):
                self.counter.reset()
                self.rounds(1)
                distinct_by_round.append(self.counter.distinct())
            rows.append({"batch": batch, "depth": depth, "distinct_experts": statistics.fmean(distinct_by_round)})
        self.clear()
        return rows

    def description(self) -> dict[str, Any]:
        import torch
        import vllm

        config = self.engine.vllm_config
        compilation = config.compilation_config
        return {
            "name": self.job["name"],
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
            "runner": type(self.runner).__module__,
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "graph_mode": str(compilation.cudagraph_mode.name) if compilation.cudagraph_mode else "none",
            "capture_sizes": list(compilation.cudagraph_capture_sizes or []),
            "start_seconds": round(self.start_seconds, 1),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }


def _row(batch: int, depth: int, rounds: int, turns: list[tuple[float, float, float]]) -> dict[str, Any]:
    seconds = [turn[0] for turn in turns]
    return {
        "batch": batch,
        "depth": depth,
        "round_ms": round(statistics.median(seconds) * 1e3, 4),
        "turns_ms": [round(value * 1e3, 4) for value in seconds],
        "rounds_per_turn": rounds,
        "committed": round(statistics.fmean(turn[1] for turn in turns), 4),
        "context": round(statistics.fmean(turn[2] for turn in turns), 1),
        "contexts": [round(turn[2], 1) for turn in turns],
    }


# --- graph modes: the dispatcher of the second model runner and its drafters, overruled ---

_FORCED = {"mode": ""}


def allow_forced_graph_modes() -> None:
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu import cudagraph_utils

    chosen = cudagraph_utils.CudaGraphManager.dispatch

    def dispatch(self: Any, num_reqs: int, num_tokens: int, *arguments: Any, **named: Any) -> Any:
        found = chosen(self, num_reqs, num_tokens, *arguments, **named)
        if _FORCED["mode"] in ("", found.cg_mode.name):
            return found
        wanted = [d for d in self._candidates.get((num_tokens, 0), ()) if d.cg_mode.name == _FORCED["mode"]]
        if wanted and _FORCED["mode"] == "PIECEWISE":
            return wanted[0]
        return cudagraph_utils.BatchExecutionDescriptor(
            cg_mode=CUDAGraphMode.NONE, num_tokens=num_tokens, num_reqs=num_reqs
        )

    cudagraph_utils.CudaGraphManager.dispatch = dispatch


def force_graph_mode(mode: str) -> None:
    _FORCED["mode"] = mode


def launches_of(steps: Any, count: int) -> dict[str, float]:
    """What the host launches per step, and for how long kernels run; empty where no profiler works."""
    import torch

    try:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        ) as profile:
            steps()
            torch.cuda.synchronize()
        averages = profile.key_averages()
    except Exception as error:
        print(f"no launches counted: {error!r}", flush=True)
        return {}
    graphs = sum(one.count for one in averages if "GraphLaunch" in one.key)
    launches = sum(one.count for one in averages if "LaunchKernel" in one.key)
    kernels = [one for one in averages if str(one.device_type).endswith("CUDA")]
    busy = sum(one.self_device_time_total for one in kernels) * 1e-3
    return {
        "launches": launches / count,
        "graph_launches": graphs / count,
        "kernels": sum(one.count for one in kernels) / count,
        "kernel_ms": round(busy / count, 4),
    }


class ExpertCounter:
    """Distinct experts of the target's steps, per layer, from the choices of the routers; for an eager engine."""

    def __init__(self, model: Any) -> None:
        import torch

        routers = [m.router for m in model.modules() if hasattr(getattr(m, "router", None), "set_capture_fn")]
        routers = list(dict.fromkeys(routers))
        experts = max((int(router.global_num_experts) for router in routers), default=1)
        self.hits = torch.zeros((len(routers), experts), dtype=torch.int32, device=next(model.parameters()).device)
        for layer, router in enumerate(routers):
            router.set_capture_fn(lambda chosen, layer=layer: self._count(layer, chosen))

    def _count(self, layer: int, chosen: Any) -> None:
        ids = chosen.reshape(-1).long()
        self.hits[layer].index_fill_(0, ids[ids >= 0], 1)  # padding is −1

    def reset(self) -> None:
        self.hits.zero_()

    def distinct(self) -> float:
        return float(self.hits.sum(dim=1).double().mean())


def randomise_drafts(vocabulary: int) -> None:
    """Replace the drafts of both model runners in place, after the drafter has done all of its work."""
    import importlib

    proposers = (
        ("vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator", "TargetDependentARSpeculator"),
        ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer"),
    )
    for module, name in proposers:
        try:
            owner = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            print(f"drafts are not replaced in {module}: {error}", flush=True)
            continue
        owner.propose = _randomised(owner.propose, vocabulary)


def keep_own_vocabulary() -> None:
    """Make EAGLE-3 heads use their own, smaller LM head. vLLM detects it by the names of loaded weights, and with dummy
    weights it would use the LM head of the target, which has five times the bytes."""
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

    Eagle3LlamaForCausalLM.has_own_lm_head = True


def _randomised(propose: Any, vocabulary: int) -> Any:
    import torch

    def random_drafts(self: Any, *arguments: Any, **named: Any) -> Any:
        drafts = propose(self, *arguments, **named)
        tensor = isinstance(drafts, torch.Tensor) and drafts.numel() > 0
        if tensor and not named.get("dummy_run") and named.get("num_speculative_tokens") != 0:
            drafts.random_(100, vocabulary - 100)
        return drafts

    return random_drafts


# --- one engine ---


def run_engine(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **job.get("environment", {})})
    engine = Engine(job)
    result: dict[str, Any] = {"engine": engine.description(), "rows": [], "failures": []}
    ready, go = Path(f"{result_file}.ready"), Path(f"{result_file}.go")
    ready.touch()
    while job.get("wait") and not go.exists():
        time.sleep(POLL_SECONDS)
    for batch in job["batches"]:
        depths = [d for d in job["depths"] if batch * (d + 1) <= job.get("most_positions", 1 << 30)]
        try:
            act = engine.count if job.get("count") else engine.measure
            act = engine.measure_prompts if job.get("prompts") else act
            act = engine.measure_modes if job.get("graph_modes") else act
            result["rows"] += act(batch, depths, job["prompt_tokens"])
        except Exception as error:  # earlier rows stay in the result
            result["failures"].append(f"batch {batch}: {type(error).__name__}: {str(error)[:300]}")
            break
        Path(result_file).write_text(json.dumps(result))
    Path(result_file).write_text(json.dumps(result))
    print("DONE", job["name"], flush=True)
    os._exit(0)  # skips the engine's shutdown; the driver frees its memory


# --- several ---


def run_phases(plan_file: str, folder: str) -> None:
    """Engines of one phase start side by side, then each is measured while the others wait."""
    plan, out = json.loads(Path(plan_file).read_text()), Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for number, phase in enumerate(plan["phases"], start=1):
        begun = time.monotonic()
        started = [(job["name"], _start(job, out)) for job in phase["jobs"]]
        for name, process in started:
            _wait_for(process, out / f"{name}.json.ready", phase["start_seconds"] - (time.monotonic() - begun))
        print(f"phase {number}: started after {time.monotonic() - begun:.0f} s", flush=True)
        for name, process in started:
            if process.poll() is None and (out / f"{name}.json.ready").exists():
                (out / f"{name}.json.go").touch()
                _wait_for(process, None, phase["measure_seconds"])
            rows = _rows(out / f"{name}.json")
            print(f"  {name}: {rows} rows, code {process.poll()}, {time.monotonic() - begun:.0f} s", flush=True)
            _end(process)


def _start(job: dict[str, Any], out: Path) -> subprocess.Popen[bytes]:
    name = job["name"]
    (out / f"{name}.job.json").write_text(json.dumps(job | {"wait": True}))
    command = [sys.executable, "-m", "lab.gpu.rounds", "engine", str(out / f"{name}.job.json")]
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(out / f"{name}.json")],
            stdout=log,
            stderr=log,
            env={**os.environ, **job.get("environment", {})},
            start_new_session=True,
        )


def _wait_for(process: subprocess.Popen[bytes], file: Path | None, seconds: float) -> None:
    """Until the file exists, the process has ended, or the time is over."""
    until = time.monotonic() + max(seconds, 0.0)
    while time.monotonic() < until and process.poll() is None and not (file is not None and file.exists()):
        time.sleep(POLL_SECONDS)


def _rows(path: Path) -> int:
    return len(json.loads(path.read_text())["rows"]) if path.exists() else 0


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


if __name__ == "__main__":
    {"engine": run_engine, "phases": run_phases}[sys.argv[1]](*sys.argv[2:])
