"""`simulate` against vLLM 0.32 servers under load on an H200, recorded for `doctor`.

    python -m lab.validation.recorded_servers

The loads of `tests/recordings/vllm-h200-*.json`: an API server with Qwen3-30B-A3B and an EAGLE-3 head, dummy weights,
synthetic acceptance, uniform routing, and clients that send their next request when the last one ends. Each is
simulated with the clients, lengths, table, acceptance, KV blocks and graphs of its flags, at bundled prices, and means
of 12 seconds are compared. The time per kernel launch of that host was not measured: three values are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lab import ROOT
from lab.terminal import console, note, run, table, tracked
from specmargin.decisions.pricer import Pricer
from specmargin.policies.policy import ScheduledDepth
from specmargin.prices.launches import Graph
from specmargin.prices.model import EngineTime
from specmargin.simulator.policies import PolicyChoice
from specmargin.simulator.results import Result
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.verbs.simulate.serving import serving_of

RECORDINGS = sorted((ROOT / "tests" / "recordings").glob("vllm-h200-*.json"))
#: Microseconds per launch: of the bundled server, and of two virtual hosts with an H200 (docs/results/rounds.md).
LAUNCHES = (28.0, 63.5, 76.0)
METRICS = ("tok/s", "TTFT", "TPOT")
_MOST_SEQUENCES = 256
_SUMS = {"TTFT": "time_to_first_token_seconds", "TPOT": "request_time_per_output_token_seconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A server under one load: tokens per second, and mean times in milliseconds."""

    name: str
    clients: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    speculation: Mapping[str, Any]
    compilation: Mapping[str, Any]
    eager: bool
    kv_blocks: int
    measured: Mapping[str, float]

    @property
    def depth(self) -> int:
        return int(self.speculation["num_speculative_tokens"])

    @property
    def depth_by_batch(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        depths = np.zeros(_MOST_SEQUENCES + 1, dtype=np.int64)
        whole = [[1, _MOST_SEQUENCES, self.depth]]
        for first, last, depth in self.speculation.get("num_speculative_tokens_per_batch_size") or whole:
            depths[first : last + 1] = depth
        return depths

    def graphs(self, time: EngineTime) -> EngineTime:
        """What the flags say about CUDA graphs."""
        if self.eager:
            none = Graph.EAGER
            time = replace(time, plain_graph=none, verify_graph=none, prompt_graph=none)
            return replace(time, first_draft_graph=none, draft_graph=none)
        if self.compilation.get("cudagraph_mode") == "PIECEWISE":
            pieces = Graph.PIECEWISE
            time = replace(time, plain_graph=pieces, verify_graph=pieces, first_draft_graph=pieces)
            time = replace(time, draft_graph=Graph.COMPILED)
        if self.speculation.get("enforce_eager"):
            time = replace(time, first_draft_graph=Graph.COMPILED, draft_graph=Graph.COMPILED)
        sizes = self.compilation.get("cudagraph_capture_sizes")
        return time if not sizes else replace(time, graph_limit=max(sizes))


def recorded(path: Path) -> Recorded:
    file = json.loads(path.read_text(encoding="utf-8"))
    flags, load = file["about"]["flags"], file["about"]["load"]

    def given(flag: str) -> Mapping[str, Any]:
        return json.loads(flags[flags.index(flag) + 1]) if flag in flags else {}

    return Recorded(
        name=path.stem.removeprefix("vllm-h200-"),
        clients=load["clients"],
        prompt_tokens=tuple(load["prompt_tokens"]),
        output_tokens=tuple(load["output_tokens"]),
        speculation=given("--speculative-config"),
        compilation=given("--compilation-config"),
        eager="--enforce-eager" in flags,
        kv_blocks=file["pages"]["/server_info?config_format=json"]["vllm_config"]["cache_config"]["num_gpu_blocks"],
        measured=_means(file["readings"]),
    )


def _means(readings: list[dict[str, Any]]) -> dict[str, float]:
    """Between the first reading and the last; a later reading has only the lines that changed."""
    shown: dict[str, float] = {}
    first: dict[str, float] = {}
    for number, reading in enumerate(readings):
        shown |= {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in reading["metrics"]}
        first = first or (dict(shown) if number == 0 else {})

    def grown(name: str) -> float:
        pattern = re.compile(rf"vllm:{name}[{{ ]")
        return sum(value - first.get(line, 0.0) for line, value in shown.items() if pattern.match(f"{line} "))

    seconds = readings[-1]["at_seconds"] - readings[0]["at_seconds"]
    times = {metric: 1e3 * grown(f"{name}_sum") / grown(f"{name}_count") for metric, name in _SUMS.items()}
    return {"tok/s": grown("generation_tokens_total") / seconds} | times


def predicted(server: Recorded, launch_microseconds: float) -> dict[str, float]:
    serving = _serving(server, launch_microseconds)
    policy = ScheduledDepth(name="table", depth_by_batch=server.depth_by_batch)
    choice = PolicyChoice(name="table", policy=policy, held_depth=server.depth)
    return _middle(simulate(serving, choice=choice, log_steps=True))


def _serving(server: Recorded, launch_microseconds: float) -> Serving:
    prompt, output = server.prompt_tokens, server.output_tokens
    request = SimulateRequest.model_validate(
        {
            "model": "qwen3-30b-a3b",
            "gpu": "h200",
            "engine": "vllm",
            "drafter": "eagle3",
            "acceptance": ",".join(map(str, server.speculation["synthetic_acceptance_rates"])),
            "routing": "uniform",
            "depth": server.depth,
            "context": sum(prompt) // 2 + sum(output) // 4,
            "isl": {"least": prompt[0], "most": prompt[1]},
            "osl": {"least": output[0], "most": output[1]},
            "concurrency": server.clients,
            "requests": max(20 * server.clients, 200),
            "policy": "none",
            "max_num_batched_tokens": 8192,
            "max_num_seqs": _MOST_SEQUENCES,
        }
    )
    serving = serving_of(request, Path())
    time = server.graphs(replace(serving.scenario.engine_time, kernel_launch_seconds=launch_microseconds * 1e-6))
    pricer = Pricer(replace(serving.scenario, engine_time=time))
    return replace(serving, pricer=pricer, engine=replace(serving.engine, kv_blocks=server.kv_blocks))


def _middle(result: Result) -> dict[str, float]:
    """Means over the middle half of the steps, as of a server that has settled."""
    steps, requests = result.steps, result.requests
    begin, end = (float(steps["start_seconds"][len(steps) * quarter // 4]) for quarter in (1, 3))
    within = (steps["start_seconds"] >= begin) & (steps["start_seconds"] < end)
    first, finished = requests["first_token_seconds"], requests["finish_seconds"]
    begun, ended = ((times >= begin) & (times <= end) for times in (first, finished))
    return {
        "tok/s": float(steps["committed"][within].sum() / (end - begin)),
        "TTFT": 1e3 * float((first - requests["arrival_seconds"])[begun].mean()),
        "TPOT": 1e3 * float(np.nanmean(result.tpot_by_request[ended])),
    }


def errors(server: Recorded, launch_microseconds: float) -> dict[str, float]:
    """Predicted over measured, less one, by metric."""
    found = predicted(server, launch_microseconds)
    return {metric: found[metric] / server.measured[metric] - 1.0 for metric in METRICS}


def show(out: Console) -> None:
    servers = [recorded(path) for path in RECORDINGS]
    found: dict[float, list[dict[str, float]]] = {launch: [] for launch in LAUNCHES}
    for launch, server in tracked("servers", [(launch, server) for launch in LAUNCHES for server in servers]):
        found[launch].append(errors(server, launch))
    seen = [heading for metric in METRICS for heading in (metric, *(f"{launch:g}" for launch in LAUNCHES))]
    shown = table("Servers on an H200: measured means, and errors by microseconds per kernel launch", ["server"], seen)
    for i, server in enumerate(servers):
        cells = [
            cell
            for metric in METRICS
            for cell in (f"{server.measured[metric]:,.1f}", *(f"{found[x][i][metric]:+.0%}" for x in LAUNCHES))
        ]
        shown.add_row(server.name, *cells)
    medians = [cell for metric in METRICS for cell in ("", *(_median(found[x], metric) for x in LAUNCHES))]
    shown.add_row("median absolute error", *medians)
    out.print(shown)
    note(out, "Times in ms. The simulator was changed with these loads in view: they are not held out.")


def _median(found: list[dict[str, float]], metric: str) -> str:
    return f"{np.median([abs(error[metric]) for error in found]):.0%}"


def main() -> None:
    show(console())


if __name__ == "__main__":
    run(main, __doc__)
