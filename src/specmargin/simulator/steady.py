"""What a service delivers: between the ramp and the drain of a run, or over the whole of it, as benchmarks report."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specmargin.errors import ScenarioError
from specmargin.simulator.results import Result
from specmargin.step import FloatArray, IntArray

_RAMP = 0.25  # share of the requests before the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Means over the window. `sequences`, `depth` and `prefill_share` are of the whole run."""

    tokens_per_second: float
    tpot_seconds: float | None  # of requests with several output tokens; None: there are none
    ttft_seconds: float
    sequences: float  # decoding at the same time
    depth: float
    prefill_share: float  # of the busy time, with the launches of steps that run without a CUDA graph
    preemptions_per_request: float


def steady_state(result: Result, offered_tokens_per_second: float | None = None) -> Steady:
    """The window begins after a quarter of the requests; in a closed loop it ends when the last ones begin.

    Users of a closed loop move in waves, which whole generations of requests average over. At a request rate, the
    arrivals and lengths that were drawn differ from it by chance: what is delivered is `offered_tokens_per_second`,
    or less by as much as requests end further apart than they arrive.
    """
    _check_fit(result)
    requests, count, users = result.requests, result.requests.size, result.serving.workload.users
    generation = max(users, 1)
    first = max(int(_RAMP * count) // generation, 1) * generation
    last = max((count - 1) // generation * generation, first + 1)
    window = np.argsort(requests["arrival_seconds"], kind="stable")[first:last]
    arrived, finished = (_span(requests[name], first, last) for name in ("arrival_seconds", "finish_seconds"))
    steady = _over(result, window, arrived if users else finished)
    if offered_tokens_per_second is None:
        return steady
    return replace(steady, tokens_per_second=offered_tokens_per_second * min(arrived / finished, 1.0))


def _span(moments: FloatArray, first: int, last: int) -> float:
    """Seconds between the first and the last of a window."""
    ordered = np.sort(moments)
    return float(ordered[last] - ordered[first])


def whole_run(result: Result) -> Steady:
    """Every request, with ramp and drain."""
    _check_fit(result)
    return _over(result, np.arange(result.requests.size), result.span_seconds)


def _over(result: Result, window: IntArray, seconds: float) -> Steady:
    tpot = result.tpot_by_request[window]
    tpot = tpot[np.isfinite(tpot)]
    return Steady(
        tokens_per_second=float(result.requests["output_tokens"][window].sum() / seconds),
        tpot_seconds=float(tpot.mean()) if tpot.size else None,
        ttft_seconds=float(result.ttft_by_request[window].mean()),
        sequences=result.mean_batch,
        depth=result.mean_depth,
        prefill_share=float((result.totals.prefill + result.totals.launches) / result.busy_seconds),
        preemptions_per_request=float(result.totals.preemptions / result.requests.size),
    )


def _check_fit(result: Result) -> None:
    if result.totals.refused:
        raise ScenarioError(
            "the longest requests do not fit in memory: lower --isl, --osl or --range-ratio, or add --gpus"
        )
