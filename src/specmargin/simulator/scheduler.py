"""The engine's part of a step, the same for every policy: schedule, commit, close. Compiled.

Follows vLLM V1: running requests are scheduled first, in order of arrival, then waiting requests, until the token
budget is spent. Long prompts are prefilled in chunks. A request is admitted when its whole prompt fits in free blocks.
When blocks run out, the most recent request (by priority: the last of the lowest priority) is preempted and recomputed
later. Drafts made at the end of a step are verified in the next step.
"""

from __future__ import annotations

from specmargin.compiler import compiled, compiled_apart
from specmargin.simulator.arrivals import blocks_for, dequeue, put_back, read, release, unread
from specmargin.simulator.costs import slowdown_at
from specmargin.simulator.pool import begin, find_prefix, free_among, learn, take
from specmargin.simulator.queues import comes_before
from specmargin.simulator.state import Limits, Log, Simulation, State


@compiled
def schedule(simulation: Simulation) -> None:
    """Plan the positions of every slot, allocate blocks, preempt when none are free, and sum the work of the step."""
    limits, state = simulation.limits, simulation.state
    requests, slots, engine, step = state.requests, state.slots, state.engine[0], state.step[0]
    effective = simulation.tables.effective_by_category
    step.rounds = step.extra = step.prompt_tokens = step.ready = 0
    step.context = step.effective = step.attended = step.draft_context = 0.0
    budget = limits.max_tokens
    preempting = False
    i = 0
    while i < engine.running and budget > 0:
        slot = slots[i]
        request = requests[slot.request]
        remaining = request.prompt_tokens + request.emitted - request.computed
        decoding = remaining == 1 and request.emitted > 0
        planned = min(remaining + request.verify if decoding else remaining, budget)
        new_blocks = _new_blocks(limits, request.computed + planned, request.blocks)
        if new_blocks > engine.free_blocks:
            preempting = True
            i, budget = _make_room(simulation, i, budget, new_blocks)
            if i < 0:  # the request itself was preempted
                i = -1 - i
                break
            slot = slots[i]
        if limits.hashed:
            _grow(state, slot.request, new_blocks, planned)
        if new_blocks > 0:
            request.blocks += new_blocks
            engine.free_blocks -= new_blocks
        slot.planned = planned
        if decoding:
            slot.prompting = 0
            step.rounds += 1
            step.extra += planned - 1
            step.context += request.computed
            step.effective += effective[request.category, planned - 1]
        else:
            _schedule_prompt(state, i, planned)
        budget -= planned
        i += 1
    for j in range(i, engine.running):
        slots[j].planned = 0
    waiting = engine.stacked > 0 or engine.queue_head < engine.queue_tail
    if waiting and not preempting and engine.running < limits.max_seqs:
        _admit(limits, state, budget)
    step.ready += step.rounds
    totals = state.totals[0]
    totals.peak_blocks = max(totals.peak_blocks, limits.kv.blocks - engine.free_blocks)


@compiled
def _new_blocks(limits: Limits, tokens: int, blocks: int) -> int:
    """Blocks that a request with so many needs for its tokens: mostly none, which is found without a division."""
    kv = limits.kv
    if tokens + kv.lookahead_tokens <= (blocks - kv.blocks_per_sequence) * kv.block_tokens:
        return 0
    return blocks_for(tokens, limits) - blocks


@compiled
def _schedule_prompt(state: State, index: int, planned: int) -> None:
    """Schedule a chunk of a prompt. After the last chunk the sequence drafts at the end of the step."""
    slot, step = state.slots[index], state.step[0]
    request = state.requests[slot.request]
    slot.planned = planned
    slot.prompting = 1
    step.prompt_tokens += planned
    step.attended += planned * (request.computed + 0.5 * planned)
    if request.computed + planned == request.prompt_tokens + request.emitted:
        step.ready += 1


