"""A running server, observed over some seconds by its own metrics: means of gauges, differences of counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

from specmargin.errors import EngineError
from specmargin.live.engine_metrics import EngineReading, read_engine
from specmargin.live.observation import Moment, Observation, ServerSettings
from specmargin.live.server import Server
from specmargin.live.server_settings import read_settings

_READINGS = 10  # gauges are means over so many readings; counters need the first and the last alone
_NOT_SHOWN = {
    "llamacpp": ("steps", "context lengths"),
}

#: As `answers/verb.py` has it.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class IdleError(EngineError):
    """The server generated nothing while it was observed."""


def observe_server(
    url: str, *, seconds: float = 10.0, progress: Progress = lambda *_: nullcontext(lambda _: None)
) -> Observation:
    """Raises `IdleError` if nothing ran, and an `EngineError` if the server restarted meanwhile."""
    server = Server.from_address(url)
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
    running, waiting = _mean(readings, "running"), _mean(readings, "waiting")
    if not running and not waiting and not counted.counters.get("generated"):
        raise IdleError(f"{last.url}: the server is idle: send it traffic, then ask again")
    prompt = _mean_of(counted, "prompt_per_request")
    output = _mean_of(counted, "output_per_request")
    kv_share = _mean(readings, "kv_share")
    accepted = _accepted_per_round(counted)
    return Observation(
        engine=last.engine,
        source=last.url.removesuffix("/metrics").removesuffix("/prometheus"),
        settings=settings,
        seconds=seconds,
        replicas=last.replicas,
        running=running,
        waiting=waiting,
        steps_per_second=_per(counted, "iteration_count", seconds * last.replicas),
        sequences_per_step=_ratio(counted, "between_outputs_count", "iteration_count"),
        seconds_per_round=_mean_of(counted, "between_outputs"),
        generated_tokens_per_second=_per(counted, "generated", seconds),
        prompt_tokens_per_second=_computed_prompt(counted, seconds),
        prompt_tokens_per_request=prompt,
        output_tokens_per_request=output,
        context=_context(prompt, output, kv_share, settings.kv_tokens, running),
        seconds_per_output_token=_seconds_per_output_token(counted),
        seconds_to_first_token=_mean_of(counted, "first_token_seconds"),
        kv_share=kv_share,
        preemptions=counted.counters.get("preemptions"),
        cached_prompt_share=_ratio(counted, "prefix_hits", "prefix_queries"),
        speculates=_speculates(last, settings),
        rounds=counted.drafts,
        drafted_per_round=_ratio(counted, "draft_tokens", "drafts"),
        accept_length=accepted,
        survival=tuple(share for share, _ in counted.survival_by_position),
        moments=tuple(_moment(before, now, first.at_seconds) for before, now in pairwise(readings)),
        not_shown=_NOT_SHOWN.get(last.engine, ()),
    )


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
    accepted = _ratio(counted, "accepted_tokens", "drafts")
    return counted.mean_accept_length if accepted is None else 1.0 + accepted


def _context(
    prompt: float | None, output: float | None, kv_share: float | None, kv_tokens: int | None, running: float | None
) -> float | None:
    """Halfway through the requests that ended; else from the KV cache in use, too low where prompts share blocks."""
    if prompt is not None and output is not None:
        return prompt + output / 2.0
    return kv_share * kv_tokens / running if kv_share and kv_tokens and running else None


def _speculates(reading: EngineReading, settings: ServerSettings) -> bool | None:
    """Engines export these counters only where speculation is configured."""
    if reading.drafts is not None or reading.accepted_by_position or reading.accept_length:
        return True
    return None if settings.method is None else True


def _moment(before: EngineReading, now: EngineReading, start_seconds: float) -> Moment:
    counted = now.since(before) or now
    return Moment(
        at_seconds=now.at_seconds - start_seconds,
        running=now.gauges.get("running"),
        accept_length=_accepted_per_round(counted),
        generated_tokens_per_second=_per(counted, "generated", now.at_seconds - before.at_seconds),
    )
