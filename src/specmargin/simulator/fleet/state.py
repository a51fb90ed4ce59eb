"""The state of a fleet: arrays with a row for each rank, and a rank as a simulation of its own.

The scheduler of one engine serves every rank: `rank_of` gives it that rank's rows. Requests, prices and the log are
those of all ranks, and so is scratch memory that no step of another rank comes between.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from specmargin.compiler import compiled
from specmargin.errors import ScenarioError
from specmargin.policies.kernel.learn import Learned, Texts
from specmargin.records import Rows, record_type
from specmargin.simulator.pool import BlockPool, PoolRow
from specmargin.simulator.state import EngineRow, Simulation, SlotRow, State, StepRow, Totals
from specmargin.simulator.tables import StepTables
from specmargin.step import FloatArray, IntArray

ROUND_ROBIN, LEAST_REQUESTS, BY_PREFIX = range(3)  # routers
_MOST_CONTENTS = 1 << 29  # of all ranks: 2 GiB


class FleetRow:
    """All ranks together."""

    next_request: int  # to arrive
    turn: int  # rank at which the router looks first
    ended: int  # requests that users of a closed loop have followed up
    steps: int
    padding: float  # rank-seconds that kernels take longer, because batches are padded to the largest
    waiting: float  # rank-seconds until the slowest rank is done
    busiest: float  # sums over steps: sequences of the busiest rank
    sequences: float  # and of the mean one


class RankRows(NamedTuple):
    """By rank."""

    slots: npt.NDArray[Any]
    engine: Rows[EngineRow]
    step: Rows[StepRow]
    totals: Rows[Totals]
    queue: IntArray
    turns: IntArray
    stack: IntArray
    fresh: IntArray
    done: IntArray
    unread: IntArray
    unread_ends: IntArray
    blocks: npt.NDArray[Any]  # of the pools, from here on
    counts: Rows[PoolRow]
    oldest: npt.NDArray[np.int32]
    tables: npt.NDArray[np.int32]
    free_rows: npt.NDArray[np.int32]
    tried: FloatArray  # of learned acceptance, from here on
    taken: FloatArray
    recent: FloatArray
    texts: Rows[Texts]


class Fleet(NamedTuple):
    """The arguments of the compiled loop."""

    common: Simulation  # of its state: requests, clients and scratch memory; prices are those of one rank
    experts: StepTables  # prefill of routed experts, by the mean of all ranks
    ranks: RankRows
    all: Rows[FleetRow]  # one row
    depth_by_rank: IntArray  # of the drafts that the next step makes
    router: int
    users: int
    learns: bool


def rank_rows(first: Simulation, ranks: int) -> RankRows:
    """`ranks` copies of one that has not begun."""
    state, pool, learned = first.state, first.state.pool, first.kernel.learned
    if pool.oldest.size * ranks > _MOST_CONTENTS:
        raise ScenarioError(
            f"{pool.oldest.size:,} distinct KV blocks are too many for {ranks} ranks: simulate fewer requests"
        )

    def copies(array: Any) -> Any:
        return np.repeat(np.asarray(array)[np.newaxis], ranks, axis=0)

    def zeros(row: type, array: Any) -> Any:
        return np.zeros((ranks, array.size), dtype=record_type(row))

    queued = state.requests.size
    return RankRows(
        slots=zeros(SlotRow, state.slots),
        engine=copies(state.engine)[:, 0],
        step=copies(state.step)[:, 0],
        totals=copies(state.totals)[:, 0],
        queue=np.zeros((ranks, queued), dtype=np.int64),  # written from the begin on: most pages are never touched
        turns=np.zeros((ranks, state.turns.size), dtype=np.int64),
        stack=copies(state.stack),
        fresh=copies(state.fresh),
        done=copies(state.done),
        unread=copies(state.unread),
        unread_ends=copies(state.unread_ends),
        blocks=copies(pool.blocks),
        counts=copies(pool.counts)[:, 0],
        oldest=copies(pool.oldest),
        tables=copies(pool.tables),
        free_rows=copies(pool.free_rows),
        tried=copies(learned.tried),
        taken=copies(learned.taken),
        recent=copies(learned.recent),
        texts=copies(learned.texts)[:, 0],
    )


def merged(rows: Rows[Totals]) -> Rows[Totals]:
    """Counts of all ranks. Seconds are the same on all of them: those of the first."""
    totals = np.asarray(rows)[:1].copy()
    for name in totals.dtype.names or ():
        if totals.dtype[name].kind == "i":
            totals[name] = rows[name].sum()
    return cast("Rows[Totals]", totals)


@compiled
def rank_of(fleet: Fleet, rank: int) -> Simulation:
    common, rows = fleet.common, fleet.ranks
    shared = common.state
    pool = BlockPool(
        rows.blocks[rank],
        rows.counts[rank : rank + 1],
        rows.oldest[rank],
        shared.pool.hashes,
        rows.tables[rank],
        rows.free_rows[rank],
        shared.pool.blocks_per_hash,
        shared.pool.block_tokens,
        shared.pool.first_content,
        shared.pool.dropped,
    )
    state = State(
        shared.requests,
        shared.clients,
        pool,
        rows.slots[rank],
        rows.engine[rank : rank + 1],
        rows.step[rank : rank + 1],
        rows.totals[rank : rank + 1],
        rows.queue[rank],
        rows.turns[rank],
        rows.stack[rank],
        rows.fresh[rank],
        rows.done[rank],
        rows.unread[rank],
        rows.unread_ends[rank],
        shared.drafted,
        shared.verified,
        shared.accepted,
        shared.survival,
        shared.lengths,
    )
    return Simulation(common.rounds, common.limits, common.tables, common.graphs, common.log, state, common.kernel)


@compiled
def learned_of(fleet: Fleet, rank: int) -> Learned:
    """Acceptance that one rank has learned; the rest is not used here."""
    rows, shared = fleet.ranks, fleet.common.kernel.learned
    return Learned(
        shared.tuning,
        rows.tried[rank],
        rows.taken[rank],
        rows.recent[rank],
        shared.counts,
        rows.texts[rank : rank + 1],
        shared.times,
        shared.credit,
        shared.shift,
        shared.marks,
        shared.guard,
        shared.gate,
    )
