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
from specmargin.limits import ALL_BUT_LAST
from specmargin.records import Rows, fields_of, rows_of
from specmargin.simulator.results import PoolsSeen, Result
from specmargin.simulator.run import held_depth
from specmargin.simulator.serving import Pools, Serving
from specmargin.simulator.shortened import affordable
from specmargin.simulator.state import EngineRow, TimeBin, Totals
from specmargin.simulator.workload import Drawn, Request
from specmargin.step import FloatArray, IntArray

RunOne = Callable[[Serving], Result]  # of one instance


def simulate_pools(serving: Serving, run: RunOne) -> Result:
    """The result is that of the decode instances; requests arrive when their clients send them."""
    pools = check_pools(serving)
    traffic, drawn = affordable(serving.workload, serving.seed)
    requests, whole = traffic.requests, np.arange(traffic.requests.size)
    reads = whole % pools.prefill
    busy = min(pools.prefill, whole.size)
    read = [run(_prefill(serving, _chosen(requests, whole[reads == i]))) for i in range(busy)]
    ready = np.full(whole.size, np.nan)
    for i, result in enumerate(read):
        ready[reads == i] = result.requests["finish_seconds"]
    order = np.argsort(ready, kind="stable")[: int(np.isfinite(ready).sum())]
    decodes = np.zeros_like(whole)
    decodes[order] = np.arange(order.size) % pools.decode
    sizes = _kv_bytes_per_gpu(serving, requests)
    moving = sizes / pools.bytes_per_second + pools.latency_seconds
    arrived = _arrivals(serving, (ready, moving), order, (reads, decodes))
    parts = [order[decodes[order] == i] for i in range(pools.decode)]
    parts = [part[np.argsort(arrived[part], kind="stable")] for part in parts]
    decoded = [run(_decode(serving, _chosen(requests, part, arrived[part]))) for part in parts if part.size]
    for part, result in zip((part for part in parts if part.size), decoded, strict=True):
        for name in ("computed", "emitted", "blocks", "preemptions", "first_token_seconds", "finish_seconds"):
            requests[name][part] = result.requests[name]
    seen = PoolsSeen(
        pools=pools,
        prefill_seconds=np.asarray(ready - requests["arrival_seconds"]),
        transfer_seconds=np.asarray(arrived - ready),
        kv_bytes_per_gpu=float(sizes.mean()),
        prefill_busy_share=sum(result.busy_seconds for result in read)
        / (pools.prefill * max(float(result.totals.clock) for result in read)),
    )
    return replace(
        _merged(decoded, refused=whole.size - order.size),
        serving=serving,
        requests=requests,
        clients=traffic.clients,
        drawn=drawn,
        pools=seen,
    )


def check_pools(serving: Serving) -> Pools:
    """Raise for loads of which two pools are not simulated."""
    pools, workload, arrivals = serving.pools, serving.workload, serving.workload.arrivals
    assert pools is not None
    if workload.users:
        raise ScenarioError(
            "--prefill-instances: users who wait for their answers are not simulated there; give --qps or --trace, or "
            "leave it out and plan the decode instance for them (`plan --decode-only --concurrency N`)"
        )
    hashed = serving.engine.prefix_cache and getattr(arrivals, "hashes", None) is not None
    if hashed or getattr(arrivals, "priority", None) is not None:
        raise ScenarioError(
            "--prefill-instances: block hashes and priorities of a trace are not simulated there; leave those columns "
            "out, or give --no-prefix-cache"
        )
    prioritised = any(category.priority is not None for category in workload.categories)
    if workload.sessions is not None or workload.cancels is not None or prioritised:
        raise ScenarioError(
            "--prefill-instances: sessions, cancelled requests and priorities are not simulated there; leave them out"
        )
    if serving.router is not None and pools.decode > 1:
        raise ScenarioError("--router is of the ranks of one decode instance: leave out it or --decode-instances")
    return pools


# --- the instances ---


def _chosen(requests: Rows[Request], chosen: IntArray, arrivals: FloatArray | None = None) -> Rows[Request]:
    rows = cast("Rows[Request]", np.asarray(requests)[chosen])
    if arrivals is not None:
        rows["arrival_seconds"][:] = arrivals
    return rows


def _prefill(serving: Serving, requests: Rows[Request]) -> Serving:
    requests["output_tokens"][:] = 1
    speculates = held_depth(serving, serving.policy) is not None
    return _instance(serving, requests, policy="off" if speculates else "none")


def _decode(serving: Serving, requests: Rows[Request]) -> Serving:
    return _instance(serving, requests, engine=replace(serving.engine, prefix_hit=ALL_BUT_LAST))


def _instance(serving: Serving, requests: Rows[Request], **changed: Any) -> Serving:
    workload = replace(serving.workload, arrivals=Drawn(rows=requests))
    return replace(serving, workload=workload, pools=None, steady=False, **changed)


# --- between them ---


def _kv_bytes_per_gpu(serving: Serving, requests: Rows[Request]) -> FloatArray:
    """Of each prompt: as long as its tokens, the drafter's part and recurrent states included."""
    held, pricer, prompts = held_depth(serving, serving.policy), serving.pricer, requests["prompt_tokens"]
    lengths = np.unique(np.geomspace(prompts.min(), prompts.max(), 64).round())
    by_length = [pricer.sequence_bytes(held, float(length)) for length in lengths]
    return np.asarray(np.interp(prompts, lengths, by_length))


def _arrivals(
    serving: Serving, seconds: tuple[FloatArray, FloatArray], order: IntArray, instances: tuple[IntArray, IntArray]
) -> FloatArray:
    """When the KV of each prompt is there; `seconds`: when it is read, and what moving it takes."""
    (ready, moving), (reads, decodes), pools = seconds, instances, serving.pools
    assert pools is not None
    ranks = max(serving.scenario.layout.sequence_ranks, 1)
    source = (reads * ranks + np.arange(reads.size) // pools.prefill % ranks).astype(np.int64)
    turn = np.zeros_like(reads)
    turn[order] = np.arange(order.size) // pools.decode
    destination = ((pools.prefill + decodes) * ranks + turn % ranks).astype(np.int64)
    free = np.zeros(pools.instances * ranks)
    arrived = np.full(ready.size, np.nan)
    _carry(order.astype(np.int64), ready, moving, source, destination, free, arrived)
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
