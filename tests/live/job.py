"""Engines and servers, each in a process of its own: reads jobs from JSON files and writes their results. Run by
`tests/live/conftest.py`.

vLLM's CPU build cannot start twice in a process once Numba is loaded, and a fault must not affect the next test. As
importing vLLM takes longer than the rest of a job, one process imports it and forks another for every job. A server
forks its engine and its worker in turn, as vLLM does on GPUs; its CPU build would start them anew, 20 s of a core each.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

_LONGEST_SECONDS = 280.0
_PER_STEP = ("per_step_accepted", "per_step_drafted")


def main() -> None:
    """Files of jobs come in, one per line; exit codes go out, or the process of a server. Ends with its input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to the standard output
    _import_vllm()
    while line := sys.stdin.readline():
        _forget_servers()
        job = json.loads(Path(line.strip()).read_text())
        pid = os.fork()
        if pid == 0:
            return _listen(job) if "options" in job else _run(job)
        print(pid if "options" in job else _exit_code(pid), file=answers, flush=True)
    return None


def _import_vllm() -> None:
    """Before forking: what engines, workers and servers import sooner or later, as far as this release has it."""
    from vllm import LLM, SamplingParams  # noqa: F401, PLC0415

    with suppress(ImportError):
        import vllm.entrypoints.launchers.api_server.entry  # noqa: PLC0415
        import vllm.model_executor.models.qwen3_moe  # noqa: PLC0415
        import vllm.v1.engine.core  # noqa: PLC0415
        import vllm.v1.worker.cpu_worker  # noqa: F401, PLC0415
    gc.collect()
    gc.freeze()  # a collection would look at all of it again in every process, for a second or two


def _forget_servers() -> None:
    """Those that ended stay in the list of processes until then."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _exit_code(pid: int) -> int:
    until = time.monotonic() + _LONGEST_SECONDS
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(done[1])


def _listen(job: dict[str, Any]) -> None:
    """vLLM's OpenAI server with these options."""
    _leave(Path(job["log"]))
    os.chdir(Path(job["log"]).parent)
    os.environ.update(job["environment"])
    sys.argv = ["vllm", *job["options"]]
    from vllm.entrypoints.launchers.api_server.entry import main as listen  # noqa: PLC0415
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415

    checked = CpuPlatform.check_and_update_config

    def forking(config: Any) -> None:
        checked(config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = staticmethod(forking)
    listen()


def _leave(log: Path) -> None:
    """The process of the jobs, for a group of its own with this log."""
    os.setsid()
    with log.open("w") as out:
        for descriptor in (1, 2):
            os.dup2(out.fileno(), descriptor)


def _run(job: dict[str, Any]) -> None:
    _leave(Path(job["log"]))
    os.environ.update(job["environment"], VLLM_ENABLE_V1_MULTIPROCESSING="1" if job["multiprocess"] else "0")
    from vllm import LLM  # noqa: PLC0415

    if job["without"]:
        _lose(job["without"])
    engine = LLM(**job["engine"])
    if job["fault"]:
        _break(engine, job["fault"])
    _serve(engine, job)


def _serve(engine: Any, job: dict[str, Any]) -> None:
    from prometheus_client import generate_latest  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415

    tokens, requests = [], []
    for batch in job["batches"]:
        parameters = [
            SamplingParams(
                temperature=job["temperature"],
                seed=0 if job["temperature"] else None,
                max_tokens=job["max_tokens"],
                ignore_eos=True,
                extra_args=request.get("extra_args"),
            )
            for request in batch
        ]
        prompts = [{"prompt_token_ids": request["prompt"]} for request in batch]
        for output in engine.generate(prompts, parameters, use_tqdm=False):
            tokens.append(list(output.outputs[0].token_ids))
            metrics_of_request = getattr(output.outputs[0], "spec_decode_metrics", None)  # not in 0.27
            requests.append(
                None if metrics_of_request is None else {name: getattr(metrics_of_request, name) for name in _PER_STEP}
            )
        if job["after_batch"] == "remove capture":
            import shutil  # noqa: PLC0415

            shutil.rmtree(job["engine"]["additional_config"]["specmargin"]["capture"]["folder"], ignore_errors=True)
    metrics = generate_latest().decode()
    result = {"tokens": tokens, "requests": requests, "metrics": metrics}
    _shut_down(engine)
    time.sleep(job["linger_seconds"])
    Path(job["result"]).write_text(json.dumps(result))


def _shut_down(engine: Any) -> None:
    core = engine.llm_engine.engine_core
    core.shutdown()


def _lose(feature: str) -> None:
    """As in a release that lacks a part of this feature."""
    from specmargin.live import parts  # noqa: PLC0415

    report = parts.check_installed("vllm")
    part = next(part for part in report.listed.parts if part.feature == feature and not part.optional)
    problems = (parts.Problem(part=part, why="is not there"),)
    without = replace(report, release="9.9.0", problems=problems)
    setattr(parts, "check_installed", lambda _: without)  # noqa: B010 (before anything imports it)


def _break(engine: Any, fault: str) -> None:
    """Break the policy, in the engine's process."""
    import numpy as np  # noqa: PLC0415

    policy = engine.llm_engine.engine_core.engine_core.scheduler._driver.policy

    def wrong(*_: Any) -> Any:
        match fault:
            case "raises":
                raise ZeroDivisionError("injected")
            case "nonsense":
                return np.array([[1e9, -3.5]])
            case "sleeps":
                time.sleep(0.05)
                return None
        raise ValueError(fault)

    policy.draft = wrong
    policy.observe = wrong if fault == "raises" else policy.observe


if __name__ == "__main__":
    main()
