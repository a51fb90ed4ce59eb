"""The state of the compiled loop: rows with named fields, allocated once and changed in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.policies.kernel.types import Kernel
from specmargin.records import Rows, rows_of
from specmargin.simulator.engine import KvBudget
from specmargin.simulator.graphs import Graphs
from specmargin.simulator.pool import BlockPool
from specmargin.simulator.tables import StepTables
from specmargin.simulator.traffic import Client, Traffic
from specmargin.simulator.workload import Request
from specmargin.step import FloatArray, IntArray

# Phases of a step. When Python decides, the loop returns before each of the last three and resumes there.
ARRIVE, VERIFY, DEPTH, OUTCOME = range(4)


class SlotRow:
    """One sequence of the batch."""

    request: int
    planned: int  # positions in this step
    prompting: int  # 1: they belong to its prompt
    drafts: int  # 1: drafts at the end of the step; a request that waits for budget keeps its pending draft


class EngineRow:
    """The engine between two steps."""

    next_request: int  # to arrive
    next_user: int  # first request of the session that a user of a closed loop begins next
    turns: int  # of sessions, sent but not arrived
    queue_head: int  # of the waiting requests; by priority, a heap that begins at 0
    queue_tail: int
    running: int
    stacked: int  # preempted requests, which are admitted first; by priority, none
    free_blocks: int
    steps: int
    phase: int
    depth: int  # of the pending drafts
    gated: int  # 1: they are gated
    chosen_depth: int  # of the drafts that this step makes at its end
    chosen_gated: int
    draft_seconds: float  # of the pending drafts
    decided: float  # when the next step is scheduled, if that is ahead of the clock
    unread: int  # of the step before, if its tokens are read only after the next launch: first tokens
    unread_ends: int  # and requests that it finishes
    unread_sequences: int


class StepRow:
    """The current step."""

    held: int  # sequences whose drafts the policy decides on
    rounds: int  # sequences that decode
    extra: int  # draft tokens that they verify
    prompt_tokens: int
    ready: int  # sequences that may draft at the end of the step
    fresh: int  # requests that got their first token
    done: int
    committed: int
    accepted: int
    drafted: int
    context: float  # sums: context of the rounds
    effective: float  # effective positions of the rounds
    attended: float  # tokens that prompt tokens attend to
    draft_context: float  # context of the sequences that draft
    launch_seconds: float  # of the host
    waiting_seconds: float  # part of the target's: the GPU waits for launches
    target_seconds: float
    draft_seconds: float


class Totals:
    """Sums over the run."""

    finished: int
    refused: int  # requests that cannot fit in memory
    cancelled: int
    cancelled_tokens: int  # generated for cancelled requests
    cancelled_drafts: int  # that they left unverified
    prefix_queries: int  # prompt tokens of admitted requests
    prefix_hits: int  # of them, found in the prefix cache
    committed: int
    drafted: int
    verified: int
    accepted: int
    cut: int  # accepted, but beyond the end of the output
    prefilled: int
    preemptions: int
    peak_blocks: int
    clock: float  # seconds from here on
    busy: float
    decode: float
    prefill: float
    draft: float
    launches: float
    off: float
    idle: float


class LoggedStep:
    """One row of the log of steps."""

    start_seconds: float
    seconds: float
    draft_seconds: float
    sequences: float
    verified: float
    accepted: float
    committed: float
    prefill_tokens: float
    draft_depth: float
    running: float
    waiting: float
    kv_blocks: float


class TimeBin:
    """Sums over the steps that began in one bin of time."""

    busy_seconds: float
    committed: float
    verified: float
    accepted: float
    sequence_seconds: float
    depth_seconds: float
    decode_seconds: float
    waiting_seconds: float
    block_seconds: float


class ReplayedRounds(NamedTuple):
    """The rounds that requests replay."""

    accepted: IntArray
    survival: FloatArray  # (round, depth)
    following: IntArray


class Limits(NamedTuple):
    max_seqs: int
    max_tokens: int
    kv: KvBudget
    speculating: bool  # speculation is configured
    ahead: bool  # a step is scheduled and launched while the one before runs
    request_seconds: float  # from a client to the scheduler
    answer_seconds: float  # from the engine to a client
    answer_stream_seconds: float  # and per sequence of the step
    users: int
    prefix_hit: float
    kv_arrives: bool  # of prompts, from another instance
    bin_seconds: float
    by_python: bool  # decisions are made in Python: the loop returns for each
    sees_outcomes: bool  # the policy sees outcomes instead of signals (oracle)
    hashed: bool  # requests have block hashes, and the engine a prefix cache
    cancelling: bool  # some clients disconnect
    by_priority: bool
    sessions: bool


class State(NamedTuple):
    requests: Rows[Request]
    clients: Rows[Client]
    pool: BlockPool
    slots: Rows[SlotRow]
    engine: Rows[EngineRow]  # one row
    step: Rows[StepRow]  # one row
    totals: Rows[Totals]  # one row
    queue: IntArray
    turns: IntArray  # of sessions, by arrival
    stack: IntArray  # preempted requests
    fresh: IntArray  # requests that got their first token in this step
    done: IntArray  # requests that finish in this step
    unread: IntArray  # requests of the step before, see EngineRow
    unread_ends: IntArray
    drafted: IntArray  # by round of this step
    verified: IntArray
    accepted: IntArray
    survival: FloatArray  # (sequence, depth): signals of the drafts that are decided on
    lengths: IntArray  # by sequence: draft tokens before the decision, depth after it


class Log(NamedTuple):
    """`steps` is emptied when it is full; `bins` are merged in pairs when the clock passes the last one."""

    steps: Rows[LoggedStep]  # no rows: not logged
    filled: IntArray  # rows of `steps` in use
    bins: Rows[TimeBin]
    cells: FloatArray  # (batch, depth, context): seconds of decoding, later split by component


class Simulation(NamedTuple):
    """The arguments of the compiled loop."""

    rounds: ReplayedRounds
    limits: Limits
    tables: StepTables
    graphs: Graphs
    log: Log
    state: State
    kernel: Kernel  # of a compiled policy


def new_state(traffic: Traffic, pool: BlockPool, limits: Limits, depth: int) -> State:
    """`depth`: deepest token that has a signal."""
    stack, fresh, done, unread, unread_ends, drafted, verified, accepted, lengths = np.zeros(
        (9, limits.max_seqs), dtype=np.int64
    )
    requests = traffic.requests
    return State(
        requests=requests,
        clients=traffic.clients,
        pool=pool,
        slots=rows_of(SlotRow, limits.max_seqs),
        engine=rows_of(EngineRow, free_blocks=limits.kv.blocks, next_user=traffic.begun),
        step=rows_of(StepRow),
        totals=rows_of(Totals),
        queue=np.zeros(requests.size, dtype=np.int64),
        turns=np.zeros(requests.size if limits.sessions else 0, dtype=np.int64),
        stack=stack,
        fresh=fresh,
        done=done,
        unread=unread,
        unread_ends=unread_ends,
        drafted=drafted,
        verified=verified,
        accepted=accepted,
        survival=np.zeros((limits.max_seqs, depth)),
        lengths=lengths,
    )
