"""vLLM's OpenAI server in a process of its own, for live tests and for what is recorded of servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Process(Protocol):
    """As much of `subprocess.Popen` as is used of a server's."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> object: ...


@dataclass(frozen=True, kw_only=True)
class Running:
    url: str
    process: Process
    log: Path


def start(arguments: Mapping[str, Any], *, folder: Path, environment: Mapping[str, str]) -> Running:
    """The server begins to start; its log is in the folder."""
    return launch(flags(arguments), folder=folder, environment=environment)


def launch(options: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: str = "log.txt") -> Running:
    """The same with options of `vllm serve`; the server runs in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    port, log_file = free_port(), folder / log
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), *options]
    with log_file.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
            start_new_session=True,
        )
    return Running(url=f"http://127.0.0.1:{port}", process=process, log=log_file)


def wait(server: Running, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended: {server.log.read_text()[-6000:]}")
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(server.url + "/health", timeout=60.0).close()
            return
        time.sleep(0.5)
    raise RuntimeError(f"the server did not start: {server.log.read_text()[-6000:]}")


def end(server: Running) -> None:
    """With all of its processes."""
    process = server.process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30.0)


@contextlib.contextmanager
def served(arguments: Mapping[str, Any], *, folder: Path, environment: Mapping[str, str]) -> Iterator[Running]:
    server = start(arguments, folder=folder, environment=environment)
    try:
        wait(server)
        yield server
    finally:
        end(server)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """As vLLM's command line has the arguments of its engine."""
    written: list[str] = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        match value:
            case True:
                written.append(flag)
            case False if name.startswith("disable_"):
                pass  # such flags have no negation
            case False:
                written.append(f"--no-{name.replace('_', '-')}")
            case dict():
                written += [flag, json.dumps(value)]
            case _:
                written += [flag, str(value)]
    return written
