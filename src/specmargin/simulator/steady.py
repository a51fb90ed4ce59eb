"""What a service delivers in its steady state, and the number of requests that it takes to reach one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.errors import ScenarioError
from specmargin.simulator.results import Result
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import FixedLength, Poisson, Workload

_GENERATIONS = 16  # requests per user, or per request in the engine; the first quarter is left out, and the last ones
_LEAST_REQUESTS, _LEAST_ARRIVALS = 32, 400
# Lengths that vary need more requests: the speed-ups of four seeds differ by up to 2% with 2,048 requests, by up to 11%
# with 16 per user. The limit of steps (about 2 µs each) is for small batches with long outputs, which need fewer.
_VARIED_REQUESTS, _VARIED_STEPS = 2048, 200_000
_LEAST_GROWTH, _MOST_GROWTH = 1.5, 8.0  # from one run to the next: a short run tells little
_MOST_TOKENS = 24e6  # of a run: about a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Means over the measured window. `prefill_share` and `preemptions_per_request` are of the whole run."""

    tokens_per_second: float
    tpot_seconds: float | None  # of requests with several output tokens; None: there are none
    ttft_seconds: float
    sequences: float  # decoding at the same time
    depth: float
    prefill_share: float  # of the busy time, with the launches of steps that run without a CUDA graph
    preemptions_per_request: float
    queue_growth_per_second: float  # requests that arrive and are not served; 0: the engine keeps up
    beyond_graphs: float  # share of the decode time in steps that decode more positions than the largest CUDA graph
    most_positions: int  # decoded in one step, on one rank; 0: every step has a graph

    @classmethod
    def of(cls, result: Result) -> Steady:
        if result.totals.refused:
            raise ScenarioError(
                "the longest requests do not fit in memory: lower --isl, --osl or --range-ratio, or add --gpus"
            )
        tpot, (share, positions) = result.tpot_seconds, result.beyond_graphs
        return cls(
            tokens_per_second=result.goodput,
            tpot_seconds=float(tpot.mean()) if tpot.size else None,
            ttft_seconds=float(result.ttft_seconds.mean()),
            sequences=result.mean_batch,
            depth=result.mean_depth,
            prefill_share=float((result.totals.prefill + result.totals.launches) / result.busy_seconds),
            preemptions_per_request=float(result.totals.preemptions / result.requests.size),
            queue_growth_per_second=result.queue_growth_per_second,
            beyond_graphs=share,
            most_positions=positions,
        )


def first_requests(workload: Workload) -> int:
    """Requests of the first run. In a closed loop they are enough; at a rate, what is in the engine decides."""
    if not workload.users:
        return _LEAST_ARRIVALS
    return max(_GENERATIONS * workload.users, _LEAST_REQUESTS, _varied(workload, workload.users))


def _varied(workload: Workload, batch: float) -> int:
    if all(isinstance(each.output or workload.output, FixedLength) for each in workload.categories):
        return 0
    return min(_VARIED_REQUESTS, int(_VARIED_STEPS * max(batch, 1.0) / workload.mean_output))


def run_steadily(serving: Serving, run: Callable[[Serving], Sequence[Result]]) -> Sequence[Result]:
    """Repeat `run` (several policies on the same requests) with more requests until each has a steady state."""
    serving = serving.with_requests(first_requests(serving.workload))
    while True:
        results, given = run(serving), serving.workload.arrivals.requests
        needed = max(map(_needed, results))
        if needed <= given:
            return results
        serving = serving.with_requests(needed)


def _needed(result: Result) -> int:
    """Requests of a run whose first quarter is four times as long as a request is in the engine."""
    workload = result.serving.workload
    if not isinstance(workload.arrivals, Poisson) or not result.e2e_seconds.size or result.shortened is not None:
        return 0
    took = result.requests["finish_seconds"] - result.requests["first_token_seconds"]
    begun = result.goodput / workload.mean_output  # requests per second; fewer than arrive where a queue grows
    in_engine = min(begun * float(np.nanmean(took)), result.serving.most_sequences)
    wanted = max(_GENERATIONS * in_engine, _varied(workload, result.mean_batch))
    most = max(_MOST_TOKENS / workload.mean_output, _LEAST_ARRIVALS)
    given = result.requests.size
    return int(min(max(wanted, _LEAST_GROWTH * given), _MOST_GROWTH * given, most)) if wanted > given else 0
