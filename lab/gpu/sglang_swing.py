"""Fixed depths, SGLang's adaptive mode, the plan's table and the controller take turns inside one SGLang on a GPU.

    specmargin plan qwen3-30b-a3b … --engine sglang --policy POLICY.json     its options: docs/results/vllm-h200.md
    python -m lab.gpu.sglang_swing make FOLDER POLICY.json     model folders, configurations and the jobs
    python -m lab.gpu.sglang_swing all FOLDER [SECONDS]        the phases below, each a process with a time limit
    python -m lab.gpu.sglang_swing check FOLDER                FOLDER/check.json: versions; compiles kernels
    python -m lab.gpu.sglang_swing run FOLDER                  FOLDER/swing.json
    python -m lab.gpu.sglang_swing fixed FOLDER                FOLDER/fixed.json: an engine of one depth, not adaptive
    python -m lab.gpu.sglang_swing plain FOLDER                FOLDER/plain.json: an engine without speculation
    python -m lab.gpu.sglang_report FOLDER               the tables

One engine with overlapped scheduling, CUDA graphs for every depth at every load, dummy weights, simulated acceptance of
two kinds of traffic, random drafts (`lab/gpu/sglang_engine.py`). The plug-in is loaded by SGLang, from its entry
point; another policy sits in its place while another contestant has its turn, and outcomes go to the policy that chose
the depth. At each load and traffic both adaptive policies learn first; then contestants take turns. SGLang's adaptive
mode has its default configuration. The table is the depth that the plan names at that load.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from lab.gpu.jobs import VOCABULARY, head_folder, model_folder
from lab.gpu.report import constant, phase_of
from lab.gpu.sglang_engine import Engine, Script

MODEL = "qwen3-30b-a3b"
LOADS = [1, 4, 16, 64, 128]
ORDER = [1, 64, 16, 128, 4]  # so that few rows tell most
DEPTHS = [0, 1, 2, 3, 4, 5, 7]
ALONE = 3  # of the engine that is not adaptive
TRAFFIC = {"code": 0.85, "prose": 0.6}  # acceptance of each draft token, given that those before it were accepted
LEARNING_SECONDS = {"controller": 2.0, "sglang": 0.8}
BLOCKS = 5
TURN_SECONDS = 0.2
LEAST_ROUNDS = 8
# With many sequences the GPU lowers its clock after half a second of deep rounds: every turn begins after that.
SETTLE_SECONDS, SETTLE_ROUNDS, MANY = 0.3, 4, 64
CONTEXT = 8192
LIMITS = {"check": 150, "run": 420, "fixed": 240, "plain": 150}  # seconds, of each phase

Turn = Generator[None, None, dict[str, Any]]


# --- what is run ---


def make(folder: Path, policy: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    planned = json.loads(policy.read_text())["specmargin"] | {"candidates": DEPTHS, "log_seconds": 15.0}
    _write(folder / "adaptive.json", {"1": {"candidate_steps": DEPTHS}, "specmargin": planned})
    for depth in DEPTHS:
        held = {"1": {"candidate_steps": [depth]}, "specmargin": planned | {"candidates": [depth]}}
        _write(folder / f"held-{depth}.json", held)
    engine = {
        "model_path": model_folder(folder / "models", MODEL, None),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "random_seed": 7,
        "context_length": CONTEXT,
        "max_running_requests": max(LOADS) + 8,  # of exactly so many, SGLang leaves one waiting
        "mem_fraction_static": 0.76,
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "moe_runner_backend": "triton",
        "grammar_backend": "none",
        "disable_radix_cache": True,
        "disable_prefill_cuda_graph": True,
        "cuda_graph_bs_decode": LOADS,
        "log_level": "info",
    }
    drafter = {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": _head(folder / "models"),
        "speculative_eagle_topk": 1,
    }
    jobs = {
        "run": drafter | _steps(max(DEPTHS)) | _adaptive(folder / "adaptive.json"),
        "fixed": drafter | _steps(ALONE),
        "plain": {},
    }
    for name, speculative in jobs.items():
        job = {"name": name, "engine": engine | speculative, "speculative": bool(speculative)}
        _write(folder / f"{name}.job.json", job | {"vocabulary": VOCABULARY[MODEL]})


def _head(folder: Path) -> str:
    """With the layers that EAGLE-3 heads read by default. SGLang reads them at the input of the next: not the last."""
    layers = json.loads((folder / MODEL / "config.json").read_text())["num_hidden_layers"]
    path = Path(head_folder(folder, MODEL, None))
    config = json.loads((path / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, layers // 2 - 1, layers - 4]
    _write(path / "config.json", config)
    return str(path)


def _steps(depth: int) -> dict[str, Any]:
    return {"speculative_num_steps": depth, "speculative_num_draft_tokens": depth + 1}


def _adaptive(file: Path) -> dict[str, Any]:
    return {"speculative_adaptive": True, "speculative_adaptive_config": str(file)}


def _write(path: Path, contents: object) -> None:
    path.write_text(json.dumps(contents))


def _most_tokens(batch: int) -> int:
    """SGLang reserves room for a part of them before it admits a sequence."""
    return 7600 if batch < 16 else 4000 if batch < 64 else 2400


# --- policies ---


class Fixed:
    """One depth, whatever is accepted."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def get_steps_for_batch(self, _: int) -> int:
        return self.depth

    def on_verify_complete(self, *_: object) -> None:
        return None


