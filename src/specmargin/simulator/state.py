"""What the compiled loop works on: plain arrays in named tuples, made once and changed in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.simulator.engine import EngineSettings, KvBudget
from specmargin.simulator.rounds import RoundBank
from specmargin.simulator.workload import Requests
from specmargin.step import FloatArray, IntArray

# Whole numbers of the engine, by place in `State.numbers`.
(
    NEXT,  # the next request to arrive
    HEAD,  # of the queue of those that wait
    TAIL,
    RUNNING,
    STACKED,  # preempted ones, which go first
    FREE,  # blocks
    STEP,
    FINISHED,
    REJECTED,  # would never fit
    ROUNDS,  # sequences that decode in this step
    EXTRA,  # draft tokens that they verify
    PROMPT,  # tokens that the step prefills
    READY,  # sequences that may draft at its end
    FRESH,  # requests that got their first token in it
    DONE,
    DEPTH,  # drafted to, at the end of the last step
    COMMITTED,  # from here on: sums over the run
    DRAFTED,
    VERIFIED,
    ACCEPTED,
    CUT,  # accepted, but beyond the end of the output
    PREFILLED,
    PREEMPTIONS,
    PEAK_BLOCKS,
    STEP_COMMITTED,
    STEP_ACCEPTED,
    STEP_DRAFTED,
    NUMBERS,
) = range(28)

# Seconds, by place in `State.clocks`.
(CLOCK, BUSY, DECODE, PREFILL, DRAFT, LAUNCHES, OFF, SWITCHING, IDLE, HELD_DRAFT, STEP_TARGET, STEP_DRAFT, CLOCKS) = (
    range(13)
)

# Whole numbers of a request, by column of `State.requests`: one row is what a step looks at together.
(
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    CATEGORY,
    COMPUTED,  # tokens in the cache
    EMITTED,
    HELD_BLOCKS,
    ROUND,  # that its next draft replays
    HELD,  # draft tokens in hand, to be verified in the next step
    VERIFY,  # how many of them the policy wants verified
    TIMES_PREEMPTED,
    REQUEST_COLUMNS,
) = range(11)
(ARRIVAL, FIRST_TOKEN, FINISH) = range(3)  # columns of `State.times`

# Columns of `State.places`, places in the batch. The last six are lists of their own.
(
    WHO,
    PLANNED,
    PROMPTING,
    DRAFTS,  # at the end of the step; whoever waits for budget keeps the draft that it has
    STACK,
    FIRST,
    LAST,
    ROUND_DRAFTED,
    ROUND_VERIFIED,
    ROUND_ACCEPTED,
    PLACE_COLUMNS,
) = range(11)

# Columns of a step in the log, and of a bin of time.
STEP_COLUMNS = (
    "start_seconds",
    "seconds",
    "draft_seconds",
    "sequences",
    "verified",
    "accepted",
    "committed",
    "prefill_tokens",
    "draft_depth",
    "running",
    "waiting",
    "kv_blocks",
)
BIN_COLUMNS = (
    "busy_seconds",
    "steps",
    "committed",
    "drafted",
    "verified",
    "accepted",
    "prefill_tokens",
    "sequence_seconds",
    "depth_seconds",
    "decode_seconds",
    "waiting_seconds",
    "block_seconds",
)


class Rounds(NamedTuple):
    """What requests replay."""

    accepted: IntArray
    survival: FloatArray
    first: IntArray
    length: IntArray


class Limits(NamedTuple):
    max_seqs: int
    max_tokens: int
    block_tokens: int
    sequence_blocks: int
    lookahead: int
    blocks: int
    speculating: int
    users: int
    switch_seconds: float
    bin_seconds: float


class State(NamedTuple):
    """Few arrays, because compiled functions count references of each that they are handed."""

    requests: IntArray  # (requests, REQUEST_COLUMNS)
    times: FloatArray  # (requests, 3)
    places: IntArray  # (sequences, PLACE_COLUMNS)
    queue: IntArray
    sums: FloatArray  # of this step: context, strangers, attended by prompt tokens, context of those that draft
    numbers: IntArray
    clocks: FloatArray


class Log(NamedTuple):
    """`steps` is emptied when it is full, `bins` made longer when time goes beyond them."""

    steps: FloatArray  # (rows, STEP_COLUMNS); no rows: not logged
    filled: IntArray  # rows of it
    bins: FloatArray  # (bins, BIN_COLUMNS)
    cells: FloatArray  # (batch, depth, context): seconds of decoding there, to split them by component


def rounds_of(bank: RoundBank) -> Rounds:
    return Rounds(
        accepted=bank.accepted, survival=bank.survival, first=bank.first_by_round, length=bank.length_by_round
    )


def engine_limits(
    settings: EngineSettings, kv: KvBudget, *, speculating: bool, users: int, bin_seconds: float
) -> Limits:
    return Limits(
        max_seqs=settings.max_num_seqs,
        max_tokens=settings.max_num_batched_tokens,
        block_tokens=kv.block_tokens,
        sequence_blocks=kv.blocks_per_sequence,
        lookahead=kv.lookahead_tokens,
        blocks=kv.blocks,
        speculating=int(speculating),
        users=users,
        switch_seconds=settings.switch_seconds,
        bin_seconds=bin_seconds,
    )


def new_state(requests: Requests, starts: IntArray, limits: Limits) -> State:
    rows = np.zeros((requests.count, REQUEST_COLUMNS), dtype=np.int64)
    rows[:, PROMPT_TOKENS], rows[:, OUTPUT_TOKENS] = requests.prompt_tokens, requests.output_tokens
    rows[:, CATEGORY], rows[:, ROUND] = requests.category, starts
    times = np.full((requests.count, 3), np.nan)
    times[:, ARRIVAL] = requests.arrival_seconds
    numbers = np.zeros(NUMBERS, dtype=np.int64)
    numbers[FREE] = limits.blocks
    return State(
        requests=rows,
        times=times,
        places=np.zeros((limits.max_seqs, PLACE_COLUMNS), dtype=np.int64),
        queue=np.zeros(requests.count, dtype=np.int64),
        sums=np.zeros(4),
        numbers=numbers,
        clocks=np.zeros(CLOCKS),
    )
