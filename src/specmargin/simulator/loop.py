"""The engine, compiled: one step is arrive, schedule, commit, draft, close. Every policy runs on these functions.

As vLLM V1 schedules: running requests first, in order of arrival, then waiting ones, until the token budget is spent; a
long prompt is prefilled in pieces; a request is admitted when its whole prompt fits in free blocks; when blocks run out
the last one to come is preempted and computed again later. Drafts made at the end of a step are verified in the next.
"""

from __future__ import annotations

from specmargin.compiling import compiled
from specmargin.simulator.state import (
    ACCEPTED,
    ARRIVAL,
    BUSY,
    CATEGORY,
    CLOCK,
    COMMITTED,
    COMPUTED,
    CUT,
    DEPTH,
    DONE,
    DRAFT,
    DRAFTS,
    EMITTED,
    EXTRA,
    FINISH,
    FINISHED,
    FIRST,
    FIRST_TOKEN,
    FREE,
    FRESH,
    HEAD,
    HELD,
    HELD_BLOCKS,
    HELD_DRAFT,
    IDLE,
    LAST,
    NEXT,
    OUTPUT_TOKENS,
    PEAK_BLOCKS,
    PLANNED,
    PREEMPTIONS,
    PREFILLED,
    PROMPT,
    PROMPT_TOKENS,
    PROMPTING,
    READY,
    REJECTED,
    ROUND,
    ROUND_ACCEPTED,
    ROUND_DRAFTED,
    ROUND_VERIFIED,
    ROUNDS,
    RUNNING,
    STACK,
    STACKED,
    STEP,
    STEP_ACCEPTED,
    STEP_COMMITTED,
    STEP_DRAFT,
    STEP_DRAFTED,
    STEP_TARGET,
    SWITCHING,
    TAIL,
    TIMES_PREEMPTED,
    VERIFIED,
    VERIFY,
    WHO,
)


@compiled
def _blocks_for(tokens, limits):  # type: ignore[no-untyped-def]  # Numba reads the types
    return (tokens + limits.lookahead + limits.block_tokens - 1) // limits.block_tokens + limits.sequence_blocks


@compiled
def arrive(limits, state):  # type: ignore[no-untyped-def]
    """Everybody who has come by now joins the queue; an idle engine waits for the next. False: all is done."""
    q, times, n, clocks = state.requests, state.times, state.numbers, state.clocks
    while True:
        while n[NEXT] < q.shape[0] and times[n[NEXT], ARRIVAL] <= clocks[CLOCK]:
            r = n[NEXT]
            n[NEXT] += 1
            if _blocks_for(q[r, PROMPT_TOKENS] + q[r, OUTPUT_TOKENS] + limits.lookahead, limits) > limits.blocks:
                n[REJECTED] += 1
                if limits.users > 0:
                    _next_of_user(times, n, clocks, limits.users)
                continue
            state.queue[n[TAIL]] = r
            n[TAIL] += 1
        if n[RUNNING] > 0 or n[HEAD] < n[TAIL] or n[STACKED] > 0:
            return True
        if n[NEXT] >= q.shape[0]:
            return False
        clocks[IDLE] += times[n[NEXT], ARRIVAL] - clocks[CLOCK]
        clocks[CLOCK] = times[n[NEXT], ARRIVAL]


@compiled
def _next_of_user(times, n, clocks, users):  # type: ignore[no-untyped-def]
    """A user whose request is answered (or refused) sends the next one now."""
    following = users + n[FINISHED] + n[REJECTED] - 1
    if following < times.shape[0]:
        times[following, ARRIVAL] = clocks[CLOCK]


@compiled
def schedule(limits, tables, state):  # type: ignore[no-untyped-def]
    """Fill `PLANNED`, take blocks, preempt where there are none, and sum up what the step consists of."""
    q, places, n, sums = state.requests, state.places, state.numbers, state.sums
    effective = tables.effective_by_category
    n[ROUNDS] = n[EXTRA] = n[PROMPT] = n[READY] = 0
    sums[:] = 0.0
    budget = limits.max_tokens
    preempting = False
    i = 0
    while i < n[RUNNING] and budget > 0:
        r = places[i, WHO]
        missing = q[r, PROMPT_TOKENS] + q[r, EMITTED] - q[r, COMPUTED]
        decoding = missing == 1 and q[r, EMITTED] > 0
        take = min(missing + q[r, VERIFY] if decoding else missing, budget)
        wanted = _blocks_for(q[r, COMPUTED] + take, limits) - q[r, HELD_BLOCKS]
        while wanted > n[FREE] and n[RUNNING] > i:
            preempting = True
            _preempt(q, places, n)
        if n[RUNNING] == i:  # it was itself the last to come
            break
        if wanted > 0:
            q[r, HELD_BLOCKS] += wanted
            n[FREE] -= wanted
        places[i, PLANNED] = take
        if decoding:
            places[i, PROMPTING] = 0
            n[ROUNDS] += 1
            n[EXTRA] += take - 1
            sums[0] += q[r, COMPUTED]
            sums[1] += effective[q[r, CATEGORY], take - 1]
        else:
            _prompt(q, places, n, sums, i, take)
        budget -= take
        i += 1
    for rest in range(i, n[RUNNING]):
        places[rest, PLANNED] = 0
    if not preempting:
        _admit(limits, state, budget)
    n[READY] += n[ROUNDS]
    n[PEAK_BLOCKS] = max(n[PEAK_BLOCKS], limits.blocks - n[FREE])


