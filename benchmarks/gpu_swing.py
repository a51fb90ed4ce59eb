"""Fixed depths, the plan's table and the controller take turns inside one vLLM on a GPU, over a swing of load.

    specmargin plan qwen3-30b-a3b … --policy POLICY.json       its options: docs/live.md
    python benchmarks/gpu_swing.py make FOLDER POLICY.json     model folders, policy and the jobs
    python benchmarks/gpu_swing.py run FOLDER                  FOLDER/swing.json
    python benchmarks/gpu_swing.py plain FOLDER                FOLDER/plain.json: an engine without speculation

One engine under vLLM's defaults (second model runner, async scheduling, full graphs), dummy weights, synthetic
acceptance of two kinds of traffic, random drafts. The plug-in itself asks for the graphs of every depth. At each load
and traffic the controller learns first; then contestants take turns: each depth without the plug-in, the controller,
and the controller with the table's depth as its only candidate. The table is the depth that it names at that load,
without the plug-in. Overhead is the difference of whole rounds with and without the plug-in at the same depth.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import time
import types
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "src")]

from benchmarks.gpu.jobs import VOCABULARY, head_folder, model_folder
from benchmarks.gpu.report import phase_of
from benchmarks.gpu.rounds import Engine

MODEL = "qwen3-30b-a3b"
LOADS = [1, 4, 16, 64, 128, 256]
DEPTH = 5
TRAFFIC = {"code": 0.85, "prose": 0.6}  # acceptance of each draft token, given that those before it were accepted
SURVIVAL = [round(sum(rate**depth for rate in TRAFFIC.values()) / 2, 4) for depth in range(1, DEPTH + 1)]  # planned for
LEARNING_SECONDS = 3.0
BLOCKS = 6
TURN_SECONDS = 0.3
LEAST_ROUNDS = 8
# With many sequences the GPU lowers its clock after half a second of deep rounds: every turn begins after that.
SETTLE_SECONDS, MANY = 0.6, 64
PROMPT_TOKENS = 96
GRAPH_POSITIONS = 512  # of vLLM's largest CUDA graph


def make(folder: Path, policy: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "swing.policy.json").write_text(policy.read_text())
    engine = {
        "model": model_folder(folder / "models", MODEL, None),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 32_768,  # one sequence generates thousands of tokens while the controller learns
        "max_num_seqs": max(LOADS),
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.05,
        "kv_cache_memory_bytes": 60 * 10**9,
        "disable_log_stats": True,
    }
    speculative = {
        "method": "eagle3",
        "model": head_folder(folder / "models", MODEL, None),
        "num_speculative_tokens": DEPTH,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": SURVIVAL,
    }
    settings = {"mode": "adaptive", "policy": str(folder / "swing.policy.json"), "log_seconds": 15.0}
    swing = engine | {"speculative_config": speculative, "additional_config": {"specmargin": settings}}
    for name, arguments, is_speculative in (("swing", swing, True), ("plain", engine, False)):
        job = {"name": name, "engine": arguments, "speculative": is_speculative, "vocabulary": VOCABULARY[MODEL]}
        (folder / f"{name}.job.json").write_text(json.dumps(job, indent=1))


class Swing:
    """One engine whose plug-in can be switched off and on between turns."""

    def __init__(self, job: dict[str, Any]) -> None:
        _stand_in_for_missing_extras()
        from specmargin.live.building import build_driver
        from specmargin.live.vllm import scheduler
        from specmargin.live.vllm.plugin import register

        given: dict[str, Any] = {}

        def remembered(settings: Any, **named: Any) -> Any:
            given.update(settings=settings, named=named)
            return build_driver(settings, **named)

        setattr(scheduler, "build_driver", remembered)  # noqa: B010 (it is not exported)
        register()
        self.engine = Engine(job)
        self.scheduler = self.engine.core.scheduler
        self.driver = self.scheduler._driver
        self.table = list(self.scheduler.dynamic_sd_lookup)
        self.narrator, self.scheduler._narrator = self.scheduler._narrator, None
        settings = given["settings"].model_copy(update={"board": None})
        self.held = {d: build_driver(settings, **{**given["named"], "candidates": (d,)}) for d in self.depths}

    @property
    def depths(self) -> list[int]:
        """Those with graphs."""
        return sorted(set(self.table))

    def fixed(self, depth: int) -> None:
        self.scheduler._driver = None
        self.scheduler.dynamic_sd_lookup = [depth] * len(self.table)

    def controlled(self, depth: int | None = None) -> None:
        """The controller; with a depth, one that may choose only that."""
        self.scheduler._driver = None
        self.scheduler.dynamic_sd_lookup = list(self.table)
        if self.engine.requests():
            self.engine.rounds(1)
        self.scheduler._last_done = time.perf_counter() if self.engine.requests() else math.nan
        self.scheduler._driver = self.driver if depth is None else self.held[depth]

    def turn(self, seconds: float) -> dict[str, Any]:
        """Seconds, rounds, tokens, and rounds by the depth that the scheduler asked for."""
        settled = time.perf_counter() + SETTLE_SECONDS * (len(self.engine.requests()) >= MANY)
        self.engine.rounds(3)
        while time.perf_counter() < settled:
            self.engine.rounds(1)
        asked, update = Counter[int](), self.scheduler._update_after_schedule

        def counted(output: Any) -> Any:
            result = update(output)
            asked[int(output.num_spec_tokens_to_schedule or 0)] += 1
            return result

        self.scheduler._update_after_schedule = counted
        context = self.engine.context()
        begun, rounds, tokens = time.perf_counter(), 0, 0
        while time.perf_counter() - begun < seconds or rounds < LEAST_ROUNDS:
            _, new_tokens = self.engine.rounds(1)
            rounds, tokens = rounds + 1, tokens + new_tokens
        elapsed = time.perf_counter() - begun
        del self.scheduler._update_after_schedule
        depths = {str(depth): count for depth, count in sorted(asked.items())}
        context = round((context + self.engine.context()) / 2, 1)
        return {"seconds": round(elapsed, 5), "rounds": rounds, "tokens": tokens, "depths": depths, "context": context}

    def play(self, batch: int, traffic: str) -> dict[str, Any]:
        """One load and traffic: the controller learns, then contestants take turns, in another order in each block."""
        self.engine.runner.rejection_sampler.synthetic_conditional_rates.fill_(TRAFFIC[traffic])
        named = self.table[min(batch, len(self.table) - 1)]
        depths = [depth for depth in self.depths if batch * (depth + 1) <= GRAPH_POSITIONS]
        contestants: list[tuple[str, Callable[[], None], float]] = [
            ("controller", self.controlled, 2.0),
            *((f"depth {depth}", partial(self.fixed, depth), 1.0) for depth in depths),
        ]
        after = next(i for i, one in enumerate(contestants) if one[0] == f"depth {named}")
        contestants.insert(after + 1, (f"held {named}", partial(self.controlled, named), 1.0))
        self._fill(batch)
        learning = [self.turn(LEARNING_SECONDS)]
        blocks = []
        for block in range(BLOCKS):
            self._fill(batch)
            first, turns = block % len(contestants), {}
            for name, begin, length in contestants[first:] + contestants[:first]:
                begin()
                turns[name] = self.turn(TURN_SECONDS * length)
            blocks.append(turns)
        return {"batch": batch, "traffic": traffic, "table_depth": named, "learning": learning, "blocks": blocks}

    def _fill(self, batch: int) -> None:
        """New sequences, so that contexts stay alike and the KV cache holds them."""
        if self.engine.requests():
            self.engine.clear()
        self.controlled()
        self.engine.fill(batch, PROMPT_TOKENS)
        self.controlled()


def _stand_in_for_missing_extras() -> None:
    """Captures need Polars and calibration SciPy; neither is used here, and the GPU machine may lack them."""
    for name, members in (("polars", ()), ("scipy", ("optimize",))):
        if importlib.util.find_spec(name) is None:
            module = sys.modules[name] = types.ModuleType(name)
            for member in members:
                part = sys.modules[f"{name}.{member}"] = types.ModuleType(f"{name}.{member}")
                part.isotonic_regression = part.minimize = None  # type: ignore[attr-defined]
                setattr(module, member, part)


def run(folder: Path) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    swing = Swing(json.loads((folder / "swing.job.json").read_text()))
    result: dict[str, Any] = {
        "what": __doc__,
        "engine": swing.engine.description(),
        "acceptance": TRAFFIC,
        "table": _ranges(swing.table),
        "rows": [],
    }
    print("depths with graphs:", swing.depths, "plug-in:", swing.driver is not None, flush=True)
    for batch in LOADS:
        for traffic, rate in TRAFFIC.items():
            try:
                row = swing.play(batch, traffic)
            except Exception as error:  # other loads stay
                print(f"batch {batch}: {type(error).__name__}: {error}", flush=True)
                continue
            result["rows"].append(row)
            phase = phase_of(row, rate)
            print(phase.name, {name: round(phase.speed(name)) for name in phase.seconds}, flush=True)
            result["faults"] = dict(swing.driver.guard.faults)
            (folder / "swing.json").write_text(json.dumps(result))
    print("DONE swing", flush=True)
    os._exit(0)  # skips the engine's shutdown


def run_plain(folder: Path) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    engine = Engine(json.loads((folder / "plain.job.json").read_text()))
    result: dict[str, Any] = {"engine": engine.description(), "rows": []}
    for batch in LOADS:
        result["rows"] += engine.measure(batch, [0], PROMPT_TOKENS)
        (folder / "plain.json").write_text(json.dumps(result, indent=1))
    print("DONE plain", [(row["batch"], row["round_ms"]) for row in result["rows"]], flush=True)
    os._exit(0)


def _ranges(table: list[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for batch, depth in enumerate(table[1:], start=1):
        if ranges and ranges[-1][2] == depth:
            ranges[-1][1] = batch
        else:
            ranges.append([batch, batch, depth])
    return ranges


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "make":
        make(folder, Path(sys.argv[3]))
    else:
        {"run": run, "plain": run_plain}[sys.argv[1]](folder)
