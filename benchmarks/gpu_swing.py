"""Fixed depths, the plan's table and the controller take turns inside one vLLM on a GPU, over a swing of load.

    specmargin plan qwen3-30b-a3b … --policy POLICY.json       its options: docs/live.md
    python benchmarks/gpu_swing.py make FOLDER POLICY.json [BANK.npz]    model folders, policy and the jobs
    python benchmarks/gpu_swing.py run FOLDER                  FOLDER/swing.json
    python benchmarks/gpu_swing.py gates FOLDER [SECONDS]      FOLDER/gates.json: an engine with adaptive verification,
                                                               which measures once there is no FOLDER/wait
    python benchmarks/gpu_swing.py plain FOLDER                FOLDER/plain.json: an engine without speculation

One engine under vLLM's defaults (second model runner, async scheduling, full graphs), dummy weights, synthetic
acceptance of two kinds of traffic, random drafts. The plug-in itself asks for the graphs of every depth. At each load
and traffic the controller learns first; then contestants take turns: each depth without the plug-in, the controller,
and the controller with the table's depth as its only candidate. The table is the depth that it names at that load,
without the plug-in. Overhead is the difference of whole rounds with and without the plug-in at the same depth.

`gates` has vLLM's adaptive verification enabled and replays a bank (`benchmarks/gpu/replay.py`), one kind of traffic at
a time: vLLM's gate as shipped and with an honest curve, Specmargin's gate with its controller, the controller alone,
and fixed depths verified whole, which tie this engine to the first. All gates share vLLM's acceptance estimator; where
it has diverged, it is restarted and the load is played again. Before the first block of a load every contestant plays
one turn that is not counted, and a turn in which a round takes much longer than the others is played again: kernels are
compiled when they first meet a shape, once in the life of a server. The result says how many were.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "src")]

from benchmarks.gpu.jobs import VOCABULARY, head_folder, model_folder
from benchmarks.gpu.replay import Bank, Coefficients, estimator_state, fitted, install, is_sound, restart_estimator
from benchmarks.gpu.report import constant, phase_of
from benchmarks.gpu.rounds import Engine
from benchmarks.gpu.serving import stand_in_for_missing_extras

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
SETTLE_SECONDS, MANY = 0.5, 64
PROMPT_TOKENS = 96
GATE_SECONDS, GATE_LEARNING_SECONDS, ESTIMATOR_ROUNDS = 860.0, 2.5, 300
GATE_TURN_SECONDS = {1: 1.2, 4: 1.2, 16: 0.6}  # by sequences: few of them commit few tokens per round
GATE_LATER_SECONDS = 0.4  # with more of them
GATE_WEIGHT = {1: 1.6, 4: 1.6}  # of a load's share of the time; 1 for the others
GATE_BLOCKS = (3, 16)  # at least and at most
STALL_SECONDS, MOST_REPEATS = 0.12, 2  # of one round over the median of its turn, and how often a turn is repeated
TIED = (1, 3, 5)  # depths that are verified whole beside the gates
GRAPH_POSITIONS = 512  # of vLLM's largest CUDA graph


def make(folder: Path, policy: Path, bank: Path | None = None) -> None:
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
        "kv_cache_memory_bytes": 45 * 10**9,
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
    replayed = speculative | {"synthetic_acceptance_rates": [1.0] * DEPTH, "enable_adaptive_verification": True}
    jobs = {
        "swing": (speculative, settings | {"gate": "off"}),
        "gates": (replayed, settings | {"gate": "on"}),
        "plain": (None, None),
    }
    if bank is not None:
        shutil.copy(bank, folder / "bank.npz")
    for name, (config, own) in jobs.items():
        added = {} if config is None else {"speculative_config": config, "additional_config": {"specmargin": own}}
        job = {"name": name, "engine": engine | added, "speculative": config is not None}
        (folder / f"{name}.job.json").write_text(json.dumps(job | {"vocabulary": VOCABULARY[MODEL]}, indent=1))


Contestant = tuple[str, Callable[[], None]]  # name, and what begins its turn


class Swing:
    """One engine whose plug-in can be switched off and on between turns."""

    def __init__(self, job: dict[str, Any]) -> None:
        stand_in_for_missing_extras()
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
        self.scheduler._bare = None  # every round of a turn has all of the plug-in's work
        settings = given["settings"].model_copy(update={"board": None})
        whole = {**given["named"], "device_gate": False}
        self.ungated = build_driver(settings, **whole)
        self.held = {d: build_driver(settings, **{**whole, "candidates": (d,)}) for d in self.depths}

    @property
    def depths(self) -> list[int]:
        """Those with graphs."""
        return sorted(set(self.table))

    def fixed(self, depth: int) -> None:
        self.scheduler._driver = None
        self.scheduler.dynamic_sd_lookup = [depth] * len(self.table)

    def controlled(self, depth: int | None = None, *, gated: bool = True) -> None:
        """The controller; with a depth, one that may choose only that. `gated`: with the gate on the GPU, if any."""
        self.scheduler._driver = None
        self.scheduler.dynamic_sd_lookup = list(self.table)
        if self.engine.requests():
            self.engine.rounds(1)
        self.scheduler._last_done = time.perf_counter() if self.engine.requests() else math.nan
        alone = self.driver if gated else self.ungated
        self.scheduler._driver = alone if depth is None else self.held[depth]

    def settle(self) -> None:
        settled = time.perf_counter() + SETTLE_SECONDS * (len(self.engine.requests()) >= MANY)
        self.engine.rounds(3)
        while time.perf_counter() < settled:
            self.engine.rounds(1)

    def turn(self, seconds: float, *, settled: bool = False) -> dict[str, Any]:
        """Seconds, rounds, tokens, and rounds by the depth that the scheduler asked for."""
        if not settled:
            self.settle()
        asked, update = Counter[int](), self.scheduler._update_after_schedule

        def counted(output: Any) -> Any:
            result = update(output)
            asked[int(output.num_spec_tokens_to_schedule or 0)] += 1
            return result

        self.scheduler._update_after_schedule = counted
        context = self.engine.context()
        begun, tokens, round_seconds = time.perf_counter(), 0, list[float]()
        while time.perf_counter() - begun < seconds or len(round_seconds) < LEAST_ROUNDS:
            took, new_tokens = self.engine.rounds(1)
            round_seconds.append(took)
            tokens += new_tokens
        elapsed, rounds = time.perf_counter() - begun, len(round_seconds)
        del self.scheduler._update_after_schedule
        depths = {str(depth): count for depth, count in sorted(asked.items())}
        context = round((context + self.engine.context()) / 2, 1)
        stall = round(max(round_seconds) - statistics.median(round_seconds), 4)
        turn = {"seconds": round(elapsed, 5), "rounds": rounds, "tokens": tokens, "depths": depths, "context": context}
        return turn | {"stall": stall}

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


class GateSwing(Swing):
    """One engine with adaptive verification, in which gates take turns."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        super().__init__(job)
        from benchmarks.gpu.gate import Gates

        self.bank = Bank.load(folder / "bank.npz").cut(DEPTH)
        self.replay = install(self.engine.runner, self.bank)
        self.gates = Gates(self.engine.runner, folder / "swing.policy.json")
        self.steps = self.gates.count_budgets()

    def learn(self, batch: int) -> None:
        """vLLM's estimator, which all gates share, refits every 100 steps."""
        for attempt in ("as vLLM starts it", "from the bank's fit"):
            self._use("vllm", DEPTH)
            if self.engine.requests():
                self.engine.clear()
            self.engine.fill(batch, PROMPT_TOKENS)
            self._use("vllm", DEPTH)
            self.engine.rounds(ESTIMATOR_ROUNDS)
            if self.estimator(f"after learning, {attempt}")[1]:
                return
            restart_estimator(self.engine.runner.speculator.acceptance_estimator, fitted(self.bank))
        raise SystemExit("vLLM's acceptance estimator diverges twice: gates would be compared by nothing")

    def estimator(self, when: str) -> tuple[Coefficients, bool]:
        """Its coefficients, and whether they can be right; printed."""
        state = estimator_state(self.engine.runner)
        sound = is_sound(state)
        said = "" if sound else f"  *** DIVERGED; the bank's fit: {fitted(self.bank)} ***"
        print(f"estimator {when}: slope {state[0]:.3f}, intercepts {state[1]}{said}", flush=True)
        return state, sound

    def play_soundly(self, batch: int, kind: int, seconds: float) -> dict[str, Any]:
        """Again, once, if the estimator diverged meanwhile; the row says so."""
        row = self.play_gates(batch, kind, seconds)
        if not row["estimator_sound"]:
            restart_estimator(self.engine.runner.speculator.acceptance_estimator, fitted(self.bank))
            row = self.play_gates(batch, kind, seconds) | {"played_again": True}
        return row

    def _use(self, gate: str, depth: int | None) -> None:
        """`depth` None: the controller's."""
        self.gates.use(gate)
        if depth is None:
            self.controlled(gated=gate == "specmargin")
        else:
            self.fixed(depth)

    def play_gates(self, batch: int, kind: int, seconds: float) -> dict[str, Any]:
        begun, name = time.perf_counter(), self.bank.names[kind]
        self.replay.kind_of = lambda *_: kind
        named = self.table[min(batch, len(self.table) - 1)]
        contestants = self._contestants(batch, named)
        for gate in ("whole", "specmargin"):
            self._fill_for(batch, gate)
            self.turn(GATE_LEARNING_SECONDS)
        self._fill_for(batch, "whole")
        for _, begin in contestants:
            begin()
            self._replayed_turn(batch, 0)
        before, blocks, longest = self.estimator(f"before {batch}, {name}")[0], list[dict[str, Any]](), 0.0
        least, most = GATE_BLOCKS
        while len(blocks) < least or (len(blocks) < most and time.perf_counter() - begun + longest < seconds):
            block_begun, block = time.perf_counter(), len(blocks)
            self._fill_for(batch, "whole")
            turns: dict[str, dict[str, Any]] = {}
            for contestant, begin in _order(contestants, block):
                for repeats in range(1 + MOST_REPEATS):
                    begin()
                    turns[contestant] = self._replayed_turn(batch, block) | {"repeats": repeats}
                    if turns[contestant]["stall"] < STALL_SECONDS:
                        break
            blocks.append(turns)
            longest = max(longest, time.perf_counter() - block_begun)
        after, sound = self.estimator(f"after {batch}, {name}")
        states = {"before": before, "after": after}
        row = {"batch": batch, "traffic": name, "table_depth": named, "estimator": states, "estimator_sound": sound}
        return row | {"blocks": blocks}

    def _contestants(self, batch: int, named: int) -> list[Contestant]:
        whole = [depth for depth in self.depths if batch * (depth + 1) <= GRAPH_POSITIONS]
        return [
            ("vllm gate", partial(self._use, "vllm", DEPTH)),
            ("specmargin gate", partial(self._use, "specmargin", None)),
            *((f"depth {depth}", partial(self._use, "whole", depth)) for depth in whole if depth in (named, *TIED)),
            ("controller", partial(self._use, "whole", None)),
            ("vllm gate, honest curve", partial(self._use, "vllm honest", DEPTH)),
        ]

    def _fill_for(self, batch: int, gate: str) -> None:
        self.gates.use(gate)
        if self.engine.requests():
            self.engine.clear()
        self.controlled(gated=gate == "specmargin")
        self.engine.fill(batch, PROMPT_TOKENS)
        self.controlled(gated=gate == "specmargin")

    def _replayed_turn(self, batch: int, block: int) -> dict[str, Any]:
        """All contestants of a block meet the same rounds of the bank."""
        self.settle()
        self.replay.rewind(block)
        self.steps.clear()
        turn = self.turn(GATE_TURN_SECONDS.get(batch, GATE_LATER_SECONDS), settled=True)
        drafts, verified = sum(step[1] for step in self.steps), sum(step[2] for step in self.steps)
        return turn | {"drafts": drafts, "verified": verified}


