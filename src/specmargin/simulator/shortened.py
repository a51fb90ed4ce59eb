"""Runs without Numba: the same source, uncompiled, on fewer requests of the workload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specmargin.compiler import HAS_NUMBA
from specmargin.records import Rows
from specmargin.simulator.traffic import Traffic, traffic_of
from specmargin.simulator.workload import ClosedLoop, Drawn, Poisson, Request, Workload

# About 0.1 ms per output token and 2 ms per request: a second or two for a run, more for many users of a closed loop.
# Their first generation of requests is the ramp, the second is what they get, the third is the drain (`window.py`).
_OUTPUT_TOKENS = 20_000
_LEAST_REQUESTS, _MOST_REQUESTS, _GENERATIONS = 16, 200, 3


def affordable(workload: Workload, seed: int) -> tuple[Traffic, int]:
    """All requests where they are compiled, else as many as take seconds; and how many the workload has."""
    whole = traffic_of(workload, seed)
    drawn = whole.requests.size
    given = HAS_NUMBA or isinstance(workload.arrivals, Drawn)  # those are few enough already
    most = drawn if given else _affordable_requests(whole.requests, workload.users)
    if most >= drawn:
        return whole, drawn
    if isinstance(workload.arrivals, ClosedLoop | Poisson):
        return traffic_of(workload.with_requests(most), seed), drawn
    return replace(whole, requests=whole.requests[:most], clients=whole.clients[:most]), drawn


def _affordable_requests(requests: Rows[Request], users: int) -> int:
    within = int(np.searchsorted(np.cumsum(requests["output_tokens"]), _OUTPUT_TOKENS))
    return max(min(within, _MOST_REQUESTS), _GENERATIONS * users + 1, _LEAST_REQUESTS)