class Seat:
    """SGLang's `AdaptiveSpecPolicy` for good; `now` has its turn. Outcomes go to the policy that chose the depth."""

    def __init__(self, shipped: Any) -> None:
        self.now = self.shipped = shipped
        self.deciders: deque[Any] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shipped, name)

    def get_steps_for_batch(self, batch_size: int) -> int:
        self.deciders.append(self.now)
        return int(self.now.get_steps_for_batch(batch_size))

    def on_verify_complete(self, accepted: list[int], batch_size: int) -> int | None:
        if not self.deciders:
            return None
        decider = self.deciders.popleft()
        switched: int | None = decider.on_verify_complete(accepted, batch_size)
        return switched if decider is self.now else None


class Swing:
    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self.folder, self.engine = folder, Engine(job)
        self.policies: dict[str, Any] = {}
        self.depths = [self.engine.depth]
        self.seat: Seat | None = None
        if self.engine.controller is not None:
            self._seat(json.loads((folder / "adaptive.json").read_text()))

    def _seat(self, config: dict[str, Any]) -> None:
        from specmargin.live.sglang.params import SpecmarginParams

        controller, own = self.engine.controller, SpecmarginParams.__bases__[0]
        shipped = controller.params
        self.seat = controller.params = Seat(shipped)
        self.depths = sorted(controller._states)
        self.schedule = config["specmargin"]["policy"]["schedule"]
        print(f"policy: {type(shipped).__name__}, depths with graphs: {self.depths}", flush=True)
        self.policies = {"sglang": own(self.engine.depth, None)}
        if getattr(shipped, "_rounds", None) is not None:
            self.policies["controller"] = shipped
            self.policies |= {
                f"held {d}": SpecmarginParams(d, str(self.folder / f"held-{d}.json")) for d in self.depths
            }
        for policy in self.policies.values():
            policy.set_cuda_graph_bs(LOADS)

    def table_depth(self, batch: int) -> int:
        """The plan's depth, or the nearest below it that has graphs."""
        if self.seat is None:
            return self.depths[0]
        named = next(depth for first, last, depth in self.schedule if first <= batch <= last)
        return max(depth for depth in self.depths if depth <= named)

    def use(self, policy: Any) -> None:
        if self.seat is not None:
            self.seat.now = policy

    # --- turns ---

    def turn(self, seconds: float) -> Turn:
        """Seconds, rounds, tokens, and rounds by the depth that was run."""
        engine, batch = self.engine, len(self.engine.requests())
        settled = time.perf_counter() + SETTLE_SECONDS * (batch >= MANY)
        least = engine.rounds + SETTLE_ROUNDS
        while time.perf_counter() < settled or engine.rounds < least:
            yield
        engine.asked.clear()
        context, tokens, first = engine.context(), engine.tokens(), engine.rounds
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds or engine.rounds - first < LEAST_ROUNDS:
            yield
        elapsed, rounds = time.perf_counter() - begun, engine.rounds - first
        if len(engine.requests()) != batch:
            raise RuntimeError(f"of {batch} sequences {len(engine.requests())} are left: they ended too early")
        return {
            "seconds": round(elapsed, 5),
            "rounds": rounds,
            "tokens": engine.tokens() - tokens,
            "depths": {str(depth): count for depth, count in sorted(engine.asked.items())},
            "context": round((context + engine.context()) / 2, 1),
        }

    def play(self, batch: int, traffic: str) -> Turn:
        """One load and traffic; contestants take turns in another order in each block."""
        self.engine.acceptance.rate = TRAFFIC[traffic]
        named = self.table_depth(batch)
        contestants: list[tuple[str, Any, float]] = [
            (name, self.policies[name], 2.0) for name in ("controller", "sglang") if name in self.policies
        ]
        for depth in self.depths:
            contestants.append((f"depth {depth}", Fixed(depth), 1.0))
            if depth == named and f"held {depth}" in self.policies:
                contestants.append((f"held {depth}", self.policies[f"held {depth}"], 1.0))
        learning, blocks = {}, []
        yield from self._fill(batch)
        for name, seconds in LEARNING_SECONDS.items():
            if name in self.policies:
                self.use(self.policies[name])
                learning[name] = yield from self.turn(seconds)
        for block in range(BLOCKS):
            yield from self._fill(batch)
            first, turns = block * 2 % len(contestants), {}
            for name, policy, length in contestants[first:] + contestants[:first]:
                self.use(policy)
                turns[name] = yield from self.turn(TURN_SECONDS * length)
            blocks.append(turns)
        return {"batch": batch, "traffic": traffic, "table_depth": named, "learning": learning, "blocks": blocks}

    def _fill(self, batch: int) -> Script:
        """New sequences, so that contexts stay alike."""
        self.use(Fixed(self.depths[-1]))
        if self.engine.requests():
            yield from self.engine.clear()
        if self.seat is not None:
            self.seat.deciders.clear()
        yield from self.engine.fill(batch, _most_tokens(batch))