@compiled_apart
def _grow(state: State, number: int, new_blocks: int, planned: int) -> None:
    """Take blocks for the positions of this step, and make known those that it fills."""
    if new_blocks > 0:
        take(state.pool, state.clients[number], state.requests[number].blocks, new_blocks)
    _learn(state, number, planned)


@compiled
def _learn(state: State, number: int, planned: int) -> None:
    """Other requests find a block from the step on that fills it with tokens that are final."""
    request, client, pool = state.requests[number], state.clients[number], state.pool
    final = min(request.computed + planned, request.prompt_tokens + request.emitted)
    if final // pool.block_tokens > client.known_blocks:
        learn(pool, client, final)


@compiled_apart
def _make_room(simulation: Simulation, index: int, budget: int, blocks: int) -> tuple[int, int]:
    """Preempt others until `blocks` are free for the request at `index`. Returns its index then, or -1 minus it if the
    request itself was preempted, and the budget."""
    limits, state = simulation.limits, simulation.state
    engine = state.engine[0]
    while blocks > engine.free_blocks:
        victim = _lowest(state) if limits.by_priority else engine.running - 1
        if victim < index:
            budget += _take_back(simulation, victim)
        _preempt(limits, state, victim)
        if victim == index:
            return -1 - index, budget
        if victim < index:
            index -= 1
    return index, budget


@compiled
def _preempt(limits: Limits, state: State, victim: int) -> None:
    """Free the blocks of a running request; it is recomputed when there is room."""
    engine, slots = state.engine[0], state.slots
    number = slots[victim].request
    request = state.requests[number]
    engine.running -= 1
    for j in range(victim, engine.running):
        slots[j].request, slots[j].planned, slots[j].prompting = (
            slots[j + 1].request,
            slots[j + 1].planned,
            slots[j + 1].prompting,
        )
    release(limits, state, number)
    state.totals[0].preemptions += 1
    request.preemptions += 1
    request.computed = request.held = request.verify = 0
    put_back(limits, state, number)


@compiled
def _lowest(state: State) -> int:
    """The running request that vLLM preempts first by priority: the highest value, of these the last to arrive."""
    lowest = 0
    for i in range(1, state.engine[0].running):
        if comes_before(state.requests, state.clients, state.slots[lowest].request, state.slots[i].request, True):
            lowest = i
    return lowest


@compiled
def _take_back(simulation: Simulation, index: int) -> int:
    """Undo what this step has scheduled of a request. Returns its positions."""
    state, effective = simulation.state, simulation.tables.effective_by_category
    slot, step = state.slots[index], state.step[0]
    request, planned = state.requests[slot.request], slot.planned
    if slot.prompting:
        step.prompt_tokens -= planned
        step.attended -= planned * (request.computed + 0.5 * planned)
        if request.computed + planned == request.prompt_tokens + request.emitted:
            step.ready -= 1
    else:
        step.rounds -= 1
        step.extra -= planned - 1
        step.context -= request.computed
        step.effective -= effective[request.category, planned - 1]
    return planned


@compiled_apart
def _admit(limits: Limits, state: State, budget: int) -> None:
    """Admit waiting requests in order, preempted ones first, until one does not fit."""
    engine = state.engine[0]
    while (
        budget > 0
        and engine.running < limits.max_seqs
        and (engine.stacked > 0 or engine.queue_head < engine.queue_tail)
    ):
        resumed = engine.stacked > 0
        number = state.stack[engine.stacked - 1] if resumed else state.queue[engine.queue_head]
        request = state.requests[number]
        tokens = request.prompt_tokens + request.emitted
        found = find_prefix(state.pool, state.clients[number], tokens) if limits.hashed else 0
        if blocks_for(tokens, limits) - _held_by_others(limits, state, number, found) > engine.free_blocks:
            return
        if resumed:
            engine.stacked -= 1
        else:
            dequeue(limits, state)
        if limits.hashed:
            request.computed = found * limits.kv.block_tokens
        else:
            request.computed = int(limits.prefix_hit * request.prompt_tokens)
            if limits.kv_arrives and not resumed:
                request.computed = request.prompt_tokens - 1
        planned = min(tokens - request.computed, budget)
        request.blocks = blocks_for(request.computed + planned, limits)
        if limits.hashed:
            _hold(state, number, found, planned)
        else:
            engine.free_blocks -= request.blocks
        _count_cached(limits, state, number)
        state.slots[engine.running].request = number
        engine.running += 1
        _schedule_prompt(state, engine.running - 1, planned)
        budget -= planned


