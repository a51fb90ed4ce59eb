"""Client and server of a child process that exchange JSON lines, for engines that run side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab import ROOT


class Child:
    """The client: runs a module in a new process and sends its job as first line; the first reply means ready."""

    def __init__(self, module: str, job: Mapping[str, Any], *, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self._write(job)

    def _write(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        """The next reply; None if the process has stopped."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else None

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        reply = None
        with suppress(BrokenPipeError):
            self._write(command)
            reply = self.read()
        if reply is None:
            raise SystemExit(f"the engine stopped; its log: {self.log.name}")
        return reply

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


def serve(start: Callable[[dict[str, Any]], Callable[[dict[str, Any]], object]]) -> None:
    """The server: `start` turns the job into a function that answers commands until stdin is closed."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the engine must not be read as a reply

    def reply(message: object) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    answer = start(json.loads(sys.stdin.readline()))
    reply({"ready": True})
    for line in sys.stdin:
        reply(answer(json.loads(line)))
