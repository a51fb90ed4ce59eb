"""One workload served by one engine under one policy. Deterministic: the same inputs give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError
from specmargin.routing.profile import RoutingProfile
from specmargin.simulator.engine import EngineSettings, kv_budget
from specmargin.simulator.keeping import Kept
from specmargin.simulator.playing import Player, player
from specmargin.simulator.policies import PolicyInputs, check_policy, find_policy
from specmargin.simulator.pricing import StepTables, TableLimits, context_axis, step_tables
from specmargin.simulator.results import Result
from specmargin.simulator.rounds import RoundBank
from specmargin.simulator.runs import FINISHED_ALL
from specmargin.simulator.state import (
    BIN_COLUMNS,
    CLOCK,
    FINISHED,
    REJECTED,
    STEP_COLUMNS,
    Limits,
    Log,
    Rounds,
    State,
    engine_limits,
    new_state,
    rounds_of,
)
from specmargin.simulator.workload import RateSchedule, Requests, Workload, draw
from specmargin.step import FloatArray

_BINS = 1024
_FIRST_BIN_SECONDS = 1.0 / 64.0
_LOG_ROWS = 65_536
_STEPS_A_CALL = 1 << 18  # between two looks at the progress bar
_TABLES: Kept[StepTables] = Kept()


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Everything a run depends on."""

    scenario: Scenario
    workload: Workload
    bank: RoundBank
    policy: str = "none"
    engine: EngineSettings = field(default_factory=EngineSettings)
    max_depth: int = 4
    seed: int = 0
    category_routing: tuple[RoutingProfile, ...] = ()
    tables: StepTables | None = None  # of an earlier run in the same scenario, to save time
    compiled: bool = True  # False: every policy through Python, once a step

    def __post_init__(self) -> None:
        wanted = [category.name for category in self.workload.categories]
        if list(self.bank.categories) != wanted:
            raise ScenarioError(f"rounds are of {', '.join(self.bank.categories)}, requests of {', '.join(wanted)}")
        if self.category_routing and len(self.category_routing) != len(wanted):
            raise ScenarioError(f"{len(wanted)} categories need as many routing profiles, or none")
        if self.max_depth < 1:
            raise ScenarioError(f"max_depth must be at least 1, got {self.max_depth}")
        limit = self.scenario.drafter.max_depth
        if limit is not None and self.max_depth > limit:
            raise ScenarioError(f"drafter {self.scenario.drafter.name} drafts at most {limit} tokens")


@dataclass(slots=True, kw_only=True)
class Run:
    """A run under way: what the compiled loop works on, and what Python keeps beside it."""

    rounds: Rounds
    limits: Limits
    tables: StepTables
    log: Log
    state: State
    steps: list[FloatArray] = field(default_factory=list)

    def look_after_log(self) -> None:
        """Empty the steps that were logged; bins that time has outgrown are merged by two."""
        rows = int(self.log.filled[0])
        if rows:
            self.steps.append(self.log.steps[:rows].copy())
            self.log.filled[0] = 0
        while self.state.clocks[CLOCK] >= self.log.bins.shape[0] * self.limits.bin_seconds:
            merged = self.log.bins.reshape(_BINS // 2, 2, -1).sum(axis=1)
            self.log.bins[: _BINS // 2] = merged
            self.log.bins[_BINS // 2 :] = 0.0
            self.limits = self.limits._replace(bin_seconds=2.0 * self.limits.bin_seconds)


def simulate(serving: Serving, *, log_steps: bool = False, advance: Callable[[int], None] = lambda _: None) -> Result:
    """`advance` hears of requests that are finished."""
    check(serving, serving.policy)
    requests = draw(serving.workload, serving.seed)
    held = check_policy(serving.policy, serving.max_depth)
    kv = kv_budget(serving.scenario, serving.engine, held_depth=held)
    tables = serving.tables or tables_of(serving, requests)
    depth = tables.effective.size - 1
    bank = serving.bank.deep(depth)
    starts = bank.starts(requests.category, np.random.default_rng([serving.seed, 5]))
    given = PolicyInputs(
        scenario=serving.scenario, bank=bank, max_batch=serving.engine.max_num_seqs, max_depth=serving.max_depth
    )
    choice = find_policy(serving.policy, given)
    limits = engine_limits(
        serving.engine,
        kv,
        speculating=held is not None,
        users=requests.users,
        bin_seconds=_FIRST_BIN_SECONDS,
    )
    run = Run(
        rounds=rounds_of(bank),
        limits=limits,
        tables=tables,
        log=_new_log(tables, log_steps),
        state=new_state(requests, starts, limits),
    )
    _play(run, player(choice, limits.max_seqs, depth, compiled=serving.compiled), advance)
    run.look_after_log()
    return Result.of(serving, requests, kv, run.state, run.log, run.limits.bin_seconds, _joined(run.steps))


def check(serving: Serving, policy: str) -> None:
    """Refuse a policy that is not one, or an engine that could hold no sequence, before any work is done."""
    held = check_policy(policy, serving.max_depth)
    kv = kv_budget(serving.scenario, serving.engine, held_depth=held)
    if kv.blocks < kv.needed(1):
        name = serving.scenario.architecture.name
        raise ScenarioError(f"policy {policy}: {name} leaves {kv.blocks} KV blocks, not enough for one sequence")


def with_tables(serving: Serving) -> Serving:
    """For several policies on the same load: what they share is worked out once."""
    return replace(serving, tables=tables_of(serving))


def expected_requests(serving: Serving) -> int:
    """How many there will be, for a progress bar: exact but for schedules, which draw it."""
    arrivals = serving.workload.arrivals
    if isinstance(arrivals, RateSchedule):
        return int(np.trapezoid(arrivals.requests_per_second, arrivals.hours) * 3600.0)
    return arrivals.requests


def tables_of(serving: Serving, requests: Requests | None = None) -> StepTables:
    """Step prices as far as these requests can reach; the same for every policy."""
    requests = draw(serving.workload, serving.seed) if requests is None else requests
    longest = int((requests.prompt_tokens + requests.output_tokens).max()) + serving.max_depth
    limits = TableLimits(
        sequences=serving.engine.max_num_seqs,
        depth=serving.max_depth,
        context=longest,
        prefill_tokens=serving.engine.max_num_batched_tokens,
    )
    limits = replace(limits, context=int(context_axis(limits.context)[-1]))  # so that like workloads share tables
    routing = serving.category_routing or (serving.scenario.routing,) * len(serving.workload.categories)
    key = (id(serving.scenario), limits, tuple(id(profile) for profile in routing))
    return _TABLES.get(key, (serving.scenario, routing), lambda: step_tables(serving.scenario, limits, routing))


def _play(run: Run, play: Player, advance: Callable[[int], None]) -> None:
    seen = 0
    while True:
        code = play(run.rounds, run.limits, run.tables, run.log, run.state, _STEPS_A_CALL)
        done = int(run.state.numbers[FINISHED] + run.state.numbers[REJECTED])
        advance(done - seen)
        seen = done
        if code == FINISHED_ALL:
            return
        run.look_after_log()


def _new_log(tables: StepTables, log_steps: bool) -> Log:
    batches, depths, contexts = tables.decode.shape
    return Log(
        steps=np.zeros((_LOG_ROWS if log_steps else 0, len(STEP_COLUMNS))),
        filled=np.zeros(1, dtype=np.int64),
        bins=np.zeros((_BINS, len(BIN_COLUMNS))),
        cells=np.zeros((batches, depths, contexts)),
    )


def _joined(parts: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate(parts) if parts else np.zeros((0, len(STEP_COLUMNS)))
