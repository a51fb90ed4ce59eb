"""A real server: its metrics, clients that disconnect, and a server without configuration."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.live.models import Pair

from tests.live.conftest import Server


@pytest.fixture(scope="module")
def server(serve: Callable[..., Any], policy: Path) -> Any:
    with serve({"mode": "adaptive", "policy": str(policy)}) as running:
        yield running


def test_metrics_on_its_own_endpoint(server: Server, pair: Pair) -> None:
    response = server.complete(pair.prompts["cpp"][0])
    assert len(response["choices"][0]["token_ids"]) == 40
    metrics = server.metrics()
    for name in ("steps_total", "committed_tokens_total", "decision_seconds_total", "goodput_tokens_per_second"):
        assert metrics.metric(f"specmargin_{name}") > 0
    assert metrics.metric("specmargin_depth_chosen_total") == metrics.metric("specmargin_steps_total")
    assert "# HELP specmargin_hurdle" in metrics.metrics


def test_a_request_may_opt_out(server: Server, pair: Pair) -> None:
    before = server.metrics().metric("vllm:spec_decode_num_draft_tokens_total")
    server.complete(pair.prompts["cpp"][1], vllm_xargs={"specmargin_depth": 0})
    assert server.metrics().metric("vllm:spec_decode_num_draft_tokens_total") == before


def test_clients_that_disconnect(server: Server, pair: Pair) -> None:
    """A short soak: responses are complete, disconnected clients leave nothing behind, nothing fails."""
    prompts = [prompt for category in pair.prompts.values() for prompt in category[:8]]
    lengths: list[int] = []

    def stay(prompt: list[int]) -> None:
        lengths.append(len(server.complete(prompt, max_tokens=24)["choices"][0]["token_ids"]))

    def leave(prompt: list[int]) -> None:
        body = json.dumps({"prompt": prompt, "max_tokens": 200, "stream": True, "ignore_eos": True}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=30) as response:
            response.readline()

    threads = [threading.Thread(target=stay if i % 3 else leave, args=(prompt,)) for i, prompt in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    time.sleep(1.0)
    metrics = server.metrics()
    assert lengths == [24] * sum(1 for i in range(len(prompts)) if i % 3)
    assert metrics.metric("vllm:num_requests_running") == 0
    assert metrics.metric("specmargin_faults_total") == 0
    assert metrics.metric("specmargin_enabled") == 1.0
    assert "Traceback" not in server.log.read_text()


def test_a_server_without_configuration_is_unchanged(serve: Callable[..., Any], pair: Pair) -> None:
    """Installed but not configured: vLLM's scheduler, no Specmargin metrics, no board in any process."""
    with serve(None) as server:
        server.complete(pair.prompts["cpp"][0], max_tokens=8)
        assert "specmargin_" not in server.get("/metrics")
        log = server.log.read_text()
        assert "Specmargin" not in log
        assert "custom scheduler class" not in log
        children = _processes(server.process.pid)
        assert len(children) > 1
        for pid in children:
            assert "specmargin-" not in Path(f"/proc/{pid}/maps").read_text()  # no board is mapped


def _processes(pid: int) -> list[int]:
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            pids += _processes(int(child))
    return pids
