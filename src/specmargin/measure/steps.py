"""Measures steps of a real engine: one process per engine run, followed through the records that it appends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specmargin.errors import InputError
from specmargin.measure.points import Run, Surface, drafter_run, forced_runs, plain_run, scheduling_of, scheduling_runs
from specmargin.measure.records import Records

PROBE = ["-m", "specmargin.measure.vllm.probe"]
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 60.0  # to finish the points of one batch after the deadline
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # runs the engine core in the probe's process, where it can be timed
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # forced drafts need the V1 model runner
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_CAUSES = {
    "SIGILL": "the CPU lacks instructions that the engine uses for the model's dtype, usually bf16; "
    "pass --set dtype=float32",
    "SIGKILL": "the system most likely ran out of memory; lower the largest batch or context, or on a CPU "
    "VLLM_CPU_KVCACHE_SPACE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The request to `measure vllm`."""

    model: str
    surface: Surface
    engine_args: dict[str, Any]
    speculative: dict[str, Any] | None = None
    prompts: tuple[tuple[int, ...], ...] = ()
    routes: bool = True  # the model has experts
    temperature: float = 1.0
    clock: str = "wall"  # or cpu: processor time, which excludes other work on the machine
    steps: int = 5
    repeats: int = 3
    rounds: int = 0  # least number of rounds per point: acceptance varies more than time
    seed: int = 0

    def header(self) -> dict[str, Any]:
        """Settings that must be equal for a measurement to be resumed. The grid may grow."""
        names = ("model", "engine_args", "speculative", "temperature", "clock", "seed")
        return {name: getattr(self, name) for name in names}


# Called with the name of the current run, its number of points and how many are done.
Watcher = Callable[[str, int, int], None]


def check_engine() -> None:
    if find_spec("vllm") is None:
        raise InputError("vLLM is not installed in this Python; install it, or run specmargin where it is")


def measure_steps(order: Order, records: Records, *, deadline: float, log: Path, watch: Watcher) -> None:
    """Measure all missing points, run by run, until the deadline. What was measured stays in the records."""
    plain = plain_run(order.surface)
    measure_run(order, plain, records, deadline=deadline, log=log, watch=watch)
    graph_mode = records.engines().get("none", {}).get("graph_mode", "none")
    runs = forced_runs(order.surface, full_graphs="full" in graph_mode, routes=order.routes)
    if order.speculative is not None:
        runs.append(drafter_run(order.surface, order.speculative))
    if records.engines().get("none", {}).get("gpu"):  # on a CPU vLLM has one runner and no async scheduling
        runs += scheduling_runs(order.surface, order.speculative)
    for run in runs:
        measure_run(order, run, records, deadline=deadline, log=log, watch=watch)


def measure_run(order: Order, run: Run, records: Records, *, deadline: float, log: Path, watch: Watcher) -> None:
    missing = records.missing(run)
    if not missing or time.time() > deadline:
        return
    total, old_records = len(missing), len(list(records.read()))
    watch(run.name, total, 0)
    with tempfile.TemporaryDirectory() as folder, log.open("a", encoding="utf-8") as output:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(_job(order, run, records, deadline)), encoding="utf-8")
        command = [sys.executable, *PROBE, str(job)]
        environment = {**_ENVIRONMENT, **os.environ, **run.environment}
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                _wait(process, run, records, total=total, deadline=deadline, watch=watch)
            finally:
                if process.poll() is None:
                    process.terminate()
    _handle_exit(run, records, process.returncode, log=log, old_records=old_records)


def _wait(
    process: subprocess.Popen[bytes], run: Run, records: Records, *, total: int, deadline: float, watch: Watcher
) -> None:
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        watch(run.name, total, total - len(records.missing(run)))
        if time.time() > deadline + _GRACE_SECONDS:
            error = "stopped: the time limit was reached"
            records.append({"record": "failure", "run": run.name, "error": error, "final": False})
            return


def _handle_exit(run: Run, records: Records, code: int | None, *, log: Path, old_records: int) -> None:
    """Continue after a failed run, unless the others would fail for the same reason.

    The first `old_records` records are older than this run, so a failure among them is not its cause.
    """
    if not code:
        return
    failures = [record for record in list(records.read())[old_records:] if record.get("record") == "failure"]
    if not failures:
        failures = [{"record": "failure", "run": run.name, "error": _exit_reason(code), "final": False}]
        records.append(failures[0])
    if failures[-1]["final"] or run.kind == "none":
        raise InputError(f"{failures[-1]['error']} (run {run.name!r}, output in {log}); what was measured is kept")


def _exit_reason(code: int) -> str:
    """Why an engine ended that recorded no failure; a negative code is a signal."""
    if code > 0:
        return f"the engine ended with exit code {code} and gave no reason"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    cause = f": {_CAUSES[name]}" if name in _CAUSES else ""
    return f"the engine was ended by {name}{cause}"


def _job(order: Order, run: Run, records: Records, deadline: float) -> dict[str, Any]:
    surface = order.surface
    arguments = {
        "max_num_seqs": max(surface.batches),
        "max_model_len": max(surface.contexts) + 512,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "seed": order.seed,
        **_merged(order.engine_args, run.engine_args),
    }
    shared = ("model", "prompts", "temperature", "clock", "steps", "repeats", "rounds", "seed")
    return {
        **{name: getattr(order, name) for name in shared},
        **{name: getattr(run, name) for name in ("name", "kind", "drafts", "counts", "graphs")},
        "engine_args": arguments,
        "scheduling": scheduling_of(run.name),
        "points": [asdict(point) for point in records.missing(run)],
        "max_sequences": max(surface.batches),
        "deadline": deadline,
        "out": str(records.path),
    }


def _merged(user_args: dict[str, Any], run_args: dict[str, Any]) -> dict[str, Any]:
    """The user's engine arguments, overridden by those of a run; dictionaries are merged one level down."""
    merged = {**user_args, **run_args}
    for name, value in run_args.items():
        if isinstance(value, dict) and isinstance(user_args.get(name), dict):
            merged[name] = {**user_args[name], **value}
    return merged
