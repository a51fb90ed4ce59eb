"""Drawings as SVG, made by other processes.

vl-convert holds the interpreter lock while it draws (0.2 s) and takes a second to start. Worker processes draw while
this one computes the next figure, and stay for the next report.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import IO, Any, cast

from specmargin.caches import made_once

_WORKER = """
import json, sys, vl_convert
for line in sys.stdin:
    try:
        reply = {"svg": vl_convert.vegalite_to_svg(json.loads(line))}
    except Exception as error:
        reply = {"error": str(error)}
    print(json.dumps(reply), flush=True)
"""
_MOST = 2  # processes: a report then waits for its figures, not for their drawing


class Drawers:
    """A few worker processes, each drawing one figure at a time."""

    def __init__(self, count: int) -> None:
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._all = [_Worker() for _ in range(count)]
        for worker in self._all:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(max_workers=count, thread_name_prefix="drawing")

    def draw(self, spec: Mapping[str, Any], *, drawn: Callable[[], None] = lambda: None) -> Future[str]:
        """The SVG of a Vega-Lite specification, once a worker has drawn it; `drawn` is called then, in any thread."""
        return self._threads.submit(self._draw, json.dumps(spec), drawn)

    def _draw(self, spec: str, drawn: Callable[[], None]) -> str:
        worker = self._idle.get()
        try:
            return worker.draw(spec)
        finally:
            self._idle.put(worker)
            drawn()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.close()


class _Worker:
    """A process that reads specifications line by line; started again after a crash."""

    def __init__(self) -> None:
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def draw(self, spec: str) -> str:
        if self._process.poll() is not None:
            self._process = self._start()
        to, back = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        to.write(f"{spec}\n")
        to.flush()
        line = back.readline()
        if not line:
            raise RuntimeError("the process that draws figures ended")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"vl-convert cannot draw a figure: {reply['error']}")
        return str(reply["svg"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()  # closes its pipes


@made_once(maxsize=1)
def drawers() -> Drawers:
    """Those of this process, started at the first call."""
    made = Drawers(max(1, min(_MOST, (os.cpu_count() or 1) - 1)))  # one processor computes the figures
    atexit.register(made.close)
    return made
