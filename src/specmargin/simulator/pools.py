"""Prefill and decode apart: some instances read prompts, and the KV of each prompt goes to one that decodes.

Prompts go to the prefill instances in turn. Those are engines like the ones that decode: they read prompts in chunks,
the drafter's part included where the decode instances speculate, and answer with the KV after one token. The KV goes to
the decode instances in turn. GPUs send and receive one prompt at a time at the full rate of their link, data-parallel
ranks one each. A decode instance computes the last token of a prompt again, as engines' connectors do, and the whole
prompt if the sequence is preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from specmargin.compiler import compiled_entry
from specmargin.errors import ScenarioError
from specmargin.records import Rows, fields_of, rows_of
from specmargin.simulator.policies import PolicyChoice
from specmargin.simulator.results import PoolsSeen, Result
from specmargin.simulator.run import check_room, held_depth
from specmargin.simulator.serving import Pools, Serving
from specmargin.simulator.shortened import affordable
from specmargin.simulator.state import EngineRow, TimeBin, Totals
from specmargin.simulator.workload import Drawn, Request, Trace
from specmargin.step import FloatArray, IntArray

RunOne = Callable[..., Result]  # of one instance: takes a serving, `choice` and `advance`


def simulate_pools(
    serving: Serving,
    run: RunOne,
    *,
    choice: PolicyChoice | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Result:
    """The result is that of the decode instances; requests arrive when their clients send them."""
    pools = check_pools(serving)
    traffic, drawn = affordable(serving.workload, serving.seed)
    requests = traffic.requests
    held = held_depth(serving, serving.policy) if choice is None else choice.held_depth
    check_room(serving, held, requests)
    ready, busy_share = _read(serving, requests, run, speculates=held is not None)
    order = np.argsort(ready, kind="stable")[: int(np.isfinite(ready).sum())]
    if not order.size:
        raise ScenarioError("no prompt fits in the KV cache of a prefill instance: shorten --isl, or add GPUs")
    decodes = np.zeros(requests.size, dtype=np.int64)
    decodes[order] = np.arange(order.size) % pools.decode
    sizes = _kv_bytes_per_gpu(serving, requests, speculates=held is not None)
    arrived = _arrivals(serving, ready, sizes, order, decodes)
    results = []
    for i in range(min(pools.decode, order.size)):
        own = order[decodes[order] == i]
        own = own[np.argsort(arrived[own], kind="stable")]
        result = run(_decode(serving, _chosen(requests, own, arrived[own])), choice=choice, advance=advance)
        for name in ("emitted", "preemptions", "first_token_seconds", "finish_seconds"):
            requests[name][own] = result.requests[name]
        results.append(result)
    seen = PoolsSeen(
        prefill_seconds=np.asarray(ready - requests["arrival_seconds"]),
        transfer_seconds=np.asarray(arrived - ready),
        kv_bytes_per_gpu=float(sizes.mean()),
        prefill_busy_share=busy_share,
    )
    whole = _merged(results, refused=requests.size - order.size)
    return replace(whole, serving=serving, requests=requests, clients=traffic.clients, drawn=drawn, pools=seen)


def check_pools(serving: Serving) -> Pools:
    """Raise for loads of which two pools are not simulated."""
    pools, workload, arrivals = serving.pools, serving.workload, serving.workload.arrivals
    assert pools is not None
    if workload.users:
        raise ScenarioError(
            "--prefill-instances: users who wait for their answers are not simulated there; give --qps or --trace, or "
            "leave it out and plan the decode instance for them (`plan --decode-only --concurrency N`)"
        )
    trace = arrivals if isinstance(arrivals, Trace) else None
    if trace is not None and trace.hashes is not None and serving.engine.prefix_cache:
        raise ScenarioError(
            "--prefill-instances: block hashes of a trace are not simulated there; give --no-prefix-cache, and "
            "--prefix-hit if their share is known"
        )
    cancels = workload.cancels is not None or (trace is not None and trace.cancel_seconds is not None)
    cancels = cancels or (trace is not None and trace.cancel_tokens is not None)
    prioritised = any(category.priority is not None for category in workload.categories)
    prioritised = prioritised or (trace is not None and trace.priority is not None)
    if workload.sessions is not None or cancels or prioritised:
        raise ScenarioError(
            "--prefill-instances: sessions, cancelled requests and priorities are not simulated there; leave them out"
        )
    if serving.router is not None and pools.decode > 1:
        raise ScenarioError("--router and --decode-instances are not simulated together: leave out one of them")
    return pools


# --- the instances ---


def _chosen(requests: Rows[Request], chosen: IntArray, arrivals: FloatArray | None = None) -> Rows[Request]:
    rows = cast("Rows[Request]", np.asarray(requests)[chosen])
    if arrivals is not None:
        rows["arrival_seconds"][:] = arrivals
    return rows


def _read(serving: Serving, requests: Rows[Request], run: RunOne, *, speculates: bool) -> tuple[FloatArray, float]:
    """When each prompt has been read (NaN: refused), and the share of their time that the prefill instances take."""
    assert serving.pools is not None
    count, results = serving.pools.prefill, []
    ready = np.full(requests.size, np.nan)
    for i in range(min(count, requests.size)):
        prompts = _chosen(requests, np.arange(i, requests.size, count))
        prompts["output_tokens"][:] = 1
        result = run(_instance(serving, prompts, policy="off" if speculates else "none"))
        ready[i::count] = result.requests["finish_seconds"]
        results.append(result)
    seconds = max(float(result.totals.clock) for result in results)
    return ready, sum(result.busy_seconds for result in results) / max(count * seconds, 1e-12)


def _decode(serving: Serving, requests: Rows[Request]) -> Serving:
    return _instance(serving, requests, engine=replace(serving.engine, kv_arrives=True, prefix_hit=0.0))


def _instance(serving: Serving, requests: Rows[Request], **changed: Any) -> Serving:
    workload = replace(serving.workload, arrivals=Drawn(rows=requests))
    return replace(serving, workload=workload, pools=None, steady=False, **changed)


# --- between them ---


def _kv_bytes_per_gpu(serving: Serving, requests: Rows[Request], *, speculates: bool) -> FloatArray:
    prompts = requests["prompt_tokens"]
    lengths = np.unique(np.geomspace(prompts.min(), prompts.max(), 64).round())
    by_length = [serving.pricer.prompt_bytes(float(length), speculating=speculates) for length in lengths]
    return np.asarray(np.interp(prompts, lengths, by_length))


def _arrivals(serving: Serving, ready: FloatArray, sizes: FloatArray, order: IntArray, decodes: IntArray) -> FloatArray:
    """When the KV of each prompt is there. A rank of an instance sends or receives one prompt at a time."""
    pools, ranks = serving.pools, serving.scenario.layout.data_ranks
    assert pools is not None
    number, turn = np.arange(ready.size), np.zeros(ready.size, dtype=np.int64)
    turn[order] = np.arange(order.size)
    source = number % pools.prefill * ranks + number // pools.prefill % ranks
    destination = (pools.prefill + decodes) * ranks + turn // pools.decode % ranks
    free, arrived = np.zeros(pools.instances * ranks), np.full(ready.size, np.nan)
    moving = sizes / pools.bytes_per_second + pools.latency_seconds
    _carry(order, ready, moving, source, destination, free, arrived)
    return arrived


@compiled_entry
def _carry(
    order: IntArray,
    ready: FloatArray,
    moving: FloatArray,
    source: IntArray,
    destination: IntArray,
    free: FloatArray,
    arrived: FloatArray,
) -> None:
    """In order: each waits until both ends of its way are free."""
    for n in range(order.size):
        k = order[n]
        begun = max(ready[k], free[source[k]], free[destination[k]])
        arrived[k] = begun + moving[k]
        free[source[k]] = arrived[k]
        free[destination[k]] = arrived[k]


# --- one result ---


def _merged(results: Sequence[Result], *, refused: int) -> Result:
    """Sums over the decode instances; what is a mean per step or sequence stays one."""
    totals, engine = rows_of(Totals), rows_of(EngineRow)
    for name in fields_of(totals):
        each = [getattr(result.totals, name) for result in results]
        totals[name][0] = max(each) if name in ("clock", "peak_blocks") else sum(each)
    totals["refused"][0] += refused
    engine["steps"][0] = sum(result.engine.steps for result in results)
    widest = max(results, key=lambda result: result.contexts.size)
    cells = np.zeros_like(widest.cells)
    for result in results:
        cells[:, :, : result.contexts.size] += result.cells
    seconds = max(result.bin_seconds for result in results)
    bins = _bins(results, seconds)
    return replace(widest, totals=totals[0], engine=engine[0], bin_seconds=seconds, bins=bins, cells=cells)


def _bins(results: Sequence[Result], seconds: float) -> Rows[TimeBin]:
    """Bins of the longest of the instances' times: each is a whole number of shorter ones."""
    joined = [round(seconds / result.bin_seconds) for result in results]
    counts = [len(result.bins["committed"]) for result in results]
    bins = rows_of(TimeBin, max(-(-count // each) for count, each in zip(counts, joined, strict=True)))
    for name in fields_of(bins):
        for result, count, each in zip(results, counts, joined, strict=True):
            np.add.at(bins[name], np.arange(count) // each, result.bins[name])
    return bins
