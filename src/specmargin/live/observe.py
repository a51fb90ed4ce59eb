"""A running server, observed over some seconds by its own metrics: means of gauges, differences of counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

from specmargin.errors import EngineError
from specmargin.live.engine_metrics import EngineReading, read_engine
from specmargin.live.observation import Moment, Observation, ServerSettings
from specmargin.live.server import Server
from specmargin.live.server_settings import read_settings

_READINGS = 10  # gauges are means over so many readings; counters need the first and the last alone
_FEW_REQUESTS = 4  # fewer say nothing of whether lengths are all alike
_NOT_SHOWN = {
    "vllm": ("clocks of the GPU", "sampling of requests"),
    "sglang": ("acceptance by position", "clocks of the GPU", "sampling of requests"),
    "trtllm": ("lengths of requests", "preemptions", "clocks of the GPU", "sampling of requests"),
    "llamacpp": ("lengths of requests", "use of the KV cache", "clocks of the GPU"),
}

_PAGE_SECONDS = 20.0  # more than `watch` waits: a server that is asked about because it is slow may answer slowly

#: As `answers/verb.py` has it.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class IdleError(EngineError):
    """The server generated nothing while it was observed."""


def observe_server(
    url: str, *, seconds: float = 10.0, progress: Progress = lambda *_: nullcontext(lambda _: None)
) -> Observation:
    """Raises `IdleError` if nothing ran, and an `EngineError` if the server restarted meanwhile."""
    server = Server.from_address(url, timeout_seconds=_PAGE_SECONDS)
    readings = [read_engine(server)]
    with progress(f"reading {server.base}", _READINGS) as advance:
        for _ in range(_READINGS):
            time.sleep(seconds / _READINGS)
            readings.append(read_engine(server, only=(readings[0].engine,)))
            advance(1)
    return observation(readings, read_settings(server, readings[-1]))


def observation(readings: Sequence[EngineReading], settings: ServerSettings) -> Observation:
    first, last = readings[0], readings[-1]
    counted = last.since(first)
    if counted is None:
        raise EngineError(f"{last.url}: the server restarted between two readings; ask again")
    seconds = last.at_seconds - first.at_seconds
    _require_traffic(readings, counted, seconds)
    seen = Observation(
        engine=last.engine,
        source=last.url.removesuffix("/metrics").removesuffix("/prometheus"),
        settings=settings,
        seconds=seconds,
        replicas=last.replicas,
        **_load(readings, counted, seconds),
        **_requests(counted),
        **_speculation(readings, counted),
        speculates=True if counted.drafts or last.accepted_by_position else settings.speculates,
        moments=tuple(_moment(before, now, first.at_seconds) for before, now in pairwise(readings)),
        not_shown=_NOT_SHOWN[last.engine],
    )
    return _estimated(seen, _mean(readings, "decoding"), _mean(readings, "context_sum"))


def _require_traffic(readings: Sequence[EngineReading], counted: EngineReading, seconds: float) -> None:
    running = (_mean(readings, "running") or 0.0) + (_mean(readings, "waiting") or 0.0)
    if counted.counters.get("generated", 0.0) > 0.0 or (running and "generated" not in counted.counters):
        return
    if not running:
        raise IdleError(f"{counted.url}: the server is idle: send it traffic, then ask again")
    late = "" if counted.engine == "vllm" else f"; {counted.names.title} counts tokens when a request ends"
    raise IdleError(
        f"{counted.url}: {running:.0f} requests, but no token counted in {seconds:.0f} s{late}: observe it for longer"
    )


def _load(readings: Sequence[EngineReading], counted: EngineReading, seconds: float) -> dict[str, Any]:
    passes = [counted.counters.get(kind, 0.0) for kind in ("graph_passes", "eager_passes")]
    steps = counted.counters.get("iteration_count", sum(passes))
    hit_rate = _ratio(counted, "prefix_hits", "prefix_queries")
    return {
        **{name: _mean(readings, name) for name in ("running", "waiting", "kv_share", "distinct_experts")},
        "steps_per_second": steps / seconds / counted.replicas if steps and seconds > 0.0 else None,
        "graph_share": passes[0] / sum(passes) if sum(passes) else None,
        "sequences_per_step": _ratio(counted, "between_outputs_count", "iteration_count"),
        "seconds_per_round": _mean_of(counted, "between_outputs") or _mean(readings, "step_seconds"),
        "generated_tokens_per_second": _per(counted, "generated", seconds),
        "prompt_tokens_per_second": _computed_prompt(counted, seconds),
        "preemptions": counted.counters.get("preemptions"),
        "cached_prompt_share": _mean(readings, "cached_prompt_share") if hit_rate is None else hit_rate,
    }


def _requests(counted: EngineReading) -> dict[str, Any]:
    """Of those that ended in the interval, but for the time per token."""
    return {
        "requests": counted.counters.get("requests", counted.counters.get("output_per_request_count")),
        "ended_at_limit": _ratio(counted, "requests_at_limit", "requests"),
        "prompt_tokens_per_request": _mean_of(counted, "prompt_per_request"),
        "output_tokens_per_request": _mean_of(counted, "output_per_request"),
        "equal_prompts": _one_bucket(counted, "prompt_per_request"),
        "equal_outputs": _one_bucket(counted, "output_per_request"),
        "seconds_per_output_token": _seconds_per_output_token(counted),
        "seconds_to_first_token": _mean_of(counted, "first_token_seconds"),
    }


def _speculation(readings: Sequence[EngineReading], counted: EngineReading) -> dict[str, Any]:
    first_position = counted.drafted_by_position.get(0, 0.0)
    drafted = sum(counted.drafted_by_position.values()) / first_position if first_position else None
    length = _accepted_per_round(counted)
    return {
        "rounds": counted.drafts if first_position == 0.0 else first_position,
        "drafted_per_round": _ratio(counted, "draft_tokens", "drafts") if drafted is None else drafted,
        "accepted_share": _ratio(counted, "accepted_tokens", "draft_tokens"),
        "accept_length": _mean(readings, "accept_length") if length is None else length,
        "survival": tuple(share for share, _ in counted.survival_by_position),
    }


def _estimated(seen: Observation, decoding: float | None, context_sum: float | None) -> Observation:
    """What the server does not count, worked out from what it does."""
    guesses = {
        "sequences_per_step": None if decoding is None else decoding / seen.replicas,
        "context": context_sum / seen.running if context_sum and seen.running else _context(seen),
        "seconds_per_round": _seconds_per_round(seen),
        "generated_tokens_per_second": _generated(seen, decoding),
    }
    missing = [name for name, guess in guesses.items() if guess is not None and getattr(seen, name) is None]
    made: dict[str, Any] = {name: guesses[name] for name in missing}
    return replace(seen, **made, estimated=tuple(made))


def _generated(seen: Observation, decoding: float | None) -> float | None:
    if not decoding or not seen.seconds_per_round:
        return None
    return decoding * (seen.accept_length or 1.0) / seen.seconds_per_round


def _seconds_per_round(seen: Observation) -> float | None:
    if seen.seconds_per_output_token is None or (seen.speculates and seen.accept_length is None):
        return None
    return seen.seconds_per_output_token * (seen.accept_length or 1.0)


def _context(seen: Observation) -> float | None:
    """Halfway through the requests that ended; else from the KV cache in use, too low where prompts share blocks."""
    if seen.prompt_tokens_per_request is not None and seen.output_tokens_per_request is not None:
        return seen.prompt_tokens_per_request + seen.output_tokens_per_request / 2.0
    room = seen.settings.kv_tokens
    return seen.kv_share * room * seen.replicas / seen.running if seen.kv_share and room and seen.running else None


def _one_bucket(counted: EngineReading, histogram: str) -> bool | None:
    """Whether all requests of the interval lie between two bounds of the histogram."""
    total = counted.counters.get(f"{histogram}_count", 0.0)
    below = sorted(count for (name, _), count in counted.buckets.items() if name == histogram)
    if total < _FEW_REQUESTS or not below:
        return None
    return all(count in (0.0, below[-1]) for count in below)


def _mean(readings: Sequence[EngineReading], gauge: str) -> float | None:
    values = [reading.gauges[gauge] for reading in readings if gauge in reading.gauges]
    return sum(values) / len(values) if values else None


def _ratio(counted: EngineReading, part: str, whole: str) -> float | None:
    whole_count = counted.counters.get(whole, 0.0)
    return counted.counters[part] / whole_count if whole_count > 0.0 and part in counted.counters else None


def _mean_of(counted: EngineReading, histogram: str) -> float | None:
    return _ratio(counted, f"{histogram}_sum", f"{histogram}_count")


def _per(counted: EngineReading, counter: str, seconds: float) -> float | None:
    return counted.counters[counter] / seconds if counter in counted.counters and seconds > 0.0 else None


def _computed_prompt(counted: EngineReading, seconds: float) -> float | None:
    prompt, cached = counted.counters.get("prompt"), counted.counters.get("prompt_cached", 0.0)
    return None if prompt is None or seconds <= 0.0 else max(prompt - cached, 0.0) / seconds


def _seconds_per_output_token(counted: EngineReading) -> float | None:
    """Of all tokens of these seconds after a request's first; else of the requests that ended in them."""
    tokens = counted.counters.get("generated", 0.0) - counted.counters.get("first_token_seconds_count", 0.0)
    if "between_outputs_sum" in counted.counters and tokens > 0.0 and counted.engine == "vllm":
        return counted.counters["between_outputs_sum"] / tokens
    return _mean_of(counted, "output_token_seconds")


def _accepted_per_round(counted: EngineReading) -> float | None:
    """Of the interval; None where the engine has a gauge alone."""
    accepted = _ratio(counted, "accepted_tokens", "drafts")
    if accepted is not None:
        return 1.0 + accepted
    return 1.0 + sum(share for share, _ in rows) if (rows := counted.survival_by_position) else None


def _moment(before: EngineReading, now: EngineReading, start_seconds: float) -> Moment:
    counted, seconds = now.since(before) or now, now.at_seconds - before.at_seconds
    running, context_sum = now.gauges.get("running"), now.gauges.get("context_sum")
    length, batch = _accepted_per_round(counted), _ratio(counted, "between_outputs_count", "iteration_count")
    return Moment(
        at_seconds=now.at_seconds - start_seconds,
        running=running,
        sequences_per_step=None if batch is None else batch * now.replicas,
        seconds_per_round=_mean_of(counted, "between_outputs"),
        accept_length=now.accept_length if length is None else length,
        context=context_sum / running if context_sum and running else None,
        generated_tokens_per_second=_per(counted, "generated", seconds),
        prompt_tokens_per_second=_computed_prompt(counted, seconds),
    )
