"""Minutes of requests that join and leave, with faults injected into the plug-in: nothing hangs, nothing leaks.

    python -m lab.gpu.serving REFERENCE FOLDER           what the machine needs, made beforehand
    python -m lab.gpu.soak FOLDER RESULT.json [--seconds 310] [--dtype float32] [--eager] [--native]

One vLLM in this process serves the reference MoE with the plug-in and its gate on the GPU (in float32: the plug-in does
not gate draft models with FlashAttention). Requests arrive at random,
with mixed lengths and sampling parameters, some structured; one in six is aborted. Every five seconds the memory of the
GPU and of this process is sampled; four times the engine is emptied and memory is compared at rest. It needs about 4 GB
of GPU memory and leaves the rest to others. With `--native` vLLM's own adaptive verification serves the same requests,
without the plug-in: what fails there too is not ours.

A leak is memory at rest that grows from the second rest (by then every kind of request has been served) to the last:
more than 1 MiB of tensors or 64 MiB of reserved memory on the GPU, or more than 2% of this process. Slopes by the
samples under load are printed beside it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from lab.gpu.serving import POLICY, SEQUENCES, Serving, arguments, count_budgets, top_k_is_served

SAMPLE_SECONDS = 5.0
RESTS = (0.12, 0.4, 0.7, 1.0)  # of the duration
FAULT_STEPS = 3  # fewer in a row than disable the gate
LAST_FAULT_STEPS = 12  # enough to disable it
MEBIBYTE = 1 << 20
TENSOR_GROWTH, RESERVED_GROWTH, HOST_GROWTH = MEBIBYTE, 64 * MEBIBYTE, 0.02
_LONG = ("what", "samples", "engine", "injected", "last_requests")
_PAGE = os.sysconf("SC_PAGE_SIZE")


# --- requests ---


class Clients:
    """Requests that join at random; some leave before their end."""

    def __init__(self, serving: Serving, prompts: list[list[int]], *, structured: bool, seed: int = 0) -> None:
        self.serving, self.prompts, self.structured = serving, prompts, structured
        self.chance = random.Random(seed)
        self.count: Counter[str] = Counter()
        self.wanted: dict[str, int] = {}  # tokens, of requests that must be answered in full
        self.leaving: dict[str, int] = {}  # tokens after which a client leaves
        self.tokens = 0
        self.load = 4
        self.last: deque[str] = deque(maxlen=64)  # for the record of a run that ends in a fault

    def join(self) -> None:
        if self.chance.random() < 0.005:
            self.load = self.chance.choice((1, 4, 16, SEQUENCES, SEQUENCES + 8))
        while len(self.wanted) + len(self.leaving) < self.load and self.chance.random() < 0.5:
            self._add()

    def _add(self) -> None:
        chance = self.chance
        self.count["joined"] += 1
        name, length = f"r{self.count['joined']}", chance.choice((1, 8, 40, 100, 200))
        parameters: dict[str, Any] = chance.choice(
            (
                {"temperature": 0.0},
                {"temperature": 0.7, "top_p": 0.9},
                {"temperature": 1.0, "seed": chance.randrange(1000), **({"top_k": 50} if top_k_is_served() else {})},
                {"temperature": 0.8, "presence_penalty": 0.4, "logprobs": 1},
            )
        )
        prompt = chance.choice(self.prompts)[: chance.choice((1, 7, 30, 160))]
        if self.structured and chance.random() < 0.05:
            from vllm.sampling_params import StructuredOutputsParams

            wanted = StructuredOutputsParams(regex=r"[0-9]{4}-[0-9]{2}")
            self.wanted[name] = -1  # its grammar ends it
            self.serving.add(name, prompt, max_tokens=40, temperature=0.0, structured_outputs=wanted)
            return
        self.last.append(f"{name}: {len(prompt)} tokens, then {length}, {parameters}")
        self.serving.add(name, prompt, max_tokens=length, ignore_eos=True, **parameters)
        if length > 1 and chance.random() < 1 / 6:
            self.leaving[name] = chance.randrange(1, length)
        else:
            self.wanted[name] = length

    def take(self, outputs: list[Any]) -> None:
        for output in outputs:
            name, length = output.request_id, len(output.outputs[0].token_ids)
            if name in self.leaving and (output.finished or length >= self.leaving[name]):
                del self.leaving[name]
                self.tokens += length
                self.count["left"] += 1
                if not output.finished:
                    self.serving.abort([name])
            elif output.finished and name in self.wanted:
                wanted = self.wanted.pop(name)
                self.tokens += length
                self.count["answered" if wanted in (-1, length) else "cut short"] += 1

    def step(self) -> None:
        self.join()
        if self.serving.busy:
            self.take(self.serving.step())

    def empty(self, seconds: float = 60.0) -> None:
        """Everybody is answered, and nobody joins."""
        until = time.monotonic() + seconds
        while self.serving.busy:
            self.take(self.serving.step())
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self.wanted)} requests are unanswered after {seconds:.0f} s: a hang")


# --- faults ---


@contextmanager
def kernel_raises(_: Serving) -> Iterator[None]:
    """The kernels that rank drafts on the GPU."""
    with mock.patch("specmargin.live.vllm.gate.manager.ranking_confidences", _raise):
        yield


@contextmanager
def budget_raises(serving: Serving) -> Iterator[None]:
    with mock.patch.object(type(serving.manager.prices), "budget", _raise):
        yield


@contextmanager
def wrong_budget(_: Serving) -> Iterator[None]:
    with mock.patch("specmargin.live.gate_prices.best_budget", lambda *_: (10_000, 1.0)):
        yield


@contextmanager
def no_confidences(serving: Serving) -> Iterator[None]:
    """Not numbers, on the host and on the GPU."""
    import torch

    manager = serving.manager
    record = manager.record_confidences

    def damaged(confidence_probs: Any, input_batch: Any) -> None:
        record(confidence_probs, input_batch)
        with torch.inference_mode():
            manager._confidence_probs.fill_(float("nan"))
        manager._recent[:] = float("nan")

    with mock.patch.object(manager, "record_confidences", damaged):
        yield


@contextmanager
def policy_raises(serving: Serving) -> Iterator[None]:
    """The controller in the scheduler."""
    with mock.patch.object(type(serving.driver.policy), "draft", _raise):
        yield


def _raise(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("injected")


Fault = Callable[[Serving], Any]
# At which part of the duration, what, and for how many steps.
GATE_FAULTS: tuple[tuple[float, str, Fault, int], ...] = (
    (0.20, "kernel raises", kernel_raises, FAULT_STEPS),
    (0.30, "confidences are not numbers", no_confidences, 20),
    (0.45, "wrong budget", wrong_budget, FAULT_STEPS),
    (0.55, "budget raises", budget_raises, FAULT_STEPS),
    (0.90, "budget raises until the gate is disabled", budget_raises, LAST_FAULT_STEPS),
)
DRIVER_FAULTS: tuple[tuple[float, str, Fault, int], ...] = ((0.62, "controller raises", policy_raises, FAULT_STEPS),)


class Faults:
    """Injected at their instants, for a few steps with drafts each."""

    def __init__(self, serving: Serving, seconds: float) -> None:
        self.serving = serving
        gated = getattr(serving.manager, "prices", None) is not None
        due = sorted((*(GATE_FAULTS if gated else ()), *DRIVER_FAULTS), key=lambda fault: fault[0])
        self.due = [(part * seconds, name, fault, steps) for part, name, fault, steps in due]
        self.left, self.stack, self.injected = 0, ExitStack(), list[dict[str, Any]]()

    def look(self, elapsed: float, answered: int) -> None:
        """Before a step."""
        if self.left:
            self.left -= 1
            if not self.left:
                self.stack.close()
                self.injected[-1] |= {"faults_after": self.serving.faults()}
        elif self.due and elapsed >= self.due[0][0] and len(self.serving.scheduler.running) > 1:
            _, name, fault, self.left = self.due.pop(0)
            now = {"at": round(elapsed, 1), "fault": name, "answered": answered}
            self.injected.append(now | {"faults_before": self.serving.faults()})
            if self.serving.driver is not None:
                self.stack.enter_context(fault(self.serving))


# --- memory ---


def memory() -> dict[str, float]:
    """Bytes: of tensors and of the allocator on the GPU, used on the whole GPU, and of this process."""
    import torch

    host = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    if not torch.cuda.is_available():
        return {"allocated": 0, "reserved": 0, "device": 0, "host": host}
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "device": total - free,
        "host": host,
    }


def seen_by_nvidia_smi() -> str:
    """Of the whole GPU; other processes are in it."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "nvidia-smi does not answer"


