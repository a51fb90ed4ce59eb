"""The engine's part of a step, the same for every policy: arrive, schedule, commit, close. Compiled.

Follows vLLM V1: running requests are scheduled first, in order of arrival, then waiting requests, until the token
budget is spent. Long prompts are prefilled in chunks. A request is admitted when its whole prompt fits in free blocks.
When blocks run out, the most recent request is preempted and recomputed later. Drafts made at the end of a step are
verified in the next step.
"""

from __future__ import annotations

from specmargin.compiler import compiled
from specmargin.simulator.state import Limits, Log, Simulation, State


@compiled
def _blocks_for(tokens: int, limits: Limits) -> int:
    kv = limits.kv
    return (tokens + kv.lookahead_tokens + kv.block_tokens - 1) // kv.block_tokens + kv.blocks_per_sequence


@compiled
def arrive(limits: Limits, state: State) -> bool:
    """Queue the requests that have arrived; an idle engine waits for the next one. False: no requests are left."""
    requests, engine, totals = state.requests, state.engine[0], state.totals[0]
    while True:
        while engine.next_request < requests.size and requests[engine.next_request].arrival_seconds <= totals.clock:
            number = engine.next_request
            request = requests[number]
            engine.next_request += 1
            most_tokens = request.prompt_tokens + request.output_tokens + limits.kv.lookahead_tokens
            if _blocks_for(most_tokens, limits) > limits.kv.blocks:
                totals.refused += 1
                if limits.users > 0:
                    _next_of_user(state, limits.users)
                continue
            state.queue[engine.queue_tail] = number
            engine.queue_tail += 1
        if engine.running > 0 or engine.queue_head < engine.queue_tail or engine.stacked > 0:
            return True
        if engine.next_request >= requests.size:
            return False
        arrival = requests[engine.next_request].arrival_seconds
        totals.idle += arrival - totals.clock
        totals.clock = arrival


@compiled
def _next_of_user(state: State, users: int) -> None:
    """A user whose request finished or was refused sends the next one now."""
    totals = state.totals[0]
    following = users + totals.finished + totals.refused - 1
    if following < state.requests.size:
        state.requests[following].arrival_seconds = totals.clock


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
        take = min(remaining + request.verify if decoding else remaining, budget)
        new_blocks = _blocks_for(request.computed + take, limits) - request.blocks
        while new_blocks > engine.free_blocks and engine.running > i:
            preempting = True
            _preempt(state)
        if engine.running == i:  # the request itself was preempted
            break
        if new_blocks > 0:
            request.blocks += new_blocks
            engine.free_blocks -= new_blocks
        slot.planned = take
        if decoding:
            slot.prompting = 0
            step.rounds += 1
            step.extra += take - 1
            step.context += request.computed
            step.effective += effective[request.category, take - 1]
        else:
            _schedule_prompt(state, i, take)
        budget -= take
        i += 1
    for j in range(i, engine.running):
        slots[j].planned = 0
    if not preempting:
        _admit(limits, state, budget)
    step.ready += step.rounds
    totals = state.totals[0]
    totals.peak_blocks = max(totals.peak_blocks, limits.kv.blocks - engine.free_blocks)


@compiled
def _schedule_prompt(state: State, index: int, take: int) -> None:
    """Schedule a chunk of a prompt. After the last chunk the sequence drafts at the end of the step."""
    slot, step = state.slots[index], state.step[0]
    request = state.requests[slot.request]
    slot.planned = take
    slot.prompting = 1
    step.prompt_tokens += take
    step.attended += take * (request.computed + 0.5 * take)
    if request.computed + take == request.prompt_tokens + request.emitted:
        step.ready += 1


@compiled
def _preempt(state: State) -> None:
    """Free the blocks of the most recent request; it is recomputed when there is room."""
    engine = state.engine[0]
    engine.running -= 1
    number = state.slots[engine.running].request
    request = state.requests[number]
    engine.free_blocks += request.blocks
    state.totals[0].preemptions += 1
    request.preemptions += 1
    request.blocks = request.computed = request.held = request.verify = 0
    state.stack[engine.stacked] = number
    engine.stacked += 1


@compiled
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
        if _blocks_for(tokens, limits) > engine.free_blocks:
            return
        if resumed:
            engine.stacked -= 1
        else:
            engine.queue_head += 1
        request.computed = int(limits.prefix_hit * request.prompt_tokens)  # found in the prefix cache
        take = min(tokens - request.computed, budget)
        request.blocks = _blocks_for(request.computed + take, limits)
        engine.free_blocks -= request.blocks
        state.slots[engine.running].request = number
        engine.running += 1
        _schedule_prompt(state, engine.running - 1, take)
        budget -= take


@compiled
def commit(simulation: Simulation) -> None:
    """Commit tokens and finish requests. Sequences that continue hold a draft of the chosen depth."""
    state = simulation.state
    requests, slots, engine, step, totals = state.requests, state.slots, state.engine[0], state.step[0], state.totals[0]
    accepted_by_round, first, length = simulation.rounds.accepted, simulation.rounds.first, simulation.rounds.length
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
            request.next_round = round_ + 1 if round_ + 1 < first[round_] + length[round_] else first[round_]
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
    """Advance the clock, record first tokens and finish times, free blocks, let users send again, and log the step."""
    limits, state, overlap = simulation.limits, simulation.state, simulation.tables.overlap
    requests, engine, step, totals = state.requests, state.engine[0], state.step[0], state.totals[0]
    seconds = step.target_seconds + step.draft_seconds
    if overlap >= 0.0:
        seconds = max(step.target_seconds, step.draft_seconds) + (1.0 - overlap) * step.draft_seconds
    engine.draft_seconds = seconds - step.target_seconds
    totals.draft += seconds - step.target_seconds
    start = totals.clock
    totals.clock += seconds
    totals.busy += seconds
    for k in range(step.fresh):
        requests[state.fresh[k]].first_token_seconds = totals.clock
    used = limits.kv.blocks - engine.free_blocks
    for k in range(step.done):
        request = requests[state.done[k]]
        request.finish_seconds = totals.clock
        engine.free_blocks += request.blocks
        request.blocks = 0
        totals.finished += 1
        if limits.users > 0:
            _next_of_user(state, limits.users)
    _log_step(simulation, start, seconds, used)
    engine.depth, engine.gated = engine.chosen_depth, engine.chosen_gated
    engine.steps += 1


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