# --- phases ---


def run(folder: Path, name: str = "run") -> None:
    """Rows are written as they come, and so is what went wrong."""
    out = folder / {"run": "swing.json"}.get(name, f"{name}.json")
    result: dict[str, Any] = {"what": __doc__, "acceptance": TRAFFIC, "rows": [], "failures": []}
    faulthandler.dump_traceback_later(LIMITS[name] - 10, exit=True)
    try:
        swing = Swing(json.loads((folder / f"{name}.job.json").read_text()), folder)
        result |= {"engine": swing.engine.description(), "depths": swing.depths, "contestants": list(swing.policies)}
        _write(out, result)
        print(f"started after {swing.engine.start_seconds:.0f} s", flush=True)
        swing.engine.run(_all_rows(swing, out, result))
    except BaseException:
        result["failures"].append(traceback.format_exc()[-4000:])
        traceback.print_exc()
    _write(out, result)
    print(f"DONE {name}: {len(result['rows'])} rows, {len(result['failures'])} failures", flush=True)
    os._exit(0 if result["rows"] else 3)  # skips the engine's shutdown


def _all_rows(swing: Swing, out: Path, result: dict[str, Any]) -> Script:
    for batch in ORDER:
        for traffic, rate in TRAFFIC.items():
            if not swing.engine.job["speculative"] and traffic != next(iter(TRAFFIC)):
                continue
            try:
                row = yield from swing.play(batch, traffic)
            except Exception as error:  # other loads stay
                result["failures"].append(f"{batch}, {traffic}: {type(error).__name__}: {error}")
                print(result["failures"][-1], flush=True)
                continue
            result["rows"].append(row)
            phase = phase_of(row, traffic, constant(rate))
            print(phase.name, {name: round(phase.speed(name)) for name in phase.seconds}, flush=True)
            controller = swing.policies.get("controller")
            result["faults"] = {} if controller is None else dict(controller._rounds.driver.guard.faults)
            _write(out, result)


def check(folder: Path) -> None:
    """Versions, imports and the kernels that SGLang compiles at first use, side by side; what fails is written down."""
    faulthandler.dump_traceback_later(LIMITS["check"] - 10, exit=True)
    found: dict[str, Any] = {"modules": {}, "kernels": {}}
    for name in ("torch", "triton", "sgl_kernel", "flashinfer", "transformers", "tvm_ffi", "sglang", *_MODULES):
        found["modules"][name] = _attempt(partial(_version, name))
    _write(folder / "check.json", found)
    print(json.dumps(found["modules"], indent=1), flush=True)
    jobs: dict[str, Callable[[], Any]] = dict(_kernels())
    jobs["controller"] = partial(_warm_controller, folder / "adaptive.json")
    with ThreadPoolExecutor(len(jobs)) as pool:
        waiting = {name: pool.submit(_attempt, job) for name, job in jobs.items()}
        found["kernels"] = {name: future.result() for name, future in waiting.items()}
    _write(folder / "check.json", found)
    print(json.dumps(found["kernels"], indent=1), flush=True)
    os._exit(0)


