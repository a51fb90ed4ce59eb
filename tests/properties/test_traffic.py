"""Prefix caches, cancelled requests, priorities and sessions: blocks are conserved, and what is not asked for changes
nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from specmargin.errors import ScenarioError
from specmargin.modes import Scheduling
from specmargin.simulator import core
from specmargin.simulator.results import Result
from specmargin.simulator.run import prepare, simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.state import State
from specmargin.simulator.traffic import traffic_of
from specmargin.simulator.workload import (
    BlockHashes,
    Cancels,
    Category,
    FixedLength,
    Sessions,
    Trace,
    UniformLength,
    draw,
)
from tests.properties.loads import Drawn, loads, served

_sessions = st.builds(
    Sessions,
    turns=st.builds(UniformLength, least=st.just(1), most=st.integers(1, 6)),
    think_seconds=st.sampled_from((0.0, 0.01, 1.0)),
    shared_tokens=st.sampled_from((0, 15, 100, 512)),
)
_cancels = st.one_of(
    st.none(),
    st.builds(Cancels, share=st.just(0.4), tokens=st.builds(FixedLength, tokens=st.integers(1, 20))),
    st.builds(Cancels, share=st.just(0.4), seconds=st.sampled_from((1e-4, 0.05, 2.0))),
)


def in_sessions(load: Drawn, sessions: Sessions, cancels: Cancels | None = None, **engine: Any) -> Serving:
    """The load as sessions; their histories are longer than its prompts."""
    base = load.serving()
    workload = replace(base.workload, sessions=sessions, cancels=cancels)
    return replace(base, workload=workload, engine=replace(base.engine, **engine))


def hashed(load: Drawn) -> Trace:
    """The load's requests as a trace whose prompts share beginnings."""
    serving = load.serving()
    requests = draw(serving.workload, serving.seed)
    prompts, generator = requests["prompt_tokens"], np.random.default_rng(load.seed)
    ids, first, known = [], [0], dict[tuple[int, ...], int]()
    for prompt in prompts:
        walk: tuple[int, ...] = ()
        for _ in range(-(-int(prompt) // 32)):
            walk = (*walk, int(generator.integers(0, 2)))
            ids.append(known.setdefault(walk, len(known)))
        first.append(len(ids))
    return Trace(
        arrival_seconds=np.arange(requests.size, dtype=np.float64) * 1e-3,
        prompt_tokens=prompts.copy(),
        output_tokens=requests["output_tokens"].copy(),
        source="drawn",
        hashes=BlockHashes(ids=np.array(ids, dtype=np.int64), first=np.array(first), block_tokens=32),
    )


def check_blocks(state: State, total: int) -> None:
    """Free, kept and held blocks are all blocks; holders are those whose tables have the block."""
    pool, engine = state.pool, state.engine[0]
    free, kept, at = set(), 0, int(pool.blocks[total].after)
    while at != total:
        free.add(at)
        kept += int(pool.blocks[at].content) >= 0
        assert pool.blocks[at].holders == 0
        at = int(pool.blocks[at].after)
    holders = np.zeros(total, dtype=np.int64)
    for i in range(int(engine.running)):
        number = int(state.slots[i].request)
        table = pool.tables[int(state.clients[number].table), : int(state.requests[number].blocks)]
        np.add.at(holders, table, 1)
    np.testing.assert_array_equal(holders, pool.blocks["holders"][:total])
    assert len(free) == engine.free_blocks and kept == pool.counts[0].kept
    assert len(free) + int((holders > 0).sum()) == total
    known = pool.oldest[pool.oldest >= 0]
    assert (pool.blocks["content"][known] == np.flatnonzero(pool.oldest >= 0)).all()


@pytest.mark.slow
@settings(max_examples=40)
@given(load=loads, sessions=_sessions, cancels=_cancels, ranked=st.booleans())
def test_blocks_are_free_or_held_after_every_step(
    load: Drawn, sessions: Sessions, cancels: Cancels | None, ranked: bool
) -> None:
    scheduling = Scheduling.PRIORITY if ranked else Scheduling.FCFS
    small = replace(load, policy="fixed:2", blocks=min(load.blocks, 90))  # the free ones are walked in Python
    serving = in_sessions(small, sessions, cancels, scheduling=scheduling)
    serving = replace(serving, workload=replace(serving.workload, categories=(Category(name="all", priority=1),)))
    try:
        run = prepare(serving)
    except ScenarioError:  # no request fits
        reject()
    simulation, code = run.simulation, core.RUNNING
    total = simulation.limits.kv.blocks
    while code != core.FINISHED:
        code = core.run(run.simulation, 1)
        if code == core.LOG_FULL:
            run.collect_log()
        check_blocks(simulation.state, total)
    requests, clients, totals = simulation.state.requests, simulation.state.clients, simulation.state.totals[0]
    assert totals.finished + totals.refused + totals.cancelled == requests.size
    assert simulation.state.engine[0].free_blocks == total
    assert (clients["cached_tokens"] <= requests["prompt_tokens"] - 1).all()
    assert totals.prefix_hits == clients["cached_tokens"].sum()
    served = np.isfinite(requests["finish_seconds"])
    assert totals.committed - totals.cancelled_tokens == requests["output_tokens"][served].sum()
    assert int(np.isfinite(clients["cancelled_seconds"]).sum()) == totals.cancelled


@settings(max_examples=25)
@given(load=loads)
def test_prompts_of_a_trace_are_found_or_computed_once(load: Drawn) -> None:
    """Found and computed tokens are the prompts, where nothing is preempted; without the cache, all are computed."""
    arrivals = hashed(load)
    base = load.serving()
    workload = replace(base.workload, arrivals=arrivals)
    with_cache = served(load, workload=workload)
    totals, requests = with_cache.totals, with_cache.requests
    prompts = int(requests["prompt_tokens"][with_cache.finished].sum())
    assert totals.prefix_queries == prompts
    assert (with_cache.clients["cached_tokens"] <= np.maximum(requests["prompt_tokens"] - 1, 0)).all()
    if totals.preemptions == 0:
        assert totals.prefilled + totals.prefix_hits == prompts
    else:
        assert totals.prefilled + totals.prefix_hits < prompts + totals.preemptions * (900 + 90)
        assert (requests["preemptions"] > 0).any() and with_cache.finished[requests["preemptions"] > 0].all()


@settings(max_examples=25)
@given(load=loads)
def test_without_the_cache_hashes_change_nothing(load: Drawn) -> None:
    arrivals = hashed(load)
    base = load.serving()
    plain = served(load, workload=replace(base.workload, arrivals=replace(arrivals, hashes=None)))
    ignored = served(
        load,
        workload=replace(base.workload, arrivals=arrivals),
        engine=replace(base.engine, prefix_cache=False),
    )
    assert _history(plain) == _history(ignored)


@settings(max_examples=25)
@given(load=loads)
def test_prompts_that_share_nothing_are_served_as_without_hashes(load: Drawn) -> None:
    """Every block is unlike all others. A request that is preempted may find its own blocks, and is left out."""
    arrivals = hashed(load)
    assert arrivals.hashes is not None
    unlike = replace(arrivals.hashes, ids=np.arange(arrivals.hashes.ids.size))
    workload = load.serving().workload
    own = served(load, workload=replace(workload, arrivals=replace(arrivals, hashes=unlike)))
    if own.totals.preemptions == 0:
        plain = served(load, workload=replace(workload, arrivals=replace(arrivals, hashes=None)))
        assert _history(own) == _history(plain)
    assert own.totals.prefix_hits == 0


@settings(max_examples=25)
@given(load=loads)
def test_cancelling_after_the_last_token_is_not_cancelling(load: Drawn) -> None:
    workload = load.serving().workload
    cancels = Cancels(share=1.0, tokens=FixedLength(tokens=load.longest[1]), seconds=1e9)
    cancelled = served(load, workload=replace(workload, cancels=cancels))
    assert cancelled.totals.cancelled == 0
    assert _history(cancelled) == _history(served(load))


@settings(max_examples=25)
@given(load=loads, sessions=st.one_of(st.none(), _sessions))
def test_equal_priorities_are_first_come_first_served(load: Drawn, sessions: Sessions | None) -> None:
    base = load.serving()
    workload = replace(base.workload, sessions=sessions, categories=(Category(name="all", priority=3),))
    by_priority = replace(base.engine, scheduling=Scheduling.PRIORITY)
    try:
        ranked = simulate(replace(base, workload=workload, engine=by_priority), log_steps=True)
    except ScenarioError:  # no request fits
        reject()
    assert _history(ranked) == _history(simulate(replace(base, workload=workload), log_steps=True))


@settings(max_examples=25)
@given(load=loads)
def test_the_lowest_value_waits_least(load: Drawn) -> None:
    """Of requests that arrive together, those of the first priority are admitted first."""
    serving = load.serving()
    arrivals = hashed(load)
    priority = np.arange(arrivals.requests) % 2
    together = replace(arrivals, arrival_seconds=np.zeros(arrivals.requests), priority=priority, hashes=None)
    engine = replace(serving.engine, scheduling=Scheduling.PRIORITY)
    result = served(load, workload=replace(serving.workload, arrivals=together), engine=engine)
    first = result.requests["first_token_seconds"]
    urgent, others = first[(priority == 0) & result.finished], first[(priority == 1) & result.finished]
    if urgent.size and others.size and result.totals.preemptions == 0:
        assert urgent.max() <= others.min()


@settings(max_examples=25)
@given(load=loads, sessions=_sessions)
def test_sessions_send_each_turn_after_the_answer_with_all_that_was_said(load: Drawn, sessions: Sessions) -> None:
    serving = in_sessions(load, sessions)
    try:
        result = simulate(serving)
    except ScenarioError:
        reject()
    requests, clients = result.requests, result.clients
    drawn = traffic_of(serving.workload, serving.seed).requests["prompt_tokens"]
    assert sorted(drawn) == sorted(requests["prompt_tokens"])
    assert (np.diff(requests["arrival_seconds"]) >= 0.0).all()  # as they arrived, not as they were drawn
    for turn in range(requests.size):
        following = int(clients[turn].next_turn)
        if following >= 0:
            said = int(requests[turn].prompt_tokens + requests[turn].output_tokens)
            assert requests[following].prompt_tokens > said
            if result.finished[turn]:
                waited = requests[following].arrival_seconds - requests[turn].finish_seconds
                assert waited == pytest.approx(clients[turn].think_seconds, abs=1e-9)
    assert (requests["prompt_tokens"] > sessions.shared_tokens).all()


def _history(result: Result) -> tuple[bytes | float, ...]:
    """What happened, to the last bit."""
    times = (np.asarray(result.requests[name]) for name in ("first_token_seconds", "finish_seconds", "preemptions"))
    return result.steps.tobytes(), *(values.tobytes() for values in times), float(result.totals.clock)
