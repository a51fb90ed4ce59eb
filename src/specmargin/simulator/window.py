"""The part of a run that is measured: between ramp and drain of a steady load, or all of it.

A steady load is a constant rate or a constant number of users. Its window begins with the first token of the request
after the first quarter, and leaves out as many of the last requests as are in the engine when the last one begins: from
then on none follows. A trace, a rate that changes, and a benchmark of a given number of requests are measured whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.records import Rows
from specmargin.simulator.workload import Poisson, Request, Workload

_RAMP = 0.25  # share of the requests before the window
_GROWS = 0.01  # seconds by which the time to first token rises per second, from which on the queue is said to grow
_LEAST = 100  # requests by which a growing queue is told from chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    requests: slice  # that begin in it, in order of arrival
    first_seconds: float
    last_seconds: float
    queue_grows: bool  # more arrives than the engine can serve

    @property
    def seconds(self) -> float:
        return self.last_seconds - self.first_seconds

    def bins(self, bin_seconds: float, count: int) -> slice:
        """The time bins that lie in it; at least one."""
        first = min(round(self.first_seconds / bin_seconds), count - 1)
        return slice(first, max(min(round(self.last_seconds / bin_seconds), count), first + 1))


def whole_run(requests: Rows[Request], workload: Workload, clock: float) -> Window:
    """From the first arrival to the last token."""
    first = float(requests["arrival_seconds"][0])
    return _window(requests, workload, slice(0, requests.size), (first, clock))


def steady_window(requests: Rows[Request], workload: Workload, clock: float) -> Window:
    """Without ramp and drain; the whole run where it is too short to have anything between them."""
    chosen, begins = _untouched(requests, workload.users), requests["first_token_seconds"]
    if not np.isfinite(begins[chosen]).any() or not np.isfinite(begins[chosen.stop :]).any():
        return whole_run(requests, workload, clock)
    first, last = float(np.nanmin(begins[chosen])), float(np.nanmin(begins[chosen.stop :]))
    if last <= first:
        return whole_run(requests, workload, clock)
    return _window(requests, workload, chosen, (first, last))


def _window(requests: Rows[Request], workload: Workload, chosen: slice, seconds: tuple[float, float]) -> Window:
    grows = isinstance(workload.arrivals, Poisson) and _queue_grows(requests, _untouched(requests, 0))
    return Window(requests=chosen, first_seconds=seconds[0], last_seconds=seconds[1], queue_grows=grows)


def _untouched(requests: Rows[Request], users: int) -> slice:
    """Requests between ramp and drain. Users move in waves, which whole generations of requests average over."""
    count, begins = requests.size, requests["first_token_seconds"]
    finish = requests["finish_seconds"]
    drain = float(np.nanmax(begins)) if np.isfinite(begins).any() else 0.0
    last = count - int((finish >= drain).sum())
    first = int(_RAMP * last)
    if users:
        first = max(first // users, 1) * users
        last = max(last // users * users, first + 1)
    return slice(min(first, count - 1), min(last, count))


def _queue_grows(requests: Rows[Request], chosen: slice) -> bool:
    """Behind a queue that grows, the time to first token rises with the time of arrival."""
    arrival = requests["arrival_seconds"][chosen]
    wait = requests["first_token_seconds"][chosen] - arrival
    served = np.isfinite(wait)
    if served.sum() < _LEAST:
        return False
    apart = arrival[served] - arrival[served].mean()
    return float((apart * wait[served]).sum()) > _GROWS * float((apart * apart).sum())