_MODULES = (
    "sglang.srt.managers.scheduler",
    "sglang.srt.speculative.eagle_worker_v2",
    "sglang.srt.models.qwen3_moe",
    "sglang.srt.models.llama_eagle3",
    "sglang.srt.layers.attention.deepseek_v4_backend",
    "sglang.srt.layers.attention.flashmla_backend",
    "specmargin.live.sglang.rounds",
)


def _version(name: str) -> str:
    return str(getattr(importlib.import_module(name), "__version__", "ok"))


def _attempt(action: Callable[[], Any]) -> str:
    begun = time.perf_counter()
    try:
        said = action()
    except BaseException as error:
        return f"FAILED {type(error).__name__}: {str(error)[-1500:]}"
    return f"{said if isinstance(said, str) else 'ok'} ({time.perf_counter() - begun:.1f} s)"


def _kernels() -> list[tuple[str, Callable[[], Any]]]:
    """Builders of SGLang 0.5.21 and the arguments of these two models: 4 and 8 KV heads of 128, hidden size 2048."""
    import torch

    half, ops = torch.bfloat16, "sglang.kernels.ops."
    wanted: list[tuple[str, str, tuple[Any, ...]]] = [
        ("speculative.tree", "_jit_tree_module", ()),
        ("attention.rope", "_jit_fused_rope_module", (True, 128, half, half)),
        ("kvcache.kvcache", "_jit_kvcache_module", (1024, 1024, 0)),
        ("kvcache.kvcache", "_jit_kvcache_module", (2048, 2048, 0)),
        ("activation.activation", "activation_module", (half,)),
        ("layernorm.norm", "_jit_qknorm_module", (128, half)),
        ("layernorm.norm", "_jit_fused_add_rmsnorm_module", (half, False)),
        ("moe.moe_topk_softmax", "_jit_moe_topk_softmax_module", (half,)),
        ("moe.moe_topk_softmax", "_jit_moe_topk_softmax_module", (torch.float32,)),
        ("moe.moe_align", "_jit_moe_align_module", (torch.int32,)),
        ("attention.clamp_position", "_jit_clamp_position_module", (torch.int64,)),
    ]

    def build(module: str, name: str, arguments: tuple[Any, ...]) -> None:
        getattr(importlib.import_module(ops + module), name)(*arguments)

    return [(f"{name}{arguments}", partial(build, module, name, arguments)) for module, name, arguments in wanted]


def _warm_controller(config: Path) -> None:
    """Compiled code is kept on disk for the engine."""
    from specmargin.live.sglang.rounds import start

    rounds = start(config, DEPTHS, engine="0", board=None, log=print, warn=print)
    for _ in range(3):
        depth = rounds.steps_for(4, lambda _: DEPTHS[-1])
        rounds.learn([min(depth, 1)] * 4, 4)


def run_all(folder: Path, seconds: float = 600.0) -> None:
    """Each phase is a process of its own session, so that a hang ends at its limit and takes nothing with it."""
    until = time.monotonic() + seconds
    _phase(folder, "check", until)
    if _phase(folder, "run", until) != 0:
        _phase(folder, "fixed", until)
    _phase(folder, "plain", until)
    print("ALL DONE", flush=True)


def _phase(folder: Path, name: str, until: float) -> int:
    limit = min(LIMITS[name], until - time.monotonic())
    if limit < 30:
        print(f"{name}: no time left", flush=True)
        return 1
    begun = time.monotonic()
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "lab.gpu.sglang_swing", name, str(folder)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    print(f"{name}: code {code} after {time.monotonic() - begun:.0f} s", flush=True)
    return code


def main(arguments: list[str]) -> None:
    command, folder, *rest = arguments
    if command == "make":
        make(Path(folder), Path(rest[0]))
    elif command == "all":
        run_all(Path(folder), *map(float, rest))
    elif command == "check":
        check(Path(folder))
    else:
        run(Path(folder), command)


if __name__ == "__main__":
    main(sys.argv[1:])