@compiled
def _prompt(q, places, n, sums, place, take):  # type: ignore[no-untyped-def]
    """A piece of a prompt, or all of it: then its sequence drafts at the end of the step."""
    r = places[place, WHO]
    places[place, PLANNED] = take
    places[place, PROMPTING] = 1
    n[PROMPT] += take
    sums[2] += take * (q[r, COMPUTED] + 0.5 * take)
    if q[r, COMPUTED] + take == q[r, PROMPT_TOKENS] + q[r, EMITTED]:
        n[READY] += 1


@compiled
def _preempt(q, places, n):  # type: ignore[no-untyped-def]
    """The last one to come gives its blocks back, and is computed anew when there is room."""
    n[RUNNING] -= 1
    r = places[n[RUNNING], WHO]
    n[FREE] += q[r, HELD_BLOCKS]
    n[PREEMPTIONS] += 1
    q[r, TIMES_PREEMPTED] += 1
    q[r, HELD_BLOCKS] = q[r, COMPUTED] = q[r, HELD] = q[r, VERIFY] = 0
    places[n[STACKED], STACK] = r
    n[STACKED] += 1


@compiled
def _admit(limits, state, budget):  # type: ignore[no-untyped-def]
    """Waiting requests, preempted ones first, in order: the first that does not fit stops the rest."""
    q, places, n = state.requests, state.places, state.numbers
    while budget > 0 and n[RUNNING] < limits.max_seqs and (n[STACKED] > 0 or n[HEAD] < n[TAIL]):
        again = n[STACKED] > 0
        r = places[n[STACKED] - 1, STACK] if again else state.queue[n[HEAD]]
        known = q[r, PROMPT_TOKENS] + q[r, EMITTED]
        if _blocks_for(known, limits) > n[FREE]:
            return
        if again:
            n[STACKED] -= 1
        else:
            n[HEAD] += 1
        take = min(known, budget)
        q[r, HELD_BLOCKS] = _blocks_for(take, limits)
        n[FREE] -= q[r, HELD_BLOCKS]
        places[n[RUNNING], WHO] = r
        n[RUNNING] += 1
        _prompt(q, places, n, state.sums, n[RUNNING] - 1, take)
        budget -= take


@compiled
def commit(rounds, state, depth):  # type: ignore[no-untyped-def]
    """What the step brings: tokens, first tokens, ends. Those that go on hold a draft of `depth` for the next one."""
    q, places, n, sums = state.requests, state.places, state.numbers, state.sums
    accepted, first, length = rounds.accepted, rounds.first, rounds.length
    n[FRESH] = n[DONE] = 0
    kept = played = ready = committed = taken_in_all = 0
    for i in range(n[RUNNING]):
        r = places[i, WHO]
        positions = places[i, PLANNED]
        gained = 0
        if positions > 0 and places[i, PROMPTING]:
            gained = _end_of_prompt(q, places, n, r, positions)
        elif positions > 0:
            verified = positions - 1
            at = q[r, ROUND]
            taken = min(accepted[at], verified)
            q[r, ROUND] = at + 1 if at + 1 < first[at] + length[at] else first[at]
            places[played, ROUND_DRAFTED] = q[r, HELD]
            places[played, ROUND_VERIFIED] = verified
            places[played, ROUND_ACCEPTED] = taken
            played += 1
            gained = min(taken + 1, q[r, OUTPUT_TOKENS] - q[r, EMITTED])
            taken_in_all += taken
            n[CUT] += taken + 1 - gained
            q[r, COMPUTED] += gained
        if gained == 0:  # it waits for budget, or its prompt goes on
            q[r, HELD] = q[r, VERIFY] = 0 if positions > 0 else q[r, HELD]
            places[kept, WHO], places[kept, DRAFTS] = r, 0
            kept += 1
            continue
        q[r, EMITTED] += gained
        committed += gained
        if q[r, EMITTED] >= q[r, OUTPUT_TOKENS]:
            places[n[DONE], LAST] = r
            n[DONE] += 1
            continue
        q[r, HELD] = q[r, VERIFY] = depth
        ready += 1
        sums[3] += q[r, COMPUTED]
        places[kept, WHO], places[kept, DRAFTS] = r, 1
        kept += 1
    n[RUNNING], n[READY] = kept, ready
    n[STEP_COMMITTED], n[STEP_ACCEPTED] = committed, taken_in_all
    n[COMMITTED] += committed
    n[ACCEPTED] += taken_in_all
    n[VERIFIED] += n[EXTRA]