@compiled
def _held_by_others(limits: Limits, state: State, number: int, found: int) -> int:
    """Blocks of the found prefix that take no free block, because running requests hold them."""
    return found - free_among(state.pool, state.clients[number], found) if limits.hashed and found > 0 else 0


@compiled
def _hold(state: State, number: int, found: int, planned: int) -> None:
    """Hold the found blocks and take free ones for the rest; blocks of recurrent states are before those of tokens."""
    pool, client, blocks = state.pool, state.clients[number], state.requests[number].blocks
    state.engine[0].free_blocks -= blocks - found + free_among(pool, client, found)
    begin(pool, client, found)
    take(pool, client, 0, pool.first_content)
    after = pool.first_content + found
    take(pool, client, after, blocks - after)
    _learn(state, number, planned)


@compiled
def _count_cached(limits: Limits, state: State, number: int) -> None:
    """As vLLM counts: of first admissions, not of requests that are recomputed."""
    request, totals = state.requests[number], state.totals[0]
    if request.preemptions == 0:
        totals.prefix_queries += request.prompt_tokens
        totals.prefix_hits += request.computed
        if limits.hashed:
            state.clients[number].cached_tokens = request.computed


@compiled
def commit(simulation: Simulation) -> None:
    """Commit tokens and finish requests. Sequences that continue hold a draft of the chosen depth."""
    state = simulation.state
    requests, slots, engine, step, totals = state.requests, state.slots, state.engine[0], state.step[0], state.totals[0]
    accepted_by_round, following = simulation.rounds.accepted, simulation.rounds.following
    step.fresh = step.done = 0
    running = rounds = ready = committed = accepted_total = 0
    for i in range(engine.running):
        slot = slots[i]
        number = slot.request
        request = requests[number]
        new_tokens = 0
        if slot.planned > 0 and slot.prompting:
            new_tokens = _commit_prompt(state, number, slot.planned)
        elif slot.planned > 0:
            verified = slot.planned - 1
            round_ = request.next_round
            accepted_here = min(accepted_by_round[round_], verified)
            request.next_round = following[round_]
            state.drafted[rounds] = request.held
            state.verified[rounds] = verified
            state.accepted[rounds] = accepted_here
            rounds += 1
            new_tokens = min(accepted_here + 1, request.output_tokens - request.emitted)
            accepted_total += accepted_here
            totals.cut += accepted_here + 1 - new_tokens
            request.computed += new_tokens
        drafts = 0
        if new_tokens == 0:  # no budget left, or the prompt is not complete
            request.held = request.verify = 0 if slot.planned > 0 else request.held
        else:
            request.emitted += new_tokens
            committed += new_tokens
            if request.emitted >= request.output_tokens:
                state.done[step.done] = number
                step.done += 1
                continue
            request.held = request.verify = engine.chosen_depth
            ready += 1
            step.draft_context += request.computed
            drafts = 1
        slots[running].request, slots[running].drafts = number, drafts
        running += 1
    engine.running, step.ready = running, ready
    step.committed, step.accepted = committed, accepted_total
    totals.committed += committed
    totals.accepted += accepted_total
    totals.verified += step.extra


@compiled
def _commit_prompt(state: State, number: int, positions: int) -> int:
    """Tokens that the chunk commits: 1 when the prompt (or a recomputed sequence) is complete, else 0."""
    request, step = state.requests[number], state.step[0]
    request.computed += positions
    state.totals[0].prefilled += positions
    if request.computed < request.prompt_tokens + request.emitted:
        return 0
    if request.emitted == 0:
        state.fresh[step.fresh] = number
        step.fresh += 1
    return 1


