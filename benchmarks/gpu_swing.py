"""Fixed depths, the plan's table and the controller take turns inside one vLLM on a GPU, over a swing of load.

    python benchmarks/gpu_swing.py make FOLDER POLICY.json     model folders, policy and job.json
    python benchmarks/gpu_swing.py run FOLDER                  FOLDER/swing.json

One engine under vLLM's defaults (second model runner, async scheduling, full graphs), dummy weights, synthetic
acceptance, random drafts. The plug-in itself asks for the graphs of every depth. At each load it learns first; then
contestants take turns: each depth without the plug-in, and the controller. The table is the depth that it names at that
load, without the plug-in. Overhead is the difference of whole rounds with and without the plug-in at the same depth.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import statistics
import sys
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "src")]

from benchmarks.gpu.jobs import VOCABULARY, head_folder, model_folder
from benchmarks.gpu.rounds import Engine

MODEL = "qwen3-30b-a3b"
LOADS = [1, 4, 16, 64, 128, 256]
ACCEPTANCE = [round(0.75**depth, 4) for depth in range(1, 8)]
LEARNING_SECONDS = 6.0
TURNS = 5
TURN_SECONDS = 0.5
PROMPT_TOKENS = 96


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
        "kv_cache_memory_bytes": 40 * 10**9,
        "disable_log_stats": True,
        "speculative_config": {
            "method": "eagle3",
            "model": head_folder(folder / "models", MODEL, None),
            "num_speculative_tokens": len(ACCEPTANCE),
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": ACCEPTANCE,
        },
        "additional_config": {
            "specmargin": {"mode": "adaptive", "policy": str(folder / "swing.policy.json"), "log_seconds": 15.0}
        },
    }
    job = {"name": "swing", "engine": engine, "speculative": True, "vocabulary": VOCABULARY[MODEL]}
    (folder / "job.json").write_text(json.dumps(job, indent=1))


class Swing:
    """One engine whose plug-in can be switched off and on between turns."""

    def __init__(self, job: dict[str, Any]) -> None:
        _stand_in_for_missing_extras()
        from specmargin.live.vllm.plugin import register

        register()
        self.engine = Engine(job)
        self.scheduler = self.engine.core.scheduler
        self.driver = self.scheduler._driver
        self.table = list(self.scheduler.dynamic_sd_lookup)

    @property
    def depths(self) -> list[int]:
        """Those with graphs."""
        return sorted(set(self.table))

    def fixed(self, depth: int) -> None:
        self.scheduler._driver = None
        self.scheduler.dynamic_sd_lookup = [depth] * len(self.table)

    def controlled(self) -> None:
        self.scheduler._driver = self.driver
        self.scheduler._last_done = math.nan
        self.scheduler.dynamic_sd_lookup = list(self.table)

    def turn(self, seconds: float) -> tuple[float, float, Counter[int]]:
        """Seconds per round, tokens per second, and rounds by depth that the scheduler asked for."""
        self.engine.rounds(3)
        asked, update = Counter[int](), self.scheduler._update_after_schedule

        def counted(output: Any) -> Any:
            result = update(output)
            asked[int(output.num_spec_tokens_to_schedule or 0)] += 1
            return result

        self.scheduler._update_after_schedule = counted
        begun, rounds, tokens = time.perf_counter(), 0, 0
        while time.perf_counter() - begun < seconds or rounds < 8:
            _, new_tokens = self.engine.rounds(1)
            rounds, tokens = rounds + 1, tokens + new_tokens
        elapsed = time.perf_counter() - begun
        del self.scheduler._update_after_schedule
        return elapsed / rounds, tokens / elapsed, asked

    def load(self, batch: int) -> dict[str, Any]:
        self.controlled()
        self.engine.fill(batch, PROMPT_TOKENS)
        self.controlled()
        self.turn(LEARNING_SECONDS)
        depths = [depth for depth in self.depths if batch * (depth + 1) <= 512]
        fixed: dict[int, list[tuple[float, float]]] = {depth: [] for depth in depths}
        controlled, asked = [], Counter[int]()
        for _ in range(TURNS):
            for depth in depths:
                self.fixed(depth)
                fixed[depth].append(self.turn(TURN_SECONDS)[:2])
            self.controlled()
            seconds, speed, chosen = self.turn(TURN_SECONDS * 2)
            controlled.append((seconds, speed))
            asked += chosen
        self.controlled()
        self.engine.clear()
        return {
            "batch": batch,
            "fixed": {depth: _summary(turns) for depth, turns in fixed.items()},
            "controller": _summary(controlled),
            "controller_depths": dict(asked),
            "table_depth": self.table[min(batch, len(self.table) - 1)],
        }


def _summary(turns: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "round_ms": round(statistics.median(seconds for seconds, _ in turns) * 1e3, 4),
        "tokens_per_second": round(statistics.median(speed for _, speed in turns), 1),
        "turns_tokens_per_second": [round(speed, 1) for _, speed in turns],
    }


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
    swing = Swing(json.loads((folder / "job.json").read_text()))
    result: dict[str, Any] = {"engine": swing.engine.description(), "table": _ranges(swing.table), "loads": []}
    print("depths with graphs:", swing.depths, "plug-in:", swing.driver is not None, flush=True)
    for batch in LOADS:
        with contextlib.suppress(TimeoutError):
            result["loads"].append(swing.load(batch))
            print(json.dumps(result["loads"][-1]), flush=True)
        (folder / "swing.json").write_text(json.dumps(result, indent=1))
    os._exit(0)  # skips the engine's shutdown


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
        run(folder)
