"""Requests come and go between two steps: they arrive, their clients disconnect or send the next one. Compiled."""

from __future__ import annotations

from specmargin.compiler import compiled, compiled_apart
from specmargin.simulator.pool import end
from specmargin.simulator.queues import pop, push
from specmargin.simulator.state import Limits, State


@compiled
def blocks_for(tokens: int, limits: Limits) -> int:
    kv = limits.kv
    return (tokens + kv.lookahead_tokens + kv.block_tokens - 1) // kv.block_tokens + kv.blocks_per_sequence


@compiled
def release(limits: Limits, state: State, number: int) -> None:
    """Free the KV blocks of a request."""
    request, engine = state.requests[number], state.engine[0]
    if limits.hashed:
        engine.free_blocks += end(state.pool, state.clients[number], request.blocks)
    else:
        engine.free_blocks += request.blocks
    request.blocks = 0


@compiled
def arrive(limits: Limits, state: State) -> bool:
    """Queue the requests that have arrived; an idle engine waits for the next one. False: no requests are left.

    In most steps nothing arrives, which is found without a call.
    """
    requests, engine = state.requests, state.engine[0]
    if engine.running > 0 and not (limits.sessions or limits.cancelling):
        number = engine.next_request
        if number >= requests.size or _reaches(limits, state, number) > _latest(limits, state):
            return True
    return _arrive(limits, state)


@compiled
def _latest(limits: Limits, state: State) -> float:
    """When the next step is decided; later requests are not in it. An idle engine decides when one comes."""
    engine = state.engine[0]
    return engine.decided if limits.ahead and engine.running > 0 else state.totals[0].clock


@compiled
def _reaches(limits: Limits, state: State, number: int) -> float:
    """When the scheduler sees a request."""
    return state.requests[number].arrival_seconds + limits.request_seconds


@compiled_apart
def _arrive(limits: Limits, state: State) -> bool:
    requests, engine, totals = state.requests, state.engine[0], state.totals[0]
    while True:
        number = _next(limits, state)
        while number >= 0 and _reaches(limits, state, number) <= _latest(limits, state):
            engine.decided = max(engine.decided, _reaches(limits, state, number))
            _take_off(limits, state, number)
            request = requests[number]
            most_tokens = request.prompt_tokens + request.output_tokens + limits.kv.lookahead_tokens
            if blocks_for(most_tokens, limits) > limits.kv.blocks:
                totals.refused += 1
                send_next(limits, state, number, totals.clock)
            else:
                enqueue(limits, state, number)
            number = _next(limits, state)
        if limits.cancelling:
            cancel(limits, state)
            number = _next(limits, state)
        if engine.running > 0 or engine.queue_head < engine.queue_tail or engine.stacked > 0:
            return True
        if engine.unread + engine.unread_ends > 0:
            read(limits, state, totals.clock)
            continue
        if number < 0:
            return False
        arrival = _reaches(limits, state, number)
        if arrival > totals.clock:
            totals.idle += arrival - totals.clock
            totals.clock = arrival


@compiled
def _next(limits: Limits, state: State) -> int:
    """The request that arrives next: one of the list, or a session's next turn; -1: none."""
    requests, engine = state.requests, state.engine[0]
    listed = engine.next_request if engine.next_request < requests.size else -1
    if limits.sessions and engine.turns > 0:
        turn = int(state.turns[0])
        if listed < 0 or requests[turn].arrival_seconds <= requests[listed].arrival_seconds:
            return turn
    return listed


@compiled
def _take_off(limits: Limits, state: State, number: int) -> None:
    """Take the next request off its list."""
    engine = state.engine[0]
    if not limits.sessions:
        engine.next_request += 1
    elif engine.turns > 0 and state.turns[0] == number:
        pop(state.turns, engine.turns, state.requests, state.clients, False)
        engine.turns -= 1
    else:
        engine.next_request = state.clients[number].next_session


@compiled
def enqueue(limits: Limits, state: State, number: int) -> None:
    engine = state.engine[0]
    if limits.by_priority:
        push(state.queue, engine.queue_tail, number, state.requests, state.clients, True)
    else:
        state.queue[engine.queue_tail] = number
    engine.queue_tail += 1


