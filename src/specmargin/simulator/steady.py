"""The steady state of a run: what a service delivers between its ramp and its drain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.errors import ScenarioError
from specmargin.simulator.results import Result

_RAMP = 0.25  # share of the requests that finish before the window begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Means over the window. `sequences` and `prefill_share` are of the whole run."""

    tokens_per_second: float
    tpot_seconds: float | None  # None: one output token per request
    ttft_seconds: float
    sequences: float  # decoding at the same time
    depth: float
    prefill_share: float  # of the busy time
    preemptions_per_request: float


def steady_state(result: Result) -> Steady:
    """The window begins when a quarter of the requests have finished and ends when the last one arrives."""
    if result.totals.rejected:
        raise ScenarioError("the requests do not fit in memory: lower --isl or --osl, or add --gpus")
    count, finish = result.requests.count, np.sort(result.finish)
    first = int(_RAMP * count)
    last = max(int(np.searchsorted(finish, result.arrival.max(), side="right")) - 1, first + 1)
    tokens = float(result.requests.output_tokens.mean()) * (last - first)
    window = slice(first, max(last, first + 1))
    arrived = np.argsort(result.arrival, kind="stable")[window]
    gaps = np.maximum(result.requests.output_tokens[arrived] - 1, 1)
    tpot = float(((result.finish - result.first_token)[arrived] / gaps).mean())
    return Steady(
        tokens_per_second=tokens / float(finish[last] - finish[first]),
        tpot_seconds=tpot if result.requests.output_tokens.min() > 1 else None,
        ttft_seconds=float((result.first_token - result.arrival)[arrived].mean()),
        sequences=float(result.bins["sequence_seconds"].sum() / result.busy_seconds),
        depth=result.mean_depth,
        prefill_share=float(result.totals.prefill / result.busy_seconds),
        preemptions_per_request=float(result.totals.preemptions / count),
    )
