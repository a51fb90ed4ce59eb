"""Requests arrive at the router, which sends each to a rank. Compiled."""

from __future__ import annotations

from specmargin.compiler import compiled, compiled_apart
from specmargin.simulator.arrivals import blocks_for, cancel, enqueue, read, send_next
from specmargin.simulator.fleet.state import BY_PREFIX, LEAST_REQUESTS, ROUND_ROBIN, Fleet, rank_of
from specmargin.simulator.pool import find_prefix
from specmargin.simulator.queues import pop

_MOST_AHEAD = 32  # requests that a rank with the prefix may have more than the least busy one


@compiled_apart
def arrive(fleet: Fleet) -> bool:
    """Send the requests that have arrived to ranks; idle ranks wait for the next one. False: no requests are left."""
    requests, limits, rows = fleet.common.state.requests, fleet.common.limits, fleet.ranks
    while True:
        _follow_up(fleet)
        latest = _latest(fleet)
        number, sender = _next(fleet)
        while number >= 0 and requests[number].arrival_seconds + limits.request_seconds <= latest:
            _take_off(fleet, number, sender)
            _send(fleet, number)
            _follow_up(fleet)
            number, sender = _next(fleet)
        if limits.cancelling:
            for rank in range(rows.engine.size):
                cancel(limits, rank_of(fleet, rank).state)
            _follow_up(fleet)
            number, sender = _next(fleet)
        if _is_busy(fleet):
            return True
        if _read(fleet):
            continue
        if number < 0:
            return False
        wait = requests[number].arrival_seconds + limits.request_seconds - rows.totals[0].clock
        for rank in range(rows.totals.size):
            rows.totals[rank].idle += max(wait, 0.0)
            rows.totals[rank].clock += max(wait, 0.0)
            rows.engine[rank].decided = rows.totals[rank].clock


@compiled
def _latest(fleet: Fleet) -> float:
    """When the first of the ranks decides its next step; idle ones decide when a request comes."""
    rows, latest = fleet.ranks, fleet.ranks.totals[0].clock
    if fleet.common.limits.ahead:
        for rank in range(rows.engine.size):
            if rows.engine[rank].running > 0:
                latest = min(latest, rows.engine[rank].decided)
    return float(latest)


@compiled
def _read(fleet: Fleet) -> bool:
    """Tokens of the last step go to the clients; False: there are none."""
    found = False
    for rank in range(fleet.ranks.engine.size):
        engine = fleet.ranks.engine[rank]
        if engine.unread + engine.unread_ends > 0:
            read(fleet.common.limits, rank_of(fleet, rank).state, fleet.ranks.totals[rank].clock)
            found = True
    return found


@compiled
def _is_busy(fleet: Fleet) -> bool:
    rank, ranks = 0, fleet.ranks.engine.size
    while rank < ranks and _load(fleet, rank) == 0:
        rank += 1
    return rank < ranks


@compiled
def _load(fleet: Fleet, rank: int) -> int:
    """Requests that run or wait."""
    engine = fleet.ranks.engine[rank]
    return engine.running + engine.stacked + engine.queue_tail - engine.queue_head


@compiled
def _follow_up(fleet: Fleet) -> None:
    """Users of a closed loop send a request for each that has ended, on any rank."""
    if fleet.users == 0:
        return
    requests, everyone, rows, ended = fleet.common.state.requests, fleet.all[0], fleet.ranks, 0
    for rank in range(rows.totals.size):
        totals = rows.totals[rank]
        ended += totals.finished + totals.refused + totals.cancelled
    while everyone.ended < ended:
        following = fleet.users + everyone.ended
        if following < requests.size:
            requests[following].arrival_seconds = rows.totals[0].clock + fleet.common.limits.answer_seconds
        everyone.ended += 1


@compiled
def _next(fleet: Fleet) -> tuple[int, int]:
    """The request that arrives next, and the rank that served the turn before it; -1: none."""
    requests, rows = fleet.common.state.requests, fleet.ranks
    number, sender = fleet.all[0].next_request, -1
    if number >= requests.size:
        number = -1
    if fleet.common.limits.sessions:
        for rank in range(rows.engine.size):
            if rows.engine[rank].turns > 0:
                turn = int(rows.turns[rank, 0])
                if number < 0 or requests[turn].arrival_seconds <= requests[number].arrival_seconds:
                    number, sender = turn, rank
    return number, sender


@compiled
def _take_off(fleet: Fleet, number: int, sender: int) -> None:
    everyone, state = fleet.all[0], fleet.common.state
    if sender >= 0:
        engine = fleet.ranks.engine[sender]
        pop(fleet.ranks.turns[sender], engine.turns, state.requests, state.clients, False)
        engine.turns -= 1
    elif fleet.common.limits.sessions:
        everyone.next_request = state.clients[number].next_session
    else:
        everyone.next_request += 1


@compiled
def _send(fleet: Fleet, number: int) -> None:
    """To a rank, which refuses what never fits."""
    limits = fleet.common.limits
    rank = _route(fleet, number)
    state = rank_of(fleet, rank).state
    request = state.requests[number]
    most_tokens = request.prompt_tokens + request.output_tokens + limits.kv.lookahead_tokens
    if blocks_for(most_tokens, limits) > limits.kv.blocks:
        state.totals[0].refused += 1
        send_next(limits, state, number, state.totals[0].clock)
    else:
        enqueue(limits, state, number)


# --- routers ---


@compiled
def _route(fleet: Fleet, number: int) -> int:
    everyone, ranks = fleet.all[0], fleet.ranks.engine.size
    first = everyone.turn
    everyone.turn = (first + 1) % ranks
    if fleet.router == ROUND_ROBIN:
        return int(first)
    least = _least_busy(fleet, first)
    if fleet.router == LEAST_REQUESTS:
        return least
    assert fleet.router == BY_PREFIX
    return _with_prefix(fleet, number, least)


@compiled
def _least_busy(fleet: Fleet, first: int) -> int:
    """The rank with the fewest requests; of equal ones, the next in turn."""
    least, ranks = first, fleet.ranks.engine.size
    for i in range(1, ranks):
        rank = (first + i) % ranks
        if _load(fleet, rank) < _load(fleet, least):
            least = rank
    return int(least)


@compiled
def _with_prefix(fleet: Fleet, number: int, least: int) -> int:
    """The rank whose cache has most of the prompt, unless it is far busier than the least busy one."""
    state = fleet.common.state
    tokens, most, chosen = state.requests[number].prompt_tokens, 0, least
    for rank in range(fleet.ranks.engine.size):
        found = find_prefix(rank_of(fleet, rank).state.pool, state.clients[number], tokens)
        if found > most and _load(fleet, rank) <= _load(fleet, least) + _MOST_AHEAD:
            most, chosen = found, rank
    return chosen
