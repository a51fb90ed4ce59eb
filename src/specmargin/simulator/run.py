"""One workload served by one engine under one policy. Deterministic: the same inputs give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specmargin.architecture.types import DraftHead
from specmargin.caches import IdentityCache
from specmargin.errors import ScenarioError
from specmargin.modes import FLEET_POLICIES, POLICIES, Scheduling
from specmargin.policies.policy import Decision, Outcome, Policy, ScheduledDepth
from specmargin.policies.rules import schedule_kernel
from specmargin.prices.launches import ANSWER, ANSWER_STREAM, REQUEST, Graph
from specmargin.records import Rows, rows_of
from specmargin.routing.profile import RoutingProfile
from specmargin.simulator import core
from specmargin.simulator.engine import KvBudget, kv_budget
from specmargin.simulator.graphs import Graphs, captured_graphs, exact_graphs, vllm_sizes
from specmargin.simulator.policies import PolicyChoice, PolicyInputs, check_policy, find_policy
from specmargin.simulator.pool import BlockPool, new_pool
from specmargin.simulator.results import Result
from specmargin.simulator.serving import Serving
from specmargin.simulator.shortened import affordable
from specmargin.simulator.state import (
    DEPTH,
    OUTCOME,
    VERIFY,
    Limits,
    Log,
    LoggedStep,
    ReplayedRounds,
    Simulation,
    State,
    TimeBin,
    new_state,
)
from specmargin.simulator.tables import RankTables, StepTables, TableLimits, context_axis, rank_tables, step_tables
from specmargin.simulator.traffic import Traffic, traffic_of
from specmargin.simulator.workload import Drawn, Request

_BINS = 1024
_FIRST_BIN_SECONDS = 1.0 / 64.0
_LOG_ROWS = 65_536
_STEPS_PER_CALL = 1 << 18  # between two updates of the progress bar
_TABLES: IdentityCache[StepTables] = IdentityCache(maxsize=32)
_RANK_TABLES: IdentityCache[RankTables] = IdentityCache(maxsize=8)
_NO_KERNEL = schedule_kernel(np.zeros(1, dtype=np.int64))  # a placeholder when Python decides


def simulate(
    serving: Serving,
    *,
    choice: PolicyChoice | None = None,
    log_steps: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Result:
    """Simulate one serving, under `choice` if given instead of its policy's name.

    `advance` is called with the number of newly finished requests.
    """
    run = prepare(serving, choice=choice, log_steps=log_steps)
    run.play(advance)
    return Result.of(serving, run.simulation, run.logged_steps(), drawn=run.drawn)


def prepare(serving: Serving, *, choice: PolicyChoice | None = None, log_steps: bool = False) -> Run:
    """A run that has not begun."""
    depth = held_depth(serving, serving.policy) if choice is None else choice.held_depth
    traffic, drawn = affordable(serving.workload, serving.seed)
    requests = traffic.requests
    if not isinstance(serving.workload.arrivals, Drawn):  # a part of a load that was checked
        check_room(serving, depth, requests)
    tables = tables_of(serving, requests)
    bank = serving.bank.deep(tables.prices.max_depth)
    requests["next_round"][:] = bank.starts(requests["category"], np.random.default_rng([serving.seed, 5]))
    inputs = PolicyInputs(pricer=serving.pricer, bank=bank, max_batch=serving.max_num_seqs, max_depth=serving.max_depth)
    choice = find_policy(serving.policy, inputs) if choice is None else choice
    kernel = choice.policy.kernel() if serving.compiled else None
    limits = _limits(serving, traffic, choice, by_python=kernel is None)
    simulation = Simulation(
        rounds=ReplayedRounds(bank.accepted, bank.survival, bank.next_by_round),
        limits=limits,
        tables=tables,
        graphs=graphs_of(serving, choice),
        log=_new_log(tables, log_steps),
        state=new_state(traffic, _pool(serving, traffic, limits), limits, tables.prices.max_depth),
        kernel=_NO_KERNEL if kernel is None else kernel,
    )
    return Run(simulation=simulation, decider=Decider(choice, simulation.state), drawn=drawn)


def _limits(serving: Serving, traffic: Traffic, choice: PolicyChoice, *, by_python: bool) -> Limits:
    engine, time = serving.engine, serving.scenario.engine_time
    kv = _kv(serving, choice.held_depth)
    return Limits(
        max_seqs=serving.max_num_seqs,
        max_tokens=serving.max_num_batched_tokens,
        kv=kv,
        speculating=choice.held_depth is not None,
        ahead=time.schedules_ahead(speculating=choice.held_depth is not None),
        request_seconds=time.kernel_launch_seconds * REQUEST,
        answer_seconds=time.kernel_launch_seconds * ANSWER,
        answer_stream_seconds=time.kernel_launch_seconds * ANSWER_STREAM,
        users=serving.workload.users,
        prefix_hit=engine.prefix_hit,
        kv_arrives=engine.kv_arrives,
        bin_seconds=_FIRST_BIN_SECONDS,
        by_python=by_python,
        sees_outcomes=choice.sees_outcomes,
        hashed=engine.prefix_cache and traffic.contents > 0 and kv.block_tokens == traffic.block_tokens,
        cancelling=traffic.has_cancels,
        by_priority=engine.scheduling == Scheduling.PRIORITY and traffic.has_priorities,
        sessions=traffic.has_sessions,
    )


def graphs_of(serving: Serving, choice: PolicyChoice) -> Graphs:
    """Ranks that split a batch pad their own parts, which is not simulated."""
    scenario, policy = serving.scenario, choice.policy
    time, shape = scenario.engine_time, (serving.max_num_seqs, serving.max_depth)
    if scenario.engine != "vllm" or time.graph_limit is None or scenario.layout.sequence_ranks > 1:
        return exact_graphs(*shape)
    sizes = serving.engine.cudagraph_capture_sizes or vllm_sizes(time.graph_limit)
    # Only the second model runner, whose drafts are in full graphs too, captures by depth of a table.
    if not isinstance(policy, ScheduledDepth) or time.draft_graph is not Graph.FULL:
        return captured_graphs(sizes, (), *shape)
    return captured_graphs(sizes, np.unique(policy.depth_by_batch[1:]).tolist(), *shape)


def _kv(serving: Serving, held_depth: int | None) -> KvBudget:
    return kv_budget(serving.pricer, serving.engine, held_depth=held_depth, own_rank=serving.router is not None)


def _pool(serving: Serving, traffic: Traffic, limits: Limits) -> BlockPool:
    """Heads read hidden states of the target, so that vLLM computes the last found block again for them."""
    kv, requests = limits.kv, traffic.requests
    longest = int((requests["prompt_tokens"] + requests["output_tokens"]).max()) + kv.lookahead_tokens
    return new_pool(
        traffic,
        blocks=kv.blocks if limits.hashed else 0,
        sequences=limits.max_seqs if limits.hashed else 0,
        positions=min(kv.needed(longest), kv.blocks) if limits.hashed else 0,
        first=kv.blocks_per_sequence,
        dropped=int(limits.speculating and isinstance(serving.scenario.drafter.runs, DraftHead)),
    )


def check(serving: Serving, policy: str) -> None:
    """Raise for an unknown policy, or for an engine with no room for a sequence, before any work is done."""
    check_room(serving, held_depth(serving, policy))


def held_depth(serving: Serving, policy: str) -> int | None:
    """Draft tokens for which the policy needs room; None: no speculation."""
    if serving.router is None:
        if policy in FLEET_POLICIES and policy not in POLICIES:
            raise ScenarioError(f"--policy {policy} is of data-parallel ranks: add --router NAME, with --dp N")
        return check_policy(policy, serving.max_depth)
    if policy in POLICIES and policy not in FLEET_POLICIES:
        raise ScenarioError(
            f"--policy {policy} decides for one engine; ranks behind a --router take: {', '.join(FLEET_POLICIES)}"
        )
    return check_policy(policy, serving.max_depth, FLEET_POLICIES)


def check_room(serving: Serving, held_depth: int | None, requests: Rows[Request] | None = None) -> None:
    """Raise unless one of the requests fits in the KV cache."""
    kv = _kv(serving, held_depth)
    name, depth = serving.scenario.architecture.name, "no drafts" if held_depth is None else f"depth {held_depth}"
    if kv.blocks < kv.needed(1):
        raise ScenarioError(f"{name} at {depth} leaves {kv.blocks} KV blocks, not enough for one sequence")
    requests = traffic_of(serving.workload, serving.seed).requests if requests is None else requests
    shortest = int((requests["prompt_tokens"] + requests["output_tokens"]).min())
    if kv.blocks < kv.needed(shortest):
        room = (kv.blocks - kv.blocks_per_sequence) * kv.block_tokens - kv.lookahead_tokens
        raise ScenarioError(
            f"no request fits: the shortest has {shortest:,} tokens of input and output, the KV cache of {name} at "
            f"{depth} has room for {room:,}; give shorter requests (--isl, --osl) or more GPUs"
        )


def tables_of(serving: Serving, requests: Rows[Request] | None = None) -> StepTables:
    """Step prices up to the longest of these requests; the same for every policy, and cached."""
    if serving.router is not None:
        return rank_tables_of(serving, requests).steps
    (limits, routing), pricer = _tabled(serving, requests), serving.pricer
    key = (id(pricer), limits, tuple(id(profile) for profile in routing))
    return _TABLES.get(key, (pricer, routing), lambda: step_tables(pricer, limits, routing))


def rank_tables_of(serving: Serving, requests: Rows[Request] | None = None) -> RankTables:
    """The same for one of several ranks."""
    (limits, routing), pricer = _tabled(serving, requests), serving.pricer
    key = (id(pricer), limits, tuple(id(profile) for profile in routing))
    return _RANK_TABLES.get(key, (pricer, routing), lambda: rank_tables(pricer, limits, routing))


def _tabled(serving: Serving, requests: Rows[Request] | None) -> tuple[TableLimits, tuple[RoutingProfile, ...]]:
    requests = traffic_of(serving.workload, serving.seed).requests if requests is None else requests
    longest = int((requests["prompt_tokens"] + requests["output_tokens"]).max()) + serving.max_depth
    limits = TableLimits(
        sequences=serving.max_num_seqs,
        depth=serving.max_depth,
        context=int(context_axis(longest)[-1]),  # rounded up, so that similar workloads share tables
        prefill_tokens=serving.max_num_batched_tokens,
    )
    return limits, serving.category_routing or (serving.scenario.routing,) * len(serving.workload.categories)


# --- running ---


@dataclass(slots=True, kw_only=True)
class Run:
    """One run: the arguments of the compiled loop, the decisions in Python, and the log."""

    simulation: Simulation
    decider: Decider
    drawn: int  # requests of the workload; fewer are run where nothing is compiled
    _logged: list[npt.NDArray[Any]] = field(default_factory=list)

    def play(self, advance: Callable[[int], None]) -> None:
        reported = 0
        while (code := core.run(self.simulation, _STEPS_PER_CALL)) != core.FINISHED:
            if code == core.NEEDS_DECISION:
                self.decider.decide()
                continue
            ended = self._ended()
            advance(ended - reported)
            reported = ended
            self.collect_log()
        advance(self._ended() - reported)
        self.collect_log()

    def _ended(self) -> int:
        totals = self.simulation.state.totals
        return int(sum(totals[name][0] for name in ("finished", "refused", "cancelled")))

    def collect_log(self) -> None:
        """Copy and clear the logged steps; merge time bins in pairs when the clock has passed the last one."""
        log, limits = self.simulation.log, self.simulation.limits
        rows = int(log.filled[0])
        if rows:
            self._logged.append(np.array(log.steps)[:rows].copy())
            log.filled[0] = 0
        bins = np.asarray(log.bins).view(np.float64).reshape(_BINS, -1)
        if not math.isfinite(self.simulation.state.totals["clock"][0]):  # the loop below would never end
            raise ScenarioError("requests arrive so rarely that the simulated clock overflows: raise --qps")
        while self.simulation.state.totals["clock"][0] >= _BINS * limits.bin_seconds:
            bins[: _BINS // 2] = bins.reshape(_BINS // 2, 2, -1).sum(axis=1)
            bins[_BINS // 2 :] = 0.0
            limits = limits._replace(bin_seconds=2.0 * limits.bin_seconds)
        self.simulation = self.simulation._replace(limits=limits)

    def logged_steps(self) -> npt.NDArray[Any]:
        return np.concatenate([np.asarray(rows_of(LoggedStep, 0)), *self._logged])


class Decider:
    """Makes the decision that the loop's phase needs, for policies in Python."""

    def __init__(self, choice: PolicyChoice, state: State) -> None:
        self._policy: Policy = choice.policy
        self._state = state
        self._pending = Decision(0)  # of the pending drafts
        self._chosen = Decision(0)  # of the drafts made at the end of the step

    def decide(self) -> None:
        phase = int(self._state.engine["phase"][0])
        if phase == VERIFY:
            self._verify()
        elif phase == DEPTH:
            self._choose()
        else:
            assert phase == OUTCOME
            self._observe()

    def _verify(self) -> None:
        held, state = int(self._state.step["held"][0]), self._state
        drafted = state.lengths[:held].copy()
        self._pending = self._policy.verify(self._pending, state.survival[:held], drafted)
        if self._pending.verify_depths is not None:
            state.lengths[:held] = self._pending.verify_depths

    def _choose(self) -> None:
        engine, ready = self._state.engine, int(self._state.step["ready"][0])
        self._chosen = self._policy.draft(ready)
        engine["chosen_depth"][0] = min(max(self._chosen.depth, 0), self._state.survival.shape[1])

    def _observe(self) -> None:
        """Pass the outcome to the policy, then set the lengths of the new drafts."""
        state, step = self._state, self._state.step
        rounds = int(step["rounds"][0])
        if rounds > 0:
            seconds = float(step["target_seconds"][0] + state.engine["draft_seconds"][0])
            self._policy.observe(
                Outcome(
                    decision=self._pending,
                    drafted=state.drafted[:rounds].copy(),
                    verified=state.verified[:rounds].copy(),
                    accepted=state.accepted[:rounds].copy(),
                    seconds=seconds if step["prompt_tokens"][0] == 0 else math.nan,
                )
            )
        held = int(step["held"][0])
        if held:
            chosen = self._chosen._replace(depth=int(state.engine["chosen_depth"][0]))
            state.lengths[:held] = self._policy.draft_lengths(chosen, state.survival[:held])
        self._pending = self._chosen


def _new_log(tables: StepTables, log_steps: bool) -> Log:
    return Log(
        steps=rows_of(LoggedStep, _LOG_ROWS if log_steps else 0),
        filled=np.zeros(1, dtype=np.int64),
        bins=rows_of(TimeBin, _BINS),
        cells=np.zeros(tables.prices.rest_seconds.shape),
    )