@compiled
def close(simulation: Simulation) -> None:
    """Advance the clock, let clients have their tokens, and log the step."""
    limits, state, overlap = simulation.limits, simulation.state, simulation.tables.overlap
    engine, step, totals = state.engine[0], state.step[0], state.totals[0]
    seconds = step.target_seconds + step.draft_seconds
    if overlap >= 0.0:
        seconds = max(step.target_seconds, step.draft_seconds) + (1.0 - overlap) * step.draft_seconds
    engine.draft_seconds = seconds - step.target_seconds
    totals.draft += seconds - step.target_seconds
    start, used = totals.clock, limits.kv.blocks - engine.free_blocks
    if limits.ahead:
        seconds = _run_ahead(simulation, seconds)
    totals.clock += seconds
    totals.busy += seconds
    unread(state)
    if not limits.ahead:
        read(limits, state, totals.clock)
    _log_step(simulation, start, seconds, used)
    engine.depth, engine.gated = engine.chosen_depth, engine.chosen_gated
    engine.steps += 1


@compiled
def _run_ahead(simulation: Simulation, alone_seconds: float) -> float:
    """Seconds until a step ends that the host launched while the one before ran; alone it takes `alone_seconds`.

    As vLLM's `EngineCore.step_with_batch_queue`: the host schedules and launches a step, then reads the tokens of the
    step before, which may have waited for these launches, then schedules the next one.
    """
    state, tables = simulation.state, simulation.tables
    engine, step, totals = state.engine[0], state.step[0], state.totals[0]
    kernels = alone_seconds - step.waiting_seconds
    host = tables.host_step_seconds + tables.host_sequence_seconds * (step.rounds + step.ready)
    host *= slowdown_at(tables, engine.decided)
    begin = engine.decided + min(host, kernels)  # graphs are launched at the end of this, others from then on
    launched = begin + step.launch_seconds
    seconds = max(max(totals.clock, begin) + kernels, launched) - totals.clock
    totals.launches += seconds - alone_seconds
    engine.decided = max(totals.clock, launched)
    if engine.unread + engine.unread_ends > 0:
        read(simulation.limits, state, engine.decided)
    return seconds


@compiled
def _log_step(simulation: Simulation, start: float, seconds: float, used: int) -> None:
    log, state = simulation.log, simulation.state
    engine, step = state.engine[0], state.step[0]
    waiting = engine.queue_tail - engine.queue_head + engine.stacked
    time_bin = log.bins[int(start / simulation.limits.bin_seconds)]
    time_bin.busy_seconds += seconds
    time_bin.committed += step.committed
    time_bin.verified += step.extra
    time_bin.accepted += step.accepted
    time_bin.sequence_seconds += step.rounds * seconds
    if step.rounds > 0:
        time_bin.depth_seconds += seconds * step.extra / step.rounds
        time_bin.decode_seconds += seconds
    time_bin.waiting_seconds += waiting * seconds
    time_bin.block_seconds += used * seconds
    if log.steps.size == 0:
        return
    row = log.steps[log.filled[0]]
    log.filled[0] += 1
    row.start_seconds = start
    row.seconds = seconds
    row.draft_seconds = step.draft_seconds
    row.sequences = step.rounds
    row.verified = step.extra
    row.accepted = step.accepted
    row.committed = step.committed
    row.prefill_tokens = step.prompt_tokens
    row.draft_depth = engine.chosen_depth
    row.running = engine.running + step.done
    row.waiting = waiting
    row.kv_blocks = used


@compiled
def log_is_full(limits: Limits, log: Log, state: State) -> bool:
    """Whether Python must empty the step log or merge time bins before the next step."""
    full = log.steps.size > 0 and log.filled[0] >= log.steps.size
    return full or state.totals[0].clock >= log.bins.size * limits.bin_seconds
