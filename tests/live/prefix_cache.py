"""The simulator's prefix cache beside vLLM's own KVCacheManager: every look-up and every table of blocks is compared.

Runs with NUMBA_DISABLE_JIT=1, so that calls of the compiled code can be watched:
NUMBA_DISABLE_JIT=1 python -m tests.live.prefix_cache
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from specmargin.modes import Scheduling
from specmargin.simulator import arrivals, core, pool, scheduler
from specmargin.simulator.engine import BLOCK_TOKENS, EngineSettings
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import (
    BlockHashes,
    Cancels,
    Category,
    ClosedLoop,
    FixedLength,
    Poisson,
    Sessions,
    Trace,
    UniformLength,
)
from tests.simulations import serving

_FAR = 1 << 20  # tokens: no request is longer


class Watched:
    """vLLM's manager, told of everything that the simulated scheduler does with blocks."""

    def __init__(self, blocks: int, lookahead: int, *, head: bool) -> None:
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=blocks + 1,  # vLLM keeps one for padding
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(
            config,
            max_model_len=_FAR,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            use_eagle=head,
        )
        self.lookahead = lookahead
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self.requests: dict[int, Request] = {}
        self.found: dict[int, Any] = {}
        self.seen: Counter[str] = Counter()

    def request_of(self, state: Any, number: int) -> Request:
        """vLLM's request with the tokens so far. All tokens of a block are the number of its content."""
        row, client = state.requests[number], state.clients[number]
        length = int(row.prompt_tokens + row.emitted)
        tokens = [int(pool._content(state.pool, client, place // BLOCK_TOKENS)) for place in range(length)]
        request = self.requests.get(number)
        if request is None:
            prompt = tokens[: int(row.prompt_tokens)]
            parameters = SamplingParams(max_tokens=int(row.output_tokens))
            request = Request(str(number), prompt, parameters, None, block_hasher=self.hasher)
            self.requests[number] = request
        request.append_output_token_ids(tokens[request.num_tokens :])
        request.num_computed_tokens = int(row.computed)
        return request

    def look_up(self, state: Any, number: int, found: int) -> None:
        request = self.request_of(state, number)
        request.num_computed_tokens = 0
        self.found[number] = self.manager.get_computed_blocks(request)
        assert self.found[number][1] == found * BLOCK_TOKENS, (number, self.found[number][1], found)
        self.seen["look-ups"] += 1
        self.seen["found tokens"] += found * BLOCK_TOKENS

    def admit(self, state: Any, number: int, planned: int) -> None:
        blocks, tokens, _ = self.found.pop(number)
        request = self.request_of(state, number)
        request.num_computed_tokens = 0
        allocated = self.manager.allocate_slots(
            request, planned, tokens, blocks, num_lookahead_tokens=self.lookahead, full_sequence_must_fit=True
        )
        assert allocated is not None, number
        self.seen["admissions"] += 1

    def grow(self, state: Any, number: int, planned: int) -> None:
        request = self.request_of(state, number)
        assert self.manager.allocate_slots(request, planned, num_lookahead_tokens=self.lookahead) is not None, number

    def free(self, number: int) -> None:
        self.manager.free(self.requests[number])
        self.seen["freed"] += 1

    def compare(self, state: Any, number: int, blocks: int) -> None:
        """vLLM's block 0 is its padding; its others are the simulator's, counted from 1."""
        (theirs,) = self.manager.get_block_ids(str(number))
        own = state.pool.tables[state.clients[number].table, :blocks]
        assert [int(block) + 1 for block in own] == theirs, number
        self.seen["tables"] += 1


def watch(run: Serving) -> Counter[str]:
    """Simulate, and compare at every look-up, allocation and release."""
    watched: list[Watched] = []
    original = {name: getattr(scheduler, name) for name in ("find_prefix", "_hold", "_grow", "_admit", "schedule")}
    released = arrivals.release
    current: dict[str, Any] = {}

    def schedule(simulation: Any) -> None:
        limits = simulation.limits
        if not watched:
            head = bool(simulation.state.pool.dropped)
            watched.append(Watched(limits.kv.blocks, limits.kv.lookahead_tokens, head=head))
        original["schedule"](simulation)
        _compare_free(simulation.state, watched[0], limits.kv.blocks)

    def admit(limits: Any, state: Any, budget: int) -> None:
        current["state"] = state
        original["_admit"](limits, state, budget)

    def find_prefix(blocks: Any, client: Any, tokens: int) -> int:
        found = int(original["find_prefix"](blocks, client, tokens))
        state = current["state"]
        first = state.engine[0]
        number = int(state.stack[first.stacked - 1] if first.stacked > 0 else state.queue[first.queue_head])
        watched[0].look_up(state, number, found)
        return found

    def hold(state: Any, number: int, found: int, planned: int) -> None:
        original["_hold"](state, number, found, planned)
        watched[0].admit(state, int(number), int(planned))
        watched[0].compare(state, int(number), int(state.requests[number].blocks))

    def grow(state: Any, number: int, new_blocks: int, planned: int) -> None:
        original["_grow"](state, number, new_blocks, planned)
        watched[0].grow(state, int(number), int(planned))
        watched[0].compare(state, int(number), int(state.requests[number].blocks + max(new_blocks, 0)))

    def release(limits: Any, state: Any, number: int) -> None:
        released(limits, state, number)
        watched[0].free(int(number))

    changed = {"find_prefix": find_prefix, "_hold": hold, "_grow": grow, "_admit": admit, "release": release}
    try:
        for name, function in changed.items():
            setattr(scheduler, name, function)
        arrivals.release = release
        setattr(core, "schedule", schedule)  # noqa: B010 (not exported)
        result = simulate(run)
    finally:
        for name, function in (original | {"release": released}).items():
            setattr(scheduler, name, function)
        arrivals.release = released
        setattr(core, "schedule", original["schedule"])  # noqa: B010
    seen = watched[0].seen
    seen["preemptions"], seen["cancelled"] = int(result.totals.preemptions), int(result.totals.cancelled)
    return seen


def _compare_free(state: Any, watched: Watched, blocks: int) -> None:
    """The free blocks, in the order in which they will be reused."""
    theirs = [block.block_id for block in watched.manager.block_pool.free_block_queue.get_all_free_blocks()]
    own, at = [], int(state.pool.blocks[blocks].after)
    while at != blocks:
        own.append(at + 1)
        at = int(state.pool.blocks[at].after)
    assert own == theirs


# --- loads ---


def random_trace(seed: int, requests: int = 60) -> Trace:
    """Synthetic, in the form of Mooncake's: prompts that are random walks down a tree of blocks."""
    generator = np.random.default_rng(seed)
    ids, first, known = [], [0], dict[tuple[int, ...], int]()
    prompts = generator.integers(1, 420, requests)
    for prompt in prompts:
        walk: tuple[int, ...] = ()
        for _ in range(-(-int(prompt) // 64)):
            walk = (*walk, int(generator.integers(0, 2)))
            ids.append(known.setdefault(walk, len(known)))
        first.append(len(ids))
    return Trace(
        arrival_seconds=np.sort(generator.uniform(0.0, 0.6, requests)),
        prompt_tokens=prompts,
        output_tokens=generator.integers(1, 60, requests),
        source="random",
        hashes=BlockHashes(ids=np.array(ids), first=np.array(first), block_tokens=64),
    )


def loads() -> dict[str, Serving]:
    small = EngineSettings(max_num_seqs=8, max_num_batched_tokens=96, kv_blocks=48)
    base = serving(engine=small, drafter="eagle", policy="fixed:3")
    trace = replace(base.workload, arrivals=random_trace(1))
    sessions = replace(
        base.workload,
        arrivals=ClosedLoop(users=6, requests=60),
        prompt=UniformLength(least=1, most=60),
        output=UniformLength(least=1, most=40),
        sessions=Sessions(turns=UniformLength(least=1, most=5), think_seconds=0.02, shared_tokens=70),
    )
    cancelled = replace(sessions, cancels=Cancels(share=0.3, tokens=FixedLength(tokens=9)))
    ranked = (Category(name="all", priority=1), Category(name="more", priority=0))
    by_priority = replace(small, scheduling=Scheduling.PRIORITY)
    two = replace(base.bank, categories=("all", "more"), first_by_category=np.array([0, 8192, 16384]))
    return {
        "a trace": replace(base, workload=trace),
        "without speculation": replace(base, workload=replace(trace, arrivals=random_trace(2)), policy="none"),
        "sessions": replace(base, workload=sessions),
        "sessions at a rate": replace(
            base, workload=replace(sessions, arrivals=Poisson(requests_per_second=30.0, requests=60))
        ),
        "cancelled": replace(base, workload=cancelled),
        "by priority": replace(
            base, workload=replace(sessions, categories=ranked), bank=two, engine=by_priority, seed=3
        ),
    }


def main() -> None:
    init_none_hash(sha256)
    print(json.dumps({name: dict(watch(load)) for name, load in loads().items()}))


if __name__ == "__main__":
    main()
