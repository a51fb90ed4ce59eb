"""Soak: changing concurrency, and clients that disconnect.

    SPECMARGIN_SOAK_MINUTES=10 .venv-live/bin/python -m pytest tests/live/test_soak.py -s

Half a minute by default. No request is lost or truncated, nothing fails, memory does not grow. Outputs of one prompt
are not compared: rounding depends on the batch, with Specmargin and without.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.live.models import Pair

from tests.live.conftest import Server

MINUTES = float(os.environ.get("SPECMARGIN_SOAK_MINUTES", "0.5"))
CONCURRENCIES = (1, 6, 24, 3, 12, 32)
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Clients:
    """`concurrency` concurrent clients; each sends requests in sequence, and disconnects early from one in four."""

    def __init__(self, server: Server, prompts: list[list[int]]) -> None:
        self.server, self.prompts = server, prompts
        self.concurrency = 1
        self.done = threading.Event()
        self.answers: dict[int, set[tuple[int, ...]]] = {}
        self.count: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(max(CONCURRENCIES))]

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        while not self.done.is_set():
            if number >= self.concurrency:
                time.sleep(0.1)
                continue
            index = chance.randrange(len(self.prompts))
            try:
                self._leave(index) if chance.random() < 0.25 else self._stay(index)
            except Exception as error:
                with self.lock:
                    self.count[f"failed: {error}"] += 1

    def _stay(self, index: int) -> None:
        completion = self.server.complete(self.prompts[index], max_tokens=32)
        with self.lock:
            self.answers.setdefault(index, set()).add(tuple(completion["choices"][0]["token_ids"]))
            self.count["answered"] += 1

    def _leave(self, index: int) -> None:
        body = {"prompt": self.prompts[index], "max_tokens": 250, "stream": True, "ignore_eos": True}
        request = urllib.request.Request(
            self.server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with contextlib.suppress(TimeoutError), urllib.request.urlopen(request, timeout=60) as response:
            response.readline()
        with self.lock:
            self.count["left"] += 1


def test_soak(serve: Callable[..., Any], pair: Pair, policy: Path, tmp_path: Path) -> None:
    capture = {"folder": str(tmp_path / "bank"), "part_seconds": 5.0}
    prompts = [prompt for category in pair.prompts.values() for prompt in category[:12]]
    with serve({"mode": "adaptive", "policy": str(policy), "capture": capture}) as server:
        clients = Clients(server, prompts)
        memory = _swing(server, clients)
        time.sleep(3.0)
        metrics = server.metrics()
        log = server.log.read_text()
    print(f"\n{dict(clients.count)}; memory of the engine by sample: {[round(m / 1e6) for m in memory]} MB")
    assert set(clients.count) <= {"answered", "left"}, clients.count
    assert all(len(answer) == 32 for answers in clients.answers.values() for answer in answers)
    assert metrics.metric("vllm:num_requests_running") == metrics.metric("vllm:num_requests_waiting") == 0
    assert metrics.metric("specmargin_faults_total") == 0
    assert metrics.metric("specmargin_enabled") == 1.0
    assert "Traceback" not in log
    third = max(len(memory) // 3, 1)
    growth = statistics.median(memory[-third:]) / statistics.median(memory[third : 2 * third])
    assert growth < (1.02 if MINUTES >= 5 else 1.10)


def _swing(server: Server, clients: Clients) -> list[float]:
    """Memory of the engine's process, sampled while concurrency changes."""
    memory: list[float] = []
    for thread in clients.threads:
        thread.start()
    until = time.monotonic() + 60.0 * MINUTES
    phase = 0
    while time.monotonic() < until:
        clients.concurrency = CONCURRENCIES[phase % len(CONCURRENCIES)]
        time.sleep(min(MINUTES * 60.0 / 18.0, 10.0))
        memory.append(_resident(server.process.pid))
        phase += 1
    clients.done.set()
    for thread in clients.threads:
        thread.join(timeout=120)
    return memory


def _resident(pid: int) -> float:
    """Bytes of the largest process of the server: the engine."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    sizes = [int(Path(f"/proc/{child}/statm").read_text().split()[1]) * _PAGE for child in [str(pid), *children]]
    return float(max(sizes))
