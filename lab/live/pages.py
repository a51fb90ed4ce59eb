"""Load on a server, and what the server showed meanwhile, in files that `doctor`'s tests play back without an engine.

A file has the pages of settings as they were, several readings of the metrics, and the lines of the log that say
something of load, speculation or settings. The first reading is whole; a later one has only the lines that changed.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_SETTINGS = ("/version", "/v1/models", "/server_info?config_format=json", "/props", "/slots")
_METRICS = "/metrics"
_SECTIONS = tuple(
    f"{name}_config" for name in ("model", "cache", "parallel", "scheduler", "compilation", "speculative", "device")
)
_LONGEST_SETTING = 400
PHASE_SECONDS = 4.0
# What any reader takes of the page (live/engine_metrics.toml), and what it may take some day of load and lengths.
_READ = re.compile(
    r"^(llamacpp|sglang):|^trtllm_|^vllm:(num_requests_(running|waiting)|kv_cache_usage_perc|cache_config_info"
    r"|(generation|prompt)_tokens_(total|cached_total)|prefix_cache_|num_preemptions_total|request_success_total"
    r"|spec_decode_|request_(prompt|generation)_tokens_|request_(queue|prefill|decode)_time_seconds_"
    r"|(iteration_tokens_total|inter_token_latency_seconds|time_to_first_token_seconds|request_params_max_tokens"
    r"|request_time_per_output_token_seconds)_(sum|count))"
)
_UNREAD = re.compile(r"^\S*_created[{ ]|^vllm:request_\w+_time_seconds_bucket|_waiting_by_reason")
_RUNNING = re.compile(r"Engine 00\d:|SpecDecoding|draft acceptance|statistics|eval time|Preempt")
_STARTING = (
    r"non-default args|Initializing a V1|KV cache size|Maximum concurrency|Enforce eager|[Cc]udagraph|CUDA graph"
)
_LOG = re.compile(f"{_RUNNING.pattern}|{_STARTING}")
_LAST_LOG_LINES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clients that each send one request after another. Prompts are token ids, random unless given."""

    clients: int
    prompt_tokens: tuple[int, int] = (32, 96)  # drawn between these; both the same: a benchmark of fixed lengths
    output_tokens: tuple[int, int] = (50, 150)
    vocabulary: int = 4096
    temperature: float = 0.0
    phases: tuple[int, ...] = ()  # so many clients send in turn, each for a while; empty: all of them always


class Clients:
    """Threads that keep a load up until they are stopped."""

    def __init__(self, url: str, load: Load, prompts: list[list[int]] | None = None) -> None:
        self._url, self._load, self._prompts = url, load, prompts
        self._stop = threading.Event()
        self.failures: list[str] = []
        self.completed = 0
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(load.clients)]

    def __enter__(self) -> Clients:
        self._model = json.loads(page(self._url, "/v1/models"))["data"][0]["id"]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=120.0)

    def _run(self, number: int) -> None:
        drawn = random.Random(number)
        while not self._stop.is_set():
            if not self._sends(number):
                self._stop.wait(0.1)
                continue
            try:
                self._send(drawn)
                self.completed += 1
            except (OSError, ValueError) as error:
                self.failures.append(str(error))
                self._stop.wait(1.0)

    def _sends(self, number: int) -> bool:
        phases = self._load.phases
        return not phases or number < phases[int(time.monotonic() / PHASE_SECONDS) % len(phases)]

    def _send(self, drawn: random.Random) -> None:
        body = {
            "model": self._model,
            "prompt": self._prompt(drawn),
            "max_tokens": drawn.randint(*self._load.output_tokens),
            "temperature": self._load.temperature,
            "ignore_eos": True,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + "/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120.0) as reply:
            reply.read()

    def _prompt(self, drawn: random.Random) -> list[int]:
        length = drawn.randint(*self._load.prompt_tokens)
        if self._prompts is not None:
            return drawn.choice(self._prompts)[:length]
        return [drawn.randrange(1, self._load.vocabulary) for _ in range(length)]


@contextlib.contextmanager
def loaded(url: str, load: Load, *, settle_seconds: float, prompts: list[list[int]] | None = None) -> Iterator[Clients]:
    """Inside, the load is up and has settled; afterwards every request has ended."""
    with Clients(url, load, prompts) as clients:
        time.sleep(settle_seconds)
        yield clients


def page(url: str, path: str) -> str:
    with urllib.request.urlopen(url + path, timeout=60.0) as reply:
        return str(reply.read().decode())


def recorded(url: str, *, seconds: float, readings: int, about: dict[str, Any], log: Path | None) -> dict[str, Any]:
    """What the server shows while it is under load; `about` says what was done to it, for whoever reads the file."""
    begun = time.monotonic()
    taken: list[tuple[float, list[str]]] = []
    for number in range(readings):
        time.sleep(max(begun + seconds * number / (readings - 1) - time.monotonic(), 0.0))
        text = page(url, _METRICS)
        taken.append((time.monotonic() - begun, _read_lines(text)))
    return {
        "about": about,
        "pages": dict(_settings(url)),
        "readings": _changes(taken),
        "log": [] if log is None else _log_lines(log),
    }


def about(load: Load, **more: Any) -> dict[str, Any]:
    return more | {"load": asdict(load)}


def _read_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if _READ.search(line) and not _UNREAD.search(line)]


def _changes(taken: list[tuple[float, list[str]]]) -> list[dict[str, Any]]:
    """Lines that did not change are left out, and buckets between the first reading and the last."""
    written: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    for number, (at_seconds, lines) in enumerate(taken):
        ends = number in (0, len(taken) - 1)
        now = {line.rsplit(" ", 1)[0]: line for line in lines if ends or "_bucket" not in line}
        changed = [line for name, line in now.items() if shown.get(name) != line]
        written.append({"at_seconds": round(at_seconds, 3), "metrics": changed})
        shown |= now
    return written


def _settings(url: str) -> Iterator[tuple[str, Any]]:
    for path in _SETTINGS:
        with contextlib.suppress(urllib.error.URLError, ValueError, KeyError, TypeError):
            found = json.loads(page(url, path))
            yield path, _told(found) if "server_info" in path else found


def _told(info: Any) -> Any:
    """Of vLLM's settings, those that readers take: numbers and words of these sections, and the name of the GPU."""
    config = info["vllm_config"]
    sections = {name: _plain(config[name]) for name in _SECTIONS if isinstance(config.get(name), dict)}
    gpus = (info.get("system_env") or {}).get("nvidia_gpu_models")
    return {"vllm_config": sections, "system_env": {"nvidia_gpu_models": gpus}}


def _plain(section: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in section.items() if not isinstance(value, dict)}
    return {name: value for name, value in plain.items() if len(json.dumps(value)) < _LONGEST_SETTING}


def _log_lines(log: Path) -> list[str]:
    """What it said at the start, and lately of its load."""
    lines = [
        line
        for line in log.read_text(errors="replace").splitlines()
        if _LOG.search(line) and not re.search(r"it/s|s/it", line)
    ]
    running = [line for line in lines if _RUNNING.search(line)]
    return [line for line in lines if not _RUNNING.search(line)] + running[-_LAST_LOG_LINES:]


def without_paths(recording: dict[str, Any], folder: Path, name: str = "/models") -> dict[str, Any]:
    """The same without the names of this machine's folders."""
    return dict(json.loads(json.dumps(recording).replace(str(folder), name)))
