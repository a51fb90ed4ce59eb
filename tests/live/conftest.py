"""Engines for the live tests, which need vLLM's CPU build: `make test-live` installs it and runs them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab.live import servers
from lab.live.measuring import ENVIRONMENT
from lab.live.models import Pair, random_pair

from tests.conftest import ROOT

DEPTH = 5
LONGEST_FILES = ("doctor", "votes", "measure", "faults", "output", "recipe", "soak", "server", "methods", "capture")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is None:
        skip = pytest.mark.skip(reason="needs vLLM: make test-live")
        for item in items:
            if "live" in Path(str(item.fspath)).parts:
                item.add_marker(skip)
    else:  # the longest files first, so that two workers end at about the same time
        place = {f"test_{name}": number for number, name in enumerate(LONGEST_FILES)}
        items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return random_pair(tmp_path_factory.mktemp("random-moe"))


@pytest.fixture(scope="session")
def plain(run_engine: Callable[..., Result]) -> Result:
    """No speculation, no Specmargin."""
    return run_engine(speculative=False)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that gates by confidence, at prices of this kind of engine. Its quality does not matter here."""
    from lab.live.policies import small_policy  # noqa: PLC0415 (compiled)

    path = tmp_path_factory.mktemp("policy") / "test.policy.json"
    path.write_text(small_policy(DEPTH))
    return path


# --- engines ---


@dataclass(frozen=True, kw_only=True)
class Result:
    tokens: list[list[int]]
    requests: list[dict[str, list[int]] | None]
    metrics: str
    log: str

    def metric(self, name: str) -> float:
        """The sum over labels."""
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", self.metrics, re.MULTILINE)
        assert values, f"{name} is not on /metrics"
        return sum(map(float, values))

    def fault(self, kind: str) -> float:
        counts = re.findall(rf'^specmargin_faults_total{{engine="0",kind="{kind}"}} (\S+)$', self.metrics, re.MULTILINE)
        return sum(map(float, counts))


def engine_arguments(pair: Pair, *, speculative: bool, settings: dict[str, Any] | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(pair.target),
        "dtype": "float32",
        "max_model_len": 320,
        "max_num_seqs": 32,
        "enforce_eager": True,
        "disable_log_stats": False,
    }
    if speculative:
        arguments["speculative_config"] = {
            "method": "draft_model",
            "model": str(pair.draft),
            "num_speculative_tokens": DEPTH,
        }
        arguments["per_request_spec_decode_metrics"] = "detailed"
    if settings is not None:
        arguments["additional_config"] = {"specmargin": settings}
    return arguments


class Jobs:
    """Processes that run `tests.live.job`: one for most tests, and at most one with another `PYTHONPATH`."""

    def __init__(self) -> None:
        self._processes: dict[str | None, subprocess.Popen[str]] = {}

    def ask(self, file: Path, python_path: str | None = None) -> int:
        """The exit code of an engine that has ended, or the process of a server that starts."""
        if python_path not in self._processes:
            for other in set(self._processes) - {None}:
                self._end(other)
            self._processes[python_path] = _job_process(python_path)
        process = self._processes[python_path]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{file}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the process of the engines ended with {process.wait()}"
        return int(answer)

    def end(self) -> None:
        for python_path in list(self._processes):
            self._end(python_path)

    def _end(self, python_path: str | None) -> None:
        self._processes.pop(python_path).communicate(timeout=60)


