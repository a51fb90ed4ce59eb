"""Commands to a process and answers from it, a line of JSON each: both ends, for engines that live side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.live import ROOT


class Child:
    """The caller's end: a module run by this Python. Its first line is its job, its first answer that it is ready."""

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
        """None where it has stopped."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else None

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        found = None
        with suppress(BrokenPipeError):
            self._write(command)
            found = self.read()
        if found is None:
            raise SystemExit(f"the engine stopped; its log: {self.log.name}")
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


def serve(start: Callable[[dict[str, Any]], Callable[[dict[str, Any]], object]]) -> None:
    """The child's end: what `start` makes of the job answers commands until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is not an answer

    def say(found: object) -> None:
        out.write(json.dumps(found) + "\n")
        out.flush()

    answer = start(json.loads(sys.stdin.readline()))
    say({"ready": True})
    for line in sys.stdin:
        say(answer(json.loads(line)))
