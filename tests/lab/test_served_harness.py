"""The parts of `lab/gpu/served.py` that run without an engine."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.gpu import pinning, served
from lab.gpu.served_jobs import RAMP_SECONDS, WINDOW_SECONDS, trace
from lab.live.servers import free_port
from lab.live.step_log import COLUMNS, STEPS, Log, read_steps
from lab.live.trace_client import Planned, send_all

_CHUNK = b'data: {"choices":[{"index":0,"text":"%s","finish_reason":null}]}\n\n'


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Two tokens, then one every 50 ms until `max_tokens`, as a server with speculation sends them."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    wanted = json.loads(await reader.readexactly(length))["max_tokens"]
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + _CHUNK % b" w1 w2")
    with suppress(ConnectionError):
        for _ in range(wanted - 2):
            await asyncio.sleep(0.05)
            whole = _CHUNK % b" w3"
            writer.write(whole[:20])
            await writer.drain()
            writer.write(whole[20:])  # a chunk may come in two reads
        writer.write(b"data: [DONE]\n\n")
    writer.close()


@pytest.fixture
def url() -> Iterator[str]:
    port, ready, stopped = free_port(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with await asyncio.start_server(_stream, "127.0.0.1", port):
            ready.set()
            while not stopped.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10.0)
    yield f"http://127.0.0.1:{port}"
    stopped.set()
    thread.join()


def _sent(*arguments: Any, **options: Any) -> Any:
    """In a thread of its own: a browser test of the same process may have left a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(send_all, *arguments, **options).result()


def test_tokens_are_counted_by_moment_and_what_is_left_at_the_end_is_aborted(url: str) -> None:
    planned = [
        Planned(at_seconds=0.0, prompt_tokens=3, output_tokens=4),
        Planned(at_seconds=0.1, prompt_tokens=3, output_tokens=1000),
        Planned(at_seconds=5.0, prompt_tokens=3, output_tokens=4),  # after the end: not sent
    ]
    begun, (short, long) = _sent(url, "m", planned, vocabulary=9, seconds=1.0, seed="0")
    assert (len(short.token_seconds), short.complete, short.failure) == (4, True, "")
    assert 5 < len(long.token_seconds) < 1000 and not long.complete and not long.failure
    assert long.token_seconds[0] == long.token_seconds[1]  # of one chunk
    assert long.token_seconds[0] >= begun + 0.1 and long.token_seconds[-1] <= begun + 1.2


def test_an_unreachable_server_is_a_failure_of_the_request() -> None:
    planned = [Planned(at_seconds=0.0, prompt_tokens=3, output_tokens=4)]
    _, (answer,) = _sent(f"http://127.0.0.1:{free_port()}", "m", planned, vocabulary=9, seconds=0.5, seed="0")
    assert answer.failure and not answer.token_seconds


def _scheduled(tokens: dict[str, int], new: list[str], depth: int) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        num_spec_tokens_to_schedule=depth,
    )


def test_a_step_is_split_into_prompts_and_verified_drafts(tmp_path: Path) -> None:
    requests = {name: SimpleNamespace(is_prefill_chunk=name == "b") for name in ("a", "b")}
    cache = SimpleNamespace(usage=0.25)
    scheduler = SimpleNamespace(requests=requests, waiting=["c"], running=["a", "b"], kv_cache_manager=cache)
    log = Log()
    log.scheduled(1.0, _scheduled({"a": 100, "b": 50}, ["a", "b"], 3), scheduler)
    log.scheduled(2.0, _scheduled({"a": 4, "b": 50}, [], 3), scheduler)  # before the first one is done
    for tokens in (1, 3):
        log.done({0: SimpleNamespace(outputs=[SimpleNamespace(new_token_ids=[0] * tokens)])})
    with (tmp_path / STEPS).open("w") as out:
        log.write(out)
    steps = read_steps(tmp_path / STEPS, 0.0, 3.0)
    assert list(steps) == list(COLUMNS)
    assert steps["decoding"] == [0, 1] and steps["prompt_tokens"] == [150, 50] and steps["verified"] == [0, 3]
    assert steps["committed"] == [1, 3] and steps["depth"] == [3, 3] and steps["waiting"] == [1, 1]
    assert read_steps(tmp_path / STEPS, 1.5, 3.0)["begun"] == [2.0]


def test_a_trace_is_the_same_for_the_same_seed_and_begins_with_requests_under_way() -> None:
    drawn = trace((1000, 200), 5.0, 20, seed=3)
    assert drawn == trace((1000, 200), 5.0, 20, seed=3) != trace((1000, 200), 5.0, 20, seed=4)
    arrivals = drawn["at_seconds"]
    assert arrivals[0] == 0.0 and arrivals == sorted(arrivals)
    assert len(arrivals) == pytest.approx(20 + 5.0 * (RAMP_SECONDS + WINDOW_SECONDS), rel=0.2)
    assert min(drawn["output_tokens"]) < 100
    assert min(drawn["prompt_tokens"]) >= 500


def test_the_recorded_jobs_have_every_required_cell() -> None:
    job = json.loads(served.JOBS.read_text())
    running = {name: {"kind": "spec"} for name in job["models"]}
    plain = {name: {"kind": "plain"} for name in job["models"]}
    cells = served.cells(job, running) + served.cells(job, plain)
    assert len(cells) == len(set(cells)) == 24
    assert [cell for cell in cells if cell.rsplit("-", 1)[0] not in job["traces"]] == []
    longest = max(map(sum, zip(*(_both(job, name) for name in ("prompt_tokens", "output_tokens")), strict=True)))
    assert longest < job["max_model_len"]


def _both(job: dict[str, Any], name: str) -> list[int]:
    return [tokens for entry in job["traces"].values() for tokens in entry[name]]


def test_an_engine_gets_a_core_of_its_own_and_all_else_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors in four cores; process 11 is the engine of group 10, thread 12 one of its threads."""
    given: dict[int, set[int]] = {}
    siblings = {cpu: [cpu // 2 * 2, cpu // 2 * 2 + 1] for cpu in range(8)}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: given.update({thread: set(cpus)}))
    monkeypatch.setattr(pinning, "_siblings", lambda cpu: siblings[cpu])
    monkeypatch.setattr(pinning, "_processes", lambda group: [10, 11] if group == 10 else [])
    monkeypatch.setattr(pinning, "_threads", lambda process: {10: [10], 11: [11, 12]}[process])
    monkeypatch.setattr(pinning, "_name", lambda process: "VLLM::EngineCor" if process == 11 else "vllm")
    assert pinning.pin([10]) == [2, 3, 4, 5, 6, 7]
    assert given == {10: {2, 3, 4, 5, 6, 7}, 11: {0}, 12: {2, 3, 4, 5, 6, 7}}
    given.clear()
    assert pinning.pin([10, 20, 30]) == list(range(8)) and given == {}  # too few cores


@pytest.mark.parametrize(("listed", "expected"), [("0-1\n", [0, 1]), ("0,8\n", [0, 8]), ("3\n", [3])])
def test_hardware_threads_of_a_core_are_read_as_linux_lists_them(
    listed: str, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0").write_text(listed)
    monkeypatch.setattr(pinning, "_TOPOLOGY", str(tmp_path / "{}"))
    assert pinning._siblings(0) == expected and pinning._siblings(7) == [7]