def _order(contestants: list[Contestant], block: int) -> list[Contestant]:
    """Forwards and backwards by turns, each pair of blocks with another one first: no contestant is always early in a
    block, when contexts are short and the GPU's clock is high, and each follows both of its neighbours."""
    first = block // 2 * 2 % len(contestants)
    rotated = contestants[first:] + contestants[:first]
    return rotated if block % 2 == 0 else rotated[::-1]


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
            phase = phase_of(row, traffic, constant(rate))
            print(phase.name, {name: round(phase.speed(name)) for name in phase.seconds}, flush=True)
            result["faults"] = dict(swing.driver.guard.faults)
            (folder / "swing.json").write_text(json.dumps(result))
    print("DONE swing", flush=True)
    os._exit(0)  # skips the engine's shutdown


def run_gates(folder: Path, seconds: float = GATE_SECONDS) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    swing = GateSwing(json.loads((folder / "gates.job.json").read_text()), folder)
    bank = {name: swing.bank.survival(kind) for kind, name in enumerate(swing.bank.names)}
    result: dict[str, Any] = {
        "what": __doc__,
        "engine": swing.engine.description(),
        "bank": {"label": swing.bank.label, "survival": bank},
        "table": _ranges(swing.table),
        "curves": swing.gates.curves(),
        "rows": [],
    }
    print("depths with graphs:", swing.depths, "curves:", result["curves"], flush=True)
    while (folder / "wait").exists():  # for what shares the machine until then
        time.sleep(0.5)
    begun = time.perf_counter()
    swing.learn(16)
    phases = [(batch, kind) for batch in LOADS for kind in range(len(swing.bank.names))]
    weights = [GATE_WEIGHT.get(batch, 1.0) for batch, _ in phases]
    for number, (batch, kind) in enumerate(phases):
        share = weights[number] / sum(weights[number:])
        left = seconds - (time.perf_counter() - begun)
        try:
            result["rows"].append(swing.play_soundly(batch, kind, left * share))
        except Exception:  # other loads stay
            traceback.print_exc()
            continue
        _show(result["rows"][-1])
        result["faults"] = {"driver": dict(swing.driver.guard.faults), "gate": dict(swing.gates.guard.faults)}
        result["seconds"] = round(time.perf_counter() - begun, 1)
        (folder / "gates.json").write_text(json.dumps(result))
    print("DONE gates", result.get("faults"), flush=True)
    os._exit(0)


def _show(row: dict[str, Any]) -> None:
    """Tokens per second, milliseconds per round, and verified of drafted tokens."""
    for name in sorted(row["blocks"][0]):
        turns = [block[name] for block in row["blocks"]]
        total = {key: sum(turn[key] for turn in turns) for key in ("seconds", "rounds", "tokens", "drafts", "verified")}
        speed, round_ms = total["tokens"] / total["seconds"], total["seconds"] / total["rounds"] * 1e3
        share = total["verified"] / max(total["drafts"], 1)
        asked = dict(sum((Counter(turn["depths"]) for turn in turns), Counter[str]()))
        where = f"{row['batch']:4} {row['traffic']}"
        print(f"{where} {name:24} {speed:9.1f} {round_ms:8.3f} ms {share:.2f} {asked}", flush=True)


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
        make(folder, *map(Path, sys.argv[3:]))
    else:
        {"run": run, "gates": run_gates, "plain": run_plain}[sys.argv[1]](folder, *map(float, sys.argv[3:]))
