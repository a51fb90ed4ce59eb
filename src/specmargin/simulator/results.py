"""Results of a run: latencies, goodput, tokens, time by component, cost. Tables are plain columns.

Rates, times and means are of the measured window; counts of requests, tokens and steps are of the whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from specmargin.compiler import shortened
from specmargin.records import Rows, fields_of
from specmargin.simulator.engine import KvBudget
from specmargin.simulator.serving import Serving
from specmargin.simulator.state import EngineRow, Limits, Simulation, TimeBin, Totals
from specmargin.simulator.traffic import Client, by_arrival
from specmargin.simulator.window import Window, steady_window, whole_run
from specmargin.simulator.workload import Poisson, Request
from specmargin.step import BoolArray, FloatArray, Step

_CLIENT_COLUMNS = ("priority", "cached_tokens", "cancelled_seconds")
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency limits that a request must meet; None: no limit."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSeen:
    """What happened to prompts before their KV was there, by request in order of arrival."""

    prefill_seconds: FloatArray  # waiting for an instance, and being read
    transfer_seconds: FloatArray  # waiting for a link, and on it
    kv_bytes_per_gpu: float  # of the mean prompt
    prefill_busy_share: float  # of the prefill instances' time

    def columns(self) -> dict[str, FloatArray]:
        return {"prefill_seconds": self.prefill_seconds, "transfer_seconds": self.transfer_seconds}


@dataclass(frozen=True, kw_only=True)
class Result:
    serving: Serving
    limits: Limits
    requests: Rows[Request]
    clients: Rows[Client]  # none if no request needs one
    drawn: int  # requests of the workload, of which only the first are run where nothing is compiled
    totals: Totals
    engine: EngineRow  # at the end of the run
    bin_seconds: float
    bins: Rows[TimeBin]
    cells: FloatArray
    contexts: FloatArray  # of the cells' third axis
    steps: npt.NDArray[Any]  # rows of `LoggedStep`; empty if not logged
    pools: PoolsSeen | None = None

    @classmethod
    def of(cls, serving: Serving, simulation: Simulation, steps: npt.NDArray[Any], *, drawn: int) -> Result:
        state, log, limits = simulation.state, simulation.log, simulation.limits
        used = int(state.totals["clock"][0] / limits.bin_seconds) + 1
        requests, clients = state.requests, state.clients
        if limits.sessions:
            requests, clients = by_arrival(requests, clients)
        return cls(
            serving=serving,
            limits=limits,
            requests=requests,
            drawn=drawn,
            clients=clients,
            totals=state.totals[0],
            engine=state.engine[0],
            bin_seconds=limits.bin_seconds,
            bins=cast("Rows[TimeBin]", np.asarray(log.bins)[:used]),
            cells=log.cells,
            contexts=simulation.tables.prices.contexts,
            steps=steps,
        )

    @cached_property
    def window(self) -> Window:
        measured = steady_window if self.serving.steady else whole_run
        return measured(self.requests, self.serving.workload, float(self.totals.clock))

    @property
    def kv(self) -> KvBudget:
        return self.limits.kv

    @property
    def shortened(self) -> str | None:
        return shortened(self.requests.size, self.drawn, "requests")

    # --- by request ---

    @property
    def finished(self) -> BoolArray:
        """The others were refused or cancelled."""
        return np.asarray(np.isfinite(self.requests["finish_seconds"]))

    @property
    def ttft_by_request(self) -> FloatArray:
        """NaN if refused, or cancelled before."""
        return np.asarray(self.requests["first_token_seconds"] - self.requests["arrival_seconds"])

    @property
    def tpot_by_request(self) -> FloatArray:
        """Time between tokens; NaN for requests of one token, and if refused or cancelled."""
        gaps = self.requests["output_tokens"] - 1
        decoding = self.requests["finish_seconds"] - self.requests["first_token_seconds"]
        return np.asarray(np.divide(decoding, gaps, out=np.full(gaps.shape, np.nan), where=gaps > 0))

    # --- in the window ---

    @property
    def ttft_seconds(self) -> FloatArray:
        return _finite(self.ttft_by_request[self.window.requests])

    @property
    def tpot_seconds(self) -> FloatArray:
        return _finite(self.tpot_by_request[self.window.requests])

    @property
    def e2e_by_request(self) -> FloatArray:
        """NaN if refused or cancelled."""
        return np.asarray(self.requests["finish_seconds"] - self.requests["arrival_seconds"])

    @property
    def e2e_seconds(self) -> FloatArray:
        return _finite(self.e2e_by_request[self.window.requests])

    def attainment(self, slo: Slo) -> float:
        """Share of the requests that finished within the limits, without cancelled ones; refused requests count as
        missed."""
        met, chosen = self.finished, np.zeros(self.requests.size, dtype=np.bool_)
        chosen[self.window.requests] = True
        if self.clients.size:
            chosen &= np.isnan(self.clients["cancelled_seconds"])
        if slo.ttft_seconds is not None:
            met &= ~(self.ttft_by_request > slo.ttft_seconds)
        if slo.tpot_seconds is not None:
            met &= ~(self.tpot_by_request > slo.tpot_seconds)
        return float(met[chosen].mean()) if chosen.any() else 0.0

    @property
    def goodput(self) -> float:
        """Output tokens per second. At a constant rate: those that arrive, less those by which a queue grows."""
        offered, window = self.serving.workload.offered_tokens_per_second, self.window
        if not self.serving.steady:
            return self.useful / window.seconds if self.useful else 0.0
        if offered is None:
            return float(self.requests["output_tokens"][window.requests].sum() / window.seconds)
        return min(self._binned("committed") / self._binned_seconds, offered) if window.queue_grows else offered

    @property
    def queue_growth_per_second(self) -> float:
        """Requests that arrive and are not served; 0: the engine keeps up with a constant rate."""
        arrivals, offered = self.serving.workload.arrivals, self.serving.workload.offered_tokens_per_second
        if offered is None or not isinstance(arrivals, Poisson) or not self.window.queue_grows:
            return 0.0
        return arrivals.requests_per_second * max(1.0 - self.goodput / offered, 0.0)

    @property
    def busy_goodput(self) -> float:
        """Useful tokens per busy second of the engine: compares policies independently of the load."""
        return self.goodput / self.busy_share if self.useful else 0.0

    @property
    def busy_share(self) -> float:
        """Of the measured time; of the instances that decode."""
        seconds = self._binned_seconds if self.serving.steady else self.window.seconds
        seconds *= self.serving.decode_instances
        return min(self._binned("busy_seconds") / max(seconds, 1e-12), 1.0)

    @property
    def mean_batch(self) -> float:
        """Sequences that decode at the same time, averaged over the busy time."""
        return self._binned("sequence_seconds") / max(self._binned("busy_seconds"), 1e-12)

    @property
    def mean_depth(self) -> float:
        """Draft tokens verified per sequence and step, averaged over the time spent decoding."""
        return self._binned("depth_seconds") / max(self._binned("decode_seconds"), 1e-12)

    @property
    def _window_bins(self) -> slice:
        count = len(self.bins["committed"])
        return self.window.bins(self.bin_seconds, count) if self.serving.steady else slice(0, count)

    @property
    def _binned_seconds(self) -> float:
        return float(len(self.bins["committed"][self._window_bins]) * self.bin_seconds)

    def _binned(self, name: str) -> float:
        """The sum of a column of the time bins in the window."""
        return float(self.bins[name][self._window_bins].sum())

    # --- over the run ---

    @property
    def committed(self) -> int:
        return int(self.totals.committed)

    @property
    def useful(self) -> int:
        """Committed tokens, without those of cancelled requests."""
        return self.committed - int(self.totals.cancelled_tokens)

    @property
    def span_seconds(self) -> float:
        """From the first arrival to the last token."""
        return float(self.totals.clock - self.requests["arrival_seconds"].min())

    @property
    def busy_seconds(self) -> float:
        return float(self.totals.busy)

    @property
    def gpu_hours(self) -> float:
        return self.span_seconds / 3600.0 * self.serving.gpus

    @property
    def gpu_hours_per_million_tokens(self) -> float | None:
        """At the measured rate; None if nothing was served."""
        return self.serving.gpus / 3600.0 * 1e6 / self.goodput if self.goodput > 0.0 else None

    @property
    def beyond_graphs(self) -> tuple[float, int]:
        """Share of the decode time in steps that decode more positions than the largest CUDA graph holds, and the most
        positions of such a step, on one rank. Prompts beside them are left out: no usual graph holds those."""
        limit, ranks = self.serving.scenario.engine_time.graph_limit, self.serving.scenario.layout.sequence_ranks
        seconds = self.cells.sum(axis=2)
        if limit is None or seconds.sum() == 0.0:
            return 0.0, 0
        batch, depth = np.indices(seconds.shape)
        positions = np.where(seconds > 0.0, np.ceil(self.cell_ranks * batch / ranks) * (depth + 1), 0.0)
        return float(seconds[positions > limit].sum() / seconds.sum()), int(positions.max())

    @property
    def cell_ranks(self) -> int:
        """Ranks that run the batch of a cell at the same time."""
        return 1

    def seconds_by_component(self) -> dict[str, float]:
        """Decoding split by the components of the price ledger in each priced cell; other kinds of time as counted."""
        seconds_by_name: dict[str, float] = {}
        batch, depth, context = np.nonzero(self.cells > 0.0)
        if batch.size:
            step = Step.uniform(
                batch=self.cell_ranks * batch.astype(np.float64), depth=depth, context=self.contexts[context]
            )
            price = self.serving.pricer.verify(step)
            seconds = self.cells[batch, depth, context]
            lines = [line for line in price.components if str(line.component) != "launches"]
            total = sum((line.seconds for line in lines), start=np.zeros(batch.size))
            for line in lines:
                seconds_by_name[str(line.component)] = float((seconds * line.seconds / total).sum())
        totals = self.totals
        rest = {
            "prefill": totals.prefill,
            "drafting": totals.draft,
            "launches": totals.launches,
            "off": totals.off,
        }
        return seconds_by_name | {name: float(seconds) for name, seconds in rest.items() if seconds > 0.0}

    # --- as tables ---

    def summary(self, slo: Slo | None = None, gpu_hour_price: float | None = None) -> dict[str, Any]:
        """The output of `simulate --json`, and the result of a sweep's cell."""
        totals = self.totals
        tokens = {name: int(getattr(totals, name)) for name in ("committed", "drafted", "verified", "accepted")}
        summary: dict[str, Any] = {
            "goodput_tokens_per_second": self.goodput,
            "busy_tokens_per_second": self.busy_goodput,
            "ttft_seconds": _distribution(self.ttft_seconds),
            "tpot_seconds": _distribution(self.tpot_seconds),
            "e2e_seconds": _distribution(self.e2e_seconds),
            "requests": self.requests.size,
            "shortened": self.shortened,
            "finished": int(totals.finished),
            "refused": int(totals.refused),
            **tokens,
            "wasted": tokens["drafted"] - tokens["accepted"] + int(totals.cut),
            "prefilled": int(totals.prefilled),
            "preemptions": int(totals.preemptions),
            "steps": int(self.engine.steps),
            "mean_draft_depth": self.mean_depth,
            "mean_batch": self.mean_batch,
            "measured_seconds": self.window.seconds,
            "measured_requests": self.window.requests.stop - self.window.requests.start,
            "offered_tokens_per_second": self.serving.workload.offered_tokens_per_second,
            "queue_growth_per_second": self.queue_growth_per_second,
            "span_seconds": self.span_seconds,
            "busy_seconds": self.busy_seconds,
            "idle_seconds": float(self.totals.idle),
            "kv_blocks": self.kv.blocks,
            "kv_blocks_peak": int(totals.peak_blocks),
            "decode_seconds": float(self.totals.decode),
            "gpu_hours": self.gpu_hours,
            "gpu_hours_per_million_tokens": self.gpu_hours_per_million_tokens,
        }
        summary |= self._traffic()
        if slo is not None:
            summary["slo_attainment"] = self.attainment(slo)
        if gpu_hour_price is not None:
            summary["cost"] = self.gpu_hours * gpu_hour_price
            hours = self.gpu_hours_per_million_tokens
            summary["cost_per_million_tokens"] = None if hours is None else hours * gpu_hour_price
        return summary

    def _traffic(self) -> dict[str, Any]:
        """Prefix cache, cancelled requests and priorities, where the load has them."""
        totals, traffic = self.totals, dict[str, Any]()
        if self.pools is not None:
            traffic |= self._pools(self.pools)
        elif self.limits.hashed or self.limits.prefix_hit > 0.0:
            traffic["prefix_queries"], traffic["prefix_hits"] = int(totals.prefix_queries), int(totals.prefix_hits)
            traffic["prefix_hit_share"] = totals.prefix_hits / max(totals.prefix_queries, 1)
        if self.limits.cancelling:
            for name in ("cancelled", "cancelled_tokens", "cancelled_drafts"):
                traffic[name] = int(getattr(totals, name))
        if self.has_priorities:
            traffic["by_priority"] = self.by_priority()
        return traffic

    def _pools(self, seen: PoolsSeen) -> dict[str, Any]:
        chosen, pools = self.window.requests, self.serving.pools
        assert pools is not None
        return {
            "prefill_instances": pools.prefill,
            "decode_instances": pools.decode,
            "prefill_seconds": _distribution(_finite(seen.prefill_seconds[chosen])),
            "transfer_seconds": _distribution(_finite(seen.transfer_seconds[chosen])),
            "kv_bytes_per_gpu": seen.kv_bytes_per_gpu,
            "prefill_busy_share": seen.prefill_busy_share,
        }

    @property
    def has_priorities(self) -> bool:
        return self.clients.size > 0 and len(np.unique(self.clients["priority"])) > 1

    def by_priority(self) -> list[dict[str, Any]]:
        """Latencies of the requests of each priority, first served first."""
        rows = []
        for priority in np.unique(self.clients["priority"]):
            chosen = self.clients["priority"] == priority
            row: dict[str, Any] = {"priority": int(priority), "requests": int(chosen.sum())}
            row["finished"] = int(self.finished[chosen].sum())
            row["preemptions"] = int(self.requests["preemptions"][chosen].sum())
            for name in ("ttft", "tpot", "e2e"):
                row[f"{name}_seconds"] = _distribution(_finite(getattr(self, f"{name}_by_request")[chosen]))
            rows.append(row)
        return rows

    def request_columns(self) -> dict[str, Any]:
        requests, names = self.requests, self.serving.bank.categories
        shown = ("arrival_seconds", "prompt_tokens", "output_tokens", "first_token_seconds", "finish_seconds")
        return {
            "request": np.arange(requests.size),
            "category": [names[index] for index in requests["category"]],
            **{name: requests[name] for name in (*shown, "preemptions")},
            **({name: self.clients[name] for name in _CLIENT_COLUMNS} if self.clients.size else {}),
            **({} if self.pools is None else self.pools.columns()),
        }

    def step_columns(self) -> dict[str, FloatArray]:
        return {name: self.steps[name] for name in self.steps.dtype.names or ()}

    def timeline(self) -> list[dict[str, float]]:
        """One row per time bin in which the engine was busy: load, depth and speed."""
        return [self._timeline_row(int(index)) for index in np.flatnonzero(self.bins["busy_seconds"] > 0.0)]

    def _timeline_row(self, index: int) -> dict[str, float]:
        row = fields_of(self.bins, index)
        busy, decoding = row["busy_seconds"], max(row["decode_seconds"], 1e-12)
        return {
            "hour": (index + 0.5) * self.bin_seconds / 3600.0,
            "batch": row["sequence_seconds"] / decoding,
            "depth": row["depth_seconds"] / decoding,
            "tokens_per_second": row["committed"] / busy * self.serving.decode_instances,
            "accepted_share": row["accepted"] / row["verified"] if row["verified"] else 0.0,
            "waiting": row["waiting_seconds"] / busy,
            "busy_share": min(busy / (self.bin_seconds * self.serving.decode_instances), 1.0),
            "kv_share": row["block_seconds"] / busy / max(self.kv.blocks, 1),
        }

    def policy_row(self) -> dict[str, Any]:
        """The row of this policy in the figure that compares policies."""
        summary = self.summary()
        return {
            "policy": self.serving.policy,
            "busy_tokens_per_second": summary["busy_tokens_per_second"],
            "tpot_p50_seconds": summary["tpot_seconds"]["p50"],
            "ttft_p50_seconds": summary["ttft_seconds"]["p50"],
        }

    def hourly(self, *, seconds: float = 3600.0) -> list[dict[str, float]]:
        """By hour of arrival: requests, and the medians of TPOT and TTFT. `seconds`: the length of an hour."""
        arrival, tpot, ttft = self.requests["arrival_seconds"], self.tpot_by_request, self.ttft_by_request
        hour_by_request = (np.where(np.isfinite(arrival), arrival, 0.0) // seconds).astype(np.int64)
        rows = []
        for hour in np.unique(hour_by_request[np.isfinite(tpot)]):
            chosen = np.isfinite(tpot) & (hour_by_request == hour)
            medians = {"tpot_p50": float(np.median(tpot[chosen])), "ttft_p50": float(np.median(ttft[chosen]))}
            rows.append({"hour": int(hour), "requests": int(chosen.sum()), **medians})
        return rows


def _finite(values: FloatArray) -> FloatArray:
    return np.asarray(values[np.isfinite(values)])


def _distribution(values: FloatArray) -> dict[str, float | None]:
    """Percentiles and the mean; None if no request finished."""
    if values.size == 0:
        return dict.fromkeys((*_PERCENTILES, "mean"))
    percentiles: dict[str, float | None] = {
        name: float(np.percentile(values, percent)) for name, percent in _PERCENTILES.items()
    }
    return percentiles | {"mean": float(values.mean())}
