"""One workload served by data-parallel ranks in lockstep behind a router. Deterministic, as `simulator/run.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from specmargin.errors import ScenarioError
from specmargin.modes import Router
from specmargin.policies.policy import FixedDepth
from specmargin.policies.rules import make_kernel
from specmargin.policies.vote import DELAY, VoteRules
from specmargin.records import Rows, rows_of
from specmargin.simulator import core
from specmargin.simulator.fleet.lockstep import fill_votes, run
from specmargin.simulator.fleet.policies import SYNC_STEPS, EachRank, FleetPolicy, Static, Vote
from specmargin.simulator.fleet.results import FleetResult
from specmargin.simulator.fleet.state import (
    BY_PREFIX,
    LEAST_REQUESTS,
    ROUND_ROBIN,
    Fleet,
    FleetRow,
    merged,
    rank_rows,
)
from specmargin.simulator.policies import PolicyChoice, PolicyInputs
from specmargin.simulator.run import Run, held_depth, prepare, rank_tables_of
from specmargin.simulator.serving import Serving
from specmargin.simulator.state import LoggedStep, TimeBin

_ROUTERS = {Router.ROUND_ROBIN: ROUND_ROBIN, Router.LEAST_REQUESTS: LEAST_REQUESTS, Router.PREFIX: BY_PREFIX}
BEST = "best-fixed"  # the static depth whose requests take least time, in hindsight
_STEPS_PER_CALL = 1 << 12  # where nobody votes: between two updates of the progress bar


def simulate_fleet(serving: Serving, *, advance: Callable[[int], None] = lambda _: None) -> FleetResult:
    """Simulate one serving with a router. `advance` is called with the number of newly finished requests."""
    check_fleet(serving)
    if serving.policy == BEST:
        static = [replace(serving, policy=f"fixed:{depth}") for depth in range(serving.max_depth + 1)]
        best = min(map(simulate_fleet, static), key=lambda result: float(result.e2e_seconds.mean()))
        advance(best.requests.size)
        return replace(best, serving=serving)
    begun = _begin(serving)
    begun.play(advance)
    return begun.result(serving)


def check_fleet(serving: Serving) -> None:
    """Raise for what ranks in lockstep are not: one rank, ranks that do not wait for each other, pipeline stages."""
    layout, name = serving.scenario.layout, serving.scenario.architecture.name
    if layout.data_ranks == 1:
        raise ScenarioError("--router needs data-parallel ranks to send requests to: add --dp N, or leave out --router")
    if not serving.scenario.architecture.is_moe:
        raise ScenarioError(
            f"{name} has no experts, so its data-parallel ranks do not wait for each other: leave out --router and "
            "--dp, and give the load of one rank"
        )
    if layout.stages > 1:
        raise ScenarioError("ranks with pipeline stages are not simulated one by one: leave out --pp or --router")
    if serving.workload.sessions is not None and serving.workload.users:
        raise ScenarioError("sessions arrive at a rate with --router: give --sessions-per-second, not --concurrency")


def _begin(serving: Serving) -> _FleetRun:
    layout, depth = serving.scenario.layout, held_depth(serving, serving.policy)
    choice = PolicyChoice(name=serving.policy, policy=FixedDepth(depth=0), held_depth=depth)
    one = prepare(serving, choice=choice)
    first, ranks = one.simulation, layout.data_ranks
    if serving.router is Router.PREFIX and not first.limits.hashed:
        raise ScenarioError(
            "--router prefix needs prompts of known content: sessions (--turns, --shared-prefix), or a trace with "
            "block hashes, and a prefix cache"
        )
    inputs = PolicyInputs(
        pricer=serving.pricer,
        bank=serving.bank,
        max_batch=serving.max_num_seqs,
        max_depth=first.tables.prices.max_depth,
        ranks=ranks,
    )
    policy, prior = _policy(serving, inputs), serving.bank.deep(inputs.max_depth).prior
    first = first._replace(kernel=make_kernel(first.tables.prices, None, prior_survival=prior, learn_times=False))
    rows = rank_rows(first, ranks)
    state = first.state._replace(totals=rows.totals[:1], engine=rows.engine[:1])
    one.simulation = first._replace(state=state, limits=first.limits._replace(users=0))
    fleet = Fleet(
        common=one.simulation,
        experts=rank_tables_of(serving, state.requests).experts,
        ranks=rows,
        all=rows_of(FleetRow),
        depth_by_rank=np.full(ranks, depth or 0),
        router=_ROUTERS[serving.router or Router.ROUND_ROBIN],
        users=serving.workload.users,
        learns=policy.learns,
    )
    return _FleetRun(one=one, fleet=fleet, policy=policy)


def _policy(serving: Serving, inputs: PolicyInputs) -> FleetPolicy:
    name = serving.policy
    if name == "vote":
        table = inputs.table()
        return Vote(rules=VoteRules(table=table, candidates=table.sensible_depths))
    if name == "each-rank":
        return EachRank(table=inputs.table())
    return Static(depth=int(name.partition(":")[2]) if name.startswith("fixed:") else 0)


@dataclass(slots=True, kw_only=True)
class _FleetRun:
    one: Run  # of the first rank: the log, and what is done with it
    fleet: Fleet
    policy: FleetPolicy

    def play(self, advance: Callable[[int], None]) -> None:
        ranks, depths = self.fleet.depth_by_rank.size, self.fleet.depth_by_rank
        loads, tokens = np.zeros(ranks, dtype=np.int64), np.zeros((ranks, self._depths + 1))
        ended, probe = 0, self.policy.decide(loads, tokens, depths)
        going, between = True, SYNC_STEPS if self.policy.learns else _STEPS_PER_CALL
        while going:
            if probe is not None:
                agreed = depths.copy()
                depths[:] = probe
                self._step(1)
                depths[:] = agreed
            going = self._step(between - DELAY - (probe is not None))
            fill_votes(self.fleet, loads, tokens)
            going = going and self._step(DELAY)
            probe = self.policy.decide(loads, tokens, depths)
            advance(self._ended - ended)
            ended = self._ended

    @property
    def _depths(self) -> int:
        return int(self.fleet.common.kernel.rules.prior.size)

    @property
    def _ended(self) -> int:
        totals = self.fleet.ranks.totals
        return int(sum(totals[name].sum() for name in ("finished", "refused", "cancelled")))

    def _step(self, count: int) -> bool:
        """False: no requests are left."""
        until = int(self.fleet.all["steps"][0]) + count
        while (left := until - int(self.fleet.all["steps"][0])) > 0:
            code = run(self.fleet, left)
            if code == core.FINISHED:
                return False
            if code == core.LOG_FULL:
                self.one.collect_log()
                self.fleet = self.fleet._replace(common=self.one.simulation)
        return True

    def result(self, serving: Serving) -> FleetResult:
        self.one.collect_log()
        simulation, rows = self.one.simulation, self.fleet.ranks
        ranks, kv = self.fleet.depth_by_rank.size, simulation.limits.kv
        bins = np.array(simulation.log.bins)
        for name in ("busy_seconds", "depth_seconds", "decode_seconds"):
            bins[name] /= ranks
        engine = rows.engine[:1]
        whole = simulation._replace(
            state=simulation.state._replace(totals=merged(rows.totals), engine=engine),
            limits=simulation.limits._replace(kv=kv._replace(blocks=kv.blocks * ranks)),
            log=simulation.log._replace(bins=cast("Rows[TimeBin]", bins)),
        )
        steps = np.asarray(rows_of(LoggedStep, 0))
        result = FleetResult.of(serving, whole, steps, drawn=self.one.drawn)
        return replace(cast("FleetResult", result), ranks=ranks, fleet=self.fleet.all[0])
