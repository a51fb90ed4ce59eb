"""The largest load that meets latency targets: bisection with common random numbers, once per seed.

All rates and policies serve the same requests of a seed, at arrivals that are scaled in time. So what differs between
two rates or two policies is their effect and not chance, and a target that is met at one rate is met below it. The
interval is from the least to the largest of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from specmargin.simulator.results import Result, Slo
from specmargin.simulator.serving import Serving
from specmargin.simulator.steady import first_requests
from specmargin.simulator.workload import ClosedLoop, Poisson
from specmargin.step import FloatArray

FLOOD = 1e6  # requests per second: more than any engine serves
MOST_USERS = 4096
_PRECISION = 1.01  # between the last rate that meets the targets and the first that does not
_LOWEST = 1.0 / 256.0  # of what the engine serves: the rate from which the search begins
_NEAR = 1.04  # another seed is first tried this far from the first one
_LOWEST_REQUESTS = 400
# A tail needs many requests, because load comes in waves: with 6,600 an engine seemed to serve 20.8 requests per
# second within a target, with 16,384 and with 40,000 requests 20.3 and 20.2. Small batches take more steps.
_TAIL_REQUESTS, _TAIL_STEPS = 16_384, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    slo: Slo
    percentile: float = 99.0

    def times(self, result: Result) -> dict[str, float]:
        """TTFT and TPOT at the percentile, for those that have a target. A refused request never has a first token."""
        begun = result.ttft_by_request[result.window.requests]
        measured = {"TTFT": np.where(np.isfinite(begun), begun, np.inf), "TPOT": result.tpot_seconds}
        return {name: self._of(values) for name, values in measured.items() if name in self.limits}

    def _of(self, values: FloatArray) -> float:
        return float(np.percentile(values, self.percentile, method="higher")) if values.size else 0.0

    @property
    def limits(self) -> dict[str, float]:
        both = {"TTFT": self.slo.ttft_seconds, "TPOT": self.slo.tpot_seconds}
        return {name: seconds for name, seconds in both.items() if seconds is not None}

    def missed(self, result: Result) -> list[str]:
        """The targets that are missed, or the engine, which does not keep up."""
        times = self.times(result)
        return [name for name, limit in self.limits.items() if times[name] > limit] + (
            ["engine"] if result.window.queue_grows else []
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One load of one seed."""

    load: float
    seed: int
    times: dict[str, float]
    missed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Of one policy. No loads: the targets cannot be met."""

    policy: str
    loads: tuple[float, ...]  # by seed
    limited_by: tuple[str, ...]  # what is missed just above; empty: nothing, up to the bound of the search
    tried: tuple[Tried, ...]
    result: Result  # at the median load; of targets that cannot be met: at the lowest load

    @property
    def load(self) -> float:
        """The median of the seeds; of an even number the lower one, so that it is a load that was met."""
        return sorted(self.loads)[(len(self.loads) - 1) // 2]


@dataclass(slots=True, kw_only=True)
class Search:
    """One policy. `serving` has the number of requests; `run` simulates it; `serves`: requests per second at most."""

    serving: Serving
    run: Callable[[Serving], Result]
    targets: Targets
    seeds: int
    serves: float
    whole: bool = False  # users instead of a rate
    tried: list[Tried] = field(default_factory=list)

    def capacity(self, advance: Callable[[int], None] = lambda _: None) -> Capacity:
        lowest, bound = (1.0, float(MOST_USERS)) if self.whole else (_LOWEST * self.serves, 2.0 * self.serves)
        first = self.serving.seed
        result = self._simulated(lowest, first, few=True)
        if self.targets.missed(result):
            return self._found((), result)
        loads: list[float] = []
        for seed in range(first, first + self.seeds):
            loads.append(self._largest(seed, lowest, bound, near=loads[0] if loads else None))
            advance(1)
        median = sorted(loads)[(len(loads) - 1) // 2]
        return self._found(tuple(loads), self._simulated(median, first + loads.index(median)))

    def _found(self, loads: tuple[float, ...], result: Result) -> Capacity:
        above = [each for each in self.tried if each.missed]
        closest = min(above, key=lambda each: each.load).missed if above else ()
        policy, tried = self.serving.policy, tuple(self.tried)
        return Capacity(policy=policy, loads=loads, limited_by=closest, tried=tried, result=result)

    def _largest(self, seed: int, low: float, high: float, *, near: float | None) -> float:
        """The largest load that meets the targets, with a larger one that does not, or the bound of the search."""
        if near is not None:
            low, high = self._around(seed, near, low, high)
        elif self._met(high, seed):
            return high
        while high / low > _PRECISION and not (self.whole and high - low <= 1.0):
            middle = self._rounded(math.sqrt(low * high))
            middle = min(max(middle, low + 1.0), high - 1.0) if self.whole else middle
            low, high = (middle, high) if self._met(middle, seed) else (low, middle)
        return low

    def _around(self, seed: int, near: float, lowest: float, bound: float) -> tuple[float, float]:
        """A load that meets the targets and one that does not, close to what another seed gave."""
        if self._met(near, seed):
            low, high = near, min(self._rounded(near * _NEAR, up=True), bound)
            while high < bound and self._met(high, seed):
                low, high = high, min(self._rounded(high * _NEAR, up=True), bound)
            return low, high
        low, high = max(self._rounded(near / _NEAR), lowest), near
        while low > lowest and not self._met(low, seed):
            low, high = max(self._rounded(low / _NEAR), lowest), low
        return low, high

    def _rounded(self, load: float, *, up: bool = False) -> float:
        if not self.whole:
            return load
        return float(math.ceil(load) if up else math.floor(load))

    def _met(self, load: float, seed: int) -> bool:
        result = self._simulated(load, seed)
        missed = tuple(self.targets.missed(result))
        self.tried.append(Tried(load=load, seed=seed, times=self.targets.times(result), missed=missed))
        return not missed

    def _simulated(self, load: float, seed: int, *, few: bool = False) -> Result:
        """`few`: at the lowest load, where requests do not meet, a few show as much as many."""
        workload = self.serving.workload
        if self.whole:
            workload = replace(workload, arrivals=ClosedLoop(users=int(load), requests=1))
            requests = first_requests(workload)
        else:
            assert isinstance(workload.arrivals, Poisson)
            workload = replace(workload, arrivals=replace(workload.arrivals, requests_per_second=load))
            requests = min(workload.arrivals.requests, _LOWEST_REQUESTS) if few else workload.arrivals.requests
        return self.run(replace(self.serving, workload=workload.with_requests(requests), seed=seed))


def requests_of_tail(flooded: Result) -> int:
    """Requests of each run: enough for a tail, and half as many as a steady state of a full engine takes."""
    steps = _TAIL_STEPS * max(flooded.mean_batch, 1.0) / flooded.serving.workload.mean_output
    return max(flooded.requests.size // 2, int(min(_TAIL_REQUESTS, steps)))