@dataclass(frozen=True, slots=True)
class Forked:
    """A process that another one started, with what is used of `subprocess.Popen`."""

    pid: int
    handle: int  # readable when the process has ended

    def poll(self) -> int | None:
        return 0 if select.select([self.handle], [], [], 0.0)[0] else None

    def wait(self, timeout: float) -> None:
        if not select.select([self.handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)


def _job_process(python_path: str | None) -> subprocess.Popen[str]:
    environment = os.environ | ENVIRONMENT | ({} if python_path is None else {"PYTHONPATH": python_path})
    command = [sys.executable, "-m", "tests.live.job"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.end()


@pytest.fixture(scope="session")
def run_engine(pair: Pair, jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """Run an engine in its own process on batches of requests, and return its output."""

    def run(
        settings: dict[str, Any] | None = None,
        *,
        batches: list[list[dict[str, Any]]] | None = None,
        speculative: bool = True,
        multiprocess: bool = False,
        fault: str = "",
        without: str = "",
        after_batch: str = "",
        max_tokens: int = 40,
        temperature: float = 0.0,
        linger_seconds: float = 0.0,
        engine: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Result:
        folder = tmp_path_factory.mktemp("job")
        if settings is not None:  # a slow test machine is not a fault
            settings = {"slowest_decision_seconds": 20.0} | settings
        arguments = engine_arguments(pair, speculative=speculative, settings=settings) | (engine or {})
        job = {
            "engine": {name: value for name, value in arguments.items() if value is not None},
            "batches": batches if batches is not None else standard_batches(pair),
            "multiprocess": multiprocess,
            "fault": fault,
            "without": without,
            "after_batch": after_batch,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "linger_seconds": linger_seconds,
            "result": str(folder / "result.json"),
            "log": str(folder / "log.txt"),
            "environment": environment or {},
        }
        (folder / "job.json").write_text(json.dumps(job))
        code = jobs.ask(folder / "job.json", (environment or {}).get("PYTHONPATH"))
        log = (folder / "log.txt").read_text()
        assert code == 0, log[-6000:]
        result = json.loads((folder / "result.json").read_text())
        return Result(tokens=result["tokens"], requests=result["requests"], metrics=result["metrics"], log=log)

    return run


def standard_batches(pair: Pair) -> list[list[dict[str, Any]]]:
    """One sequence, then four, then sixteen, of all categories."""
    mixed = [prompt for row in zip(*pair.prompts.values(), strict=False) for prompt in row]
    sizes = (1, 4, 16)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return [[{"prompt": mixed[int(starts[i]) + j]} for j in range(size)] for i, size in enumerate(sizes)]


# --- servers ---


@pytest.fixture(scope="session")
def served(jobs: Jobs) -> Callable[..., contextlib.AbstractContextManager[servers.Running]]:
    """`lab.live.servers.served`, in a third of its time: what it starts has imported vLLM."""

    @contextmanager
    def run(arguments: dict[str, Any], *, folder: Path, environment: dict[str, str]) -> Iterator[servers.Running]:
        folder.mkdir(parents=True, exist_ok=True)
        port, log = servers.free_port(), folder / "log.txt"
        options = ["--host", "127.0.0.1", "--port", str(port), *servers.flags(arguments)]
        job = folder / "job.json"
        job.write_text(json.dumps({"options": options, "log": str(log), "environment": environment}))
        pid = jobs.ask(job)
        process = Forked(pid, os.pidfd_open(pid))
        server = servers.Running(url=f"http://127.0.0.1:{port}", process=process, log=log)
        try:
            servers.wait(server)
            yield server
        finally:
            servers.end(server)
            os.close(process.handle)

    return run


@dataclass(frozen=True, kw_only=True)
class Server(servers.Running):
    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return str(response.read().decode())

    def complete(self, prompt: list[int], *, max_tokens: int = 40, **more: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        body |= {"return_token_ids": True, **more}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return dict(json.loads(response.read()))

    def metrics(self) -> Result:
        return Result(tokens=[], requests=[], metrics=self.get("/metrics"), log="")


@pytest.fixture(scope="session")
def serve(pair: Pair, served: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    @contextmanager
    def run(
        settings: dict[str, Any] | None, *, speculative: bool = True, environment: dict[str, str] | None = None
    ) -> Iterator[Server]:
        settings = None if settings is None else {"slowest_decision_seconds": 20.0} | settings
        arguments = engine_arguments(pair, speculative=speculative, settings=settings)
        folder = tmp_path_factory.mktemp("server")
        with served(arguments, folder=folder, environment=ENVIRONMENT | (environment or {})) as started:
            yield Server(url=started.url, process=started.process, log=started.log)

    return run


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for what needs a GPU in vLLM's adaptive verification."""
    from tests.live.gate import Event, torch, verification  # noqa: PLC0415 (only where vLLM is installed)

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: Event())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Event())
    monkeypatch.setattr(verification, "stream", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(verification, "_assign_draft_token_budget_compiled", verification._assign_draft_token_budget)
    alone = SimpleNamespace(broadcast_object=lambda curves, **_: curves)
    monkeypatch.setattr(verification, "get_tp_group", lambda: alone)