@compiled
def _end_of_prompt(q, places, n, r, positions):  # type: ignore[no-untyped-def]
    """1 where the prompt is through, and its first (or, computed again, its next) token comes out."""
    q[r, COMPUTED] += positions
    n[PREFILLED] += positions
    if q[r, COMPUTED] < q[r, PROMPT_TOKENS] + q[r, EMITTED]:
        return 0
    if q[r, EMITTED] == 0:
        places[n[FRESH], FIRST] = r
        n[FRESH] += 1
    return 1


@compiled
def close(limits, tables, log, state, depth):  # type: ignore[no-untyped-def]
    """The clock goes on; first tokens and ends are stamped, blocks freed, users ask again, and it is written down."""
    q, places, times, n, clocks = state.requests, state.places, state.times, state.numbers, state.clocks
    target, draft = clocks[STEP_TARGET], clocks[STEP_DRAFT]
    seconds = target + draft
    if tables.overlap >= 0.0:
        seconds = max(target, draft) + (1.0 - tables.overlap) * draft
    clocks[HELD_DRAFT] = seconds - target
    clocks[DRAFT] += seconds - target
    if depth != n[DEPTH] and n[STEP] > 0:
        seconds += limits.switch_seconds
        clocks[SWITCHING] += limits.switch_seconds
    start = clocks[CLOCK]
    clocks[CLOCK] += seconds
    clocks[BUSY] += seconds
    for k in range(n[FRESH]):
        times[places[k, FIRST], FIRST_TOKEN] = clocks[CLOCK]
    used = limits.blocks - n[FREE]
    for k in range(n[DONE]):
        r = places[k, LAST]
        times[r, FINISH] = clocks[CLOCK]
        n[FREE] += q[r, HELD_BLOCKS]
        q[r, HELD_BLOCKS] = 0
        n[FINISHED] += 1
        if limits.users > 0:
            _next_of_user(times, n, clocks, limits.users)
    _write(limits, log, state, start, seconds, depth, used)
    n[DEPTH] = depth
    n[STEP] += 1


@compiled
def _write(limits, log, state, start, seconds, depth, used):  # type: ignore[no-untyped-def]
    n = state.numbers
    bins, steps = log.bins, log.steps
    waiting = n[TAIL] - n[HEAD] + n[STACKED]
    at = int(start / limits.bin_seconds)
    bins[at, 0] += seconds
    bins[at, 1] += 1.0
    bins[at, 2] += n[STEP_COMMITTED]
    bins[at, 3] += n[STEP_DRAFTED]
    bins[at, 4] += n[EXTRA]
    bins[at, 5] += n[STEP_ACCEPTED]
    bins[at, 6] += n[PROMPT]
    bins[at, 7] += n[ROUNDS] * seconds
    if n[ROUNDS] > 0:
        bins[at, 8] += seconds * n[EXTRA] / n[ROUNDS]
        bins[at, 9] += seconds
    bins[at, 10] += waiting * seconds
    bins[at, 11] += used * seconds
    if steps.shape[0] == 0:
        return
    row = log.filled[0]
    log.filled[0] += 1
    steps[row, 0] = start
    steps[row, 1] = seconds
    steps[row, 2] = state.clocks[STEP_DRAFT]
    steps[row, 3] = n[ROUNDS]
    steps[row, 4] = n[EXTRA]
    steps[row, 5] = n[STEP_ACCEPTED]
    steps[row, 6] = n[STEP_COMMITTED]
    steps[row, 7] = n[PROMPT]
    steps[row, 8] = depth
    steps[row, 9] = n[RUNNING] + n[DONE]
    steps[row, 10] = waiting
    steps[row, 11] = used


@compiled
def log_is_full(limits, log, state):  # type: ignore[no-untyped-def]
    """Python must empty or lengthen it before the next step."""
    rows = log.steps.shape[0]
    return (rows > 0 and log.filled[0] >= rows) or state.clocks[CLOCK] >= log.bins.shape[0] * limits.bin_seconds