@compiled
def dequeue(limits: Limits, state: State) -> None:
    """Take the first waiting request off the queue."""
    engine = state.engine[0]
    if limits.by_priority:
        pop(state.queue, engine.queue_tail, state.requests, state.clients, True)
        engine.queue_tail -= 1
    else:
        engine.queue_head += 1


@compiled
def put_back(limits: Limits, state: State, number: int) -> None:
    """A preempted request waits again: before all others, or as its priority says."""
    engine = state.engine[0]
    if limits.by_priority:
        enqueue(limits, state, number)
    else:
        state.stack[engine.stacked] = number
        engine.stacked += 1


@compiled
def send_next(limits: Limits, state: State, number: int, clock: float) -> None:
    """After a request finished, was cancelled or refused: its session sends the next turn, or its user a new one."""
    if limits.sessions:
        _next_turn(limits, state, number, clock)
    elif limits.users > 0:
        totals = state.totals[0]
        following = limits.users + totals.finished + totals.refused + totals.cancelled - 1
        if following < state.requests.size:
            state.requests[following].arrival_seconds = clock


@compiled
def _next_turn(limits: Limits, state: State, number: int, clock: float) -> None:
    requests, clients, engine = state.requests, state.clients, state.engine[0]
    turn = clients[number].next_turn
    if turn >= 0:
        requests[turn].arrival_seconds = clock + clients[number].think_seconds
        push(state.turns, engine.turns, turn, requests, clients, False)
        engine.turns += 1
    elif limits.users > 0 and engine.next_user < requests.size:
        requests[engine.next_user].arrival_seconds = clock
        engine.next_user = clients[engine.next_user].next_session


# --- answers ---


@compiled
def unread(state: State) -> None:
    """The tokens of this step are read later."""
    engine, step = state.engine[0], state.step[0]
    for k in range(step.fresh):
        state.unread[k] = state.fresh[k]
    for k in range(step.done):
        state.unread_ends[k] = state.done[k]
    engine.unread, engine.unread_ends, engine.unread_sequences = step.fresh, step.done, step.ready + step.done


@compiled
def read(limits: Limits, state: State, moment: float) -> None:
    """Tokens that the engine has read go to the clients. Requests that end free their blocks."""
    engine, totals = state.engine[0], state.totals[0]
    answered = moment + limits.answer_seconds + limits.answer_stream_seconds * engine.unread_sequences
    for k in range(engine.unread):
        state.requests[state.unread[k]].first_token_seconds = answered
    for k in range(engine.unread_ends):
        number = state.unread_ends[k]
        state.requests[number].finish_seconds = answered
        release(limits, state, number)
        totals.finished += 1
        send_next(limits, state, number, answered)
    engine.unread = engine.unread_ends = 0


# --- cancelled requests ---


@compiled
def cancel(limits: Limits, state: State) -> None:
    """Remove the requests whose clients have disconnected. A waiting one is removed when it would be admitted."""
    engine, slots, running = state.engine[0], state.slots, 0
    for i in range(engine.running):
        number = slots[i].request
        if _is_cancelled(state, number):
            release(limits, state, number)
            _count_cancelled(limits, state, number)
        else:
            slots[running].request = number
            running += 1
    engine.running = running
    while engine.stacked > 0 and _is_cancelled(state, state.stack[engine.stacked - 1]):
        engine.stacked -= 1
        _count_cancelled(limits, state, state.stack[engine.stacked])
    while engine.queue_head < engine.queue_tail and _is_cancelled(state, state.queue[engine.queue_head]):
        number = state.queue[engine.queue_head]
        dequeue(limits, state)
        _count_cancelled(limits, state, number)


@compiled
def _is_cancelled(state: State, number: int) -> bool:
    request, client = state.requests[number], state.clients[number]
    by_tokens = 0 < client.cancel_tokens <= request.emitted
    return by_tokens or request.arrival_seconds + client.cancel_seconds <= state.totals[0].clock


@compiled
def _count_cancelled(limits: Limits, state: State, number: int) -> None:
    request, client, totals = state.requests[number], state.clients[number], state.totals[0]
    client.cancelled_seconds = min(totals.clock, request.arrival_seconds + client.cancel_seconds)
    totals.cancelled += 1
    totals.cancelled_tokens += request.emitted
    totals.cancelled_drafts += request.held
    request.held = request.verify = 0
    send_next(limits, state, number, totals.clock)
