"""One trace played on a server: when the tokens of each request came, and what every step of the engine did."""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.live.pages import page
from lab.live.step_log import STEPS, read_steps
from lab.live.trace_client import Answered, Planned, send_all

IDLE_SECONDS, FLUSH_SECONDS = 20.0, 1.2
MODEL = "m"  # as the servers name it
_TRACE = ("at_seconds", "prompt_tokens", "output_tokens")
_METRICS = ("num_preemptions_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    folder: Path  # that of its log of steps


def record(
    server: Server, trace: Mapping[str, Any], *, vocabulary: int, ramp_seconds: float, window_seconds: float
) -> dict[str, Any]:
    """Play the trace up to the end of the window, then abort what is left."""
    planned = [Planned(**dict(zip(_TRACE, row, strict=True))) for row in zip(*map(trace.get, _TRACE), strict=True)]
    seconds = ramp_seconds + window_seconds
    before, asked = _counters(server.url), time.process_time()
    begun, answers = send_all(server.url, MODEL, planned, vocabulary=vocabulary, seconds=seconds, seed=str(time.time()))
    client_seconds = time.process_time() - asked
    after = _counters(server.url)
    wait_idle(server.url)
    time.sleep(FLUSH_SECONDS)  # the engine writes its steps when it is idle
    return {
        "ramp_seconds": ramp_seconds,
        "window_seconds": window_seconds,
        "cache": _cache(server.url),
        "counters": {name: after[name] - before.get(name, 0.0) for name in after},
        "client_processor_seconds": round(client_seconds, 2),
        "requests": _requests(begun, answers),
        "tokens_by_second": _by_second(begun, answers, int(seconds)),
        "steps": _compact(read_steps(server.folder / STEPS, begun, begun + seconds), begun),
    }


def write_cell(folder: Path, recorded: Mapping[str, Any]) -> None:
    text = json.dumps(recorded, separators=(",", ":"))
    (folder / f"{recorded['cell']}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def wait_idle(url: str) -> None:
    until = time.monotonic() + IDLE_SECONDS
    while _gauge(url, "num_requests_running") + _gauge(url, "num_requests_waiting") > 0.0:
        if time.monotonic() > until:
            raise RuntimeError("requests are left in the engine")
        time.sleep(0.1)


def _gauge(url: str, name: str) -> float:
    lines = [line for line in page(url, "/metrics").splitlines() if line.startswith(f"vllm:{name}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def _counters(url: str) -> dict[str, float]:
    wanted = ("vllm:spec_decode_num_", *(f"vllm:{name}" for name in _METRICS))
    found: dict[str, float] = {}
    for line in page(url, "/metrics").splitlines():
        if line.startswith(wanted) and "_created" not in line:
            name, value = line.rsplit(" ", 1)
            position = name.partition('position="')[2].partition('"')[0]
            key = name.partition("{")[0].removeprefix("vllm:") + (f":{position}" if position else "")
            found[key] = found.get(key, 0.0) + float(value)
    return found


def _cache(url: str) -> dict[str, str]:
    line = next((line for line in page(url, "/metrics").splitlines() if line.startswith("vllm:cache_config_info{")), "")
    pairs = [part.partition("=") for part in line.partition("{")[2].rpartition("}")[0].split('",')]
    return {name: value.strip('"') for name, _, value in pairs if name in ("num_gpu_blocks", "block_size")}


# --- as columns ---


def _requests(begun: float, answers: list[Answered]) -> dict[str, list[Any]]:
    """Seconds since the start of the trace; null: no token came."""

    def since(moment: float | None) -> float | None:
        return None if moment is None or math.isnan(moment) else round(moment - begun, 5)

    return {
        "at_seconds": [answer.planned.at_seconds for answer in answers],
        "sent_seconds": [since(answer.sent) for answer in answers],
        "prompt_tokens": [answer.planned.prompt_tokens for answer in answers],
        "output_tokens": [answer.planned.output_tokens for answer in answers],
        "first_seconds": [since(answer.token_seconds[0] if answer.token_seconds else None) for answer in answers],
        "last_seconds": [since(answer.token_seconds[-1] if answer.token_seconds else None) for answer in answers],
        "received_tokens": [len(answer.token_seconds) for answer in answers],
        "complete": [int(answer.complete) for answer in answers],
        "failures": [answer.failure for answer in answers if answer.failure][:5],
    }


def _by_second(begun: float, answers: list[Answered], seconds: int) -> list[int]:
    counts = [0] * seconds
    for answer in answers:
        for moment in answer.token_seconds:
            counts[min(max(int(moment - begun), 0), seconds - 1)] += 1
    return counts


def _compact(steps: dict[str, list[Any]], begun: float) -> dict[str, list[Any]]:
    """Times as whole microseconds: of `begun` since the step before, of `ended` since its own begin."""
    starts = [round(1e6 * (moment - begun)) for moment in steps["begun"]]
    ends = [round(1e6 * (moment - begun)) for moment in steps["ended"]]
    gaps = [now - before for before, now in zip([0, *starts], starts, strict=False)]
    times = {"begun_us": gaps, "took_us": [end - at for at, end in zip(starts, ends, strict=True)]}
    return times | {name: values for name, values in steps.items() if name not in ("begun", "ended")}


def said(recorded: dict[str, Any]) -> str:
    requests, ramp = recorded["requests"], int(recorded["ramp_seconds"])
    tokens, steps = recorded["tokens_by_second"][ramp:], recorded["steps"]
    late = [sent - at for sent, at in zip(requests["sent_seconds"], requests["at_seconds"], strict=True) if sent]
    spans = zip(requests["first_seconds"], requests["at_seconds"], strict=True)
    first = sorted(first - at for first, at in spans if first is not None)
    return (
        f"{recorded['cell']}: {len(requests['at_seconds'])} requests, {sum(requests['complete'])} complete, "
        f"{len(requests['failures'])} failed, {sum(tokens) / max(len(tokens), 1):,.0f} tokens/s, median TTFT "
        f"{1e3 * first[len(first) // 2] if first else float('nan'):.0f} ms, {len(steps['took_us'])} steps of "
        f"{sum(steps['sequences']) / max(len(steps['took_us']), 1):.1f} sequences; client "
        f"{recorded['client_processor_seconds']:.1f} s of processor, at most {1e3 * max(late, default=0.0):.0f} ms late"
    )