def at_rest(serving: Serving) -> dict[str, Any]:
    """With no request in the engine."""
    for _ in range(3):
        serving.step()
    gc.collect()
    if serving.driver is not None:
        serving.driver.settle()
    kept = {} if serving.driver is None else {"requests_kept": len(serving.driver._requests)}
    return memory() | kept | {"nvidia_smi": seen_by_nvidia_smi()}


def slope(samples: list[dict[str, Any]], name: str) -> float:
    """Bytes per second after the first third: the median over pairs of samples."""
    kept = samples[len(samples) // 3 :]
    pairs = [(a, b) for i, a in enumerate(kept) for b in kept[i + 1 :]]
    return statistics.median((b[name] - a[name]) / (b["at"] - a["at"]) for a, b in pairs) if pairs else 0.0


def verdict(rests: list[dict[str, Any]], samples: list[dict[str, Any]]) -> dict[str, Any]:
    first, last = rests[1], rests[-1]
    grown = {name: last[name] - first[name] for name in ("allocated", "reserved", "device", "host")}
    slopes = {f"{name}_bytes_per_second": round(slope(samples, name), 1) for name in grown}
    leaks = []
    if grown["allocated"] > TENSOR_GROWTH:
        leaks.append(f"tensors grew by {grown['allocated']} bytes")
    if grown["reserved"] > RESERVED_GROWTH:
        leaks.append(f"reserved memory grew by {grown['reserved']} bytes")
    if grown["host"] > HOST_GROWTH * first["host"]:
        leaks.append(f"the process grew by {grown['host']} bytes")
    if last.get("requests_kept"):
        leaks.append(f"{last['requests_kept']} finished requests are kept")
    return {"grown_at_rest": grown, "slopes": slopes, "leaks": leaks, "no_leak": not leaks}


# --- the run ---


def soak(serving: Serving, prompts: list[list[int]], seconds: float, save: Callable[[dict[str, Any]], None]) -> None:
    structured = _serves_structured(serving, prompts)
    clients, faults = Clients(serving, prompts, structured=structured), Faults(serving, seconds)
    steps = count_budgets(serving.manager)
    samples, rests, due_rests = list[dict[str, Any]](), list[dict[str, Any]](), list(RESTS)
    begun, next_sample, tokens = time.monotonic(), 0.0, 0
    while due_rests:
        elapsed = time.monotonic() - begun
        if elapsed >= next_sample:
            rate, tokens = (clients.tokens - tokens) / SAMPLE_SECONDS, clients.tokens
            traffic = {"tokens_per_second": round(rate), "load": clients.load}
            samples.append({"at": round(elapsed, 1), **memory(), **traffic})
            save({"samples": samples, "requests": dict(clients.count), "last_requests": list(clients.last)})
            next_sample = elapsed + SAMPLE_SECONDS
        if elapsed >= due_rests[0] * seconds and not faults.left:
            clients.empty()
            rests.append({"at": round(elapsed, 1), **at_rest(serving), **clients.count})
            due_rests.pop(0)
        faults.look(elapsed, clients.count["answered"])
        clients.step()
    clients.empty()
    guard = getattr(serving.manager, "guard", None)
    cut = {"steps": len(steps), "drafts": sum(s[1] for s in steps), "verified": sum(s[2] for s in steps)}
    save(
        {
            "seconds": round(time.monotonic() - begun, 1),
            "structured": structured,
            "requests": dict(clients.count),
            "tokens": clients.tokens,
            "gated": cut,
            "injected": faults.injected,
            "not_injected": [one[1] for one in faults.due],
            "faults": serving.faults(),
            "gate_disabled": None if guard is None else bool(guard.off),
            "verdict": verdict(rests, samples),
            "rests": rests,
            "samples": samples,
        }
    )


def _save(result: dict[str, Any], part: dict[str, Any], path: Path) -> None:
    """At every sample: a fault of the GPU ends the process."""
    result.update(part)
    path.write_text(json.dumps(result))


def _serves_structured(serving: Serving, prompts: list[list[int]]) -> bool:
    """One request of each kind, which also compiles what the first needs."""
    from vllm.sampling_params import StructuredOutputsParams

    for number, parameters in enumerate(({"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9, "logprobs": 1})):
        serving.add(f"first {number}", prompts[number], max_tokens=16, ignore_eos=True, **parameters)
    serving.drain(120.0)
    try:
        wanted = StructuredOutputsParams(regex=r"[0-9]{4}-[0-9]{2}")
        serving.add("structured", prompts[0], max_tokens=16, temperature=0.0, structured_outputs=wanted)
        serving.drain(60.0)
    except Exception as error:
        print(f"structured requests are left out: {type(error).__name__}: {error}", flush=True)
        return False
    return True


def main(given: list[str]) -> None:
    places = [one for i, one in enumerate(given) if not one.startswith("--") and (i == 0 or given[i - 1][:2] != "--")]
    options = {one.removeprefix("--"): given[i + 1] for i, one in enumerate(given[:-1]) if one.startswith("--")}
    folder, result_file = Path(places[0]).resolve(), Path(places[1])
    seconds = float(options.get("seconds", "310"))
    settings = {"mode": "adaptive", "policy": str(folder / POLICY), "gate": "on", "log_seconds": 30.0}
    settings |= {"slowest_decision_seconds": 5.0}  # other software runs beside it
    dtype = options.get("dtype", "float32")
    native = "--native" in given
    engine = arguments(folder, dtype=dtype, settings=None if native else settings, eager="--eager" in given)
    if native:
        engine["speculative_config"] |= {"enable_adaptive_verification": True}
    serving = Serving(engine)
    result: dict[str, Any] = {"what": __doc__, "engine": serving.description()}
    print(result["engine"], flush=True)
    prompts = json.loads((folder / "prompts.json").read_text())
    code = 1
    try:
        soak(serving, prompts, seconds, lambda part: _save(result, part, result_file))
        code = 0 if result["verdict"]["no_leak"] and not result["requests"].get("cut short") else 1
    except Exception:
        result["failure"] = traceback.format_exc()
        print(result["failure"], flush=True)
    result_file.write_text(json.dumps(result, indent=1))
    summary = {key: value for key, value in result.items() if key not in _LONG}
    print(json.dumps(summary, indent=1), *result.get("injected", []), sep="\n")
    print("SOAK", "PASSED" if code == 0 else "FAILED")
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
