"""From a request to the run that it describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from specmargin.acceptance.bank import read_bank
from specmargin.acceptance.estimate import product_limit
from specmargin.acceptance.survival import Survival
from specmargin.answers.request_schema import ScenarioRequest, read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.drafters import DraftChoice, find_acceptance
from specmargin.catalog.lookup import find_device
from specmargin.catalog.machines import over_nodes
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import Schedule
from specmargin.errors import ScenarioError, nearest_names
from specmargin.formats import find_engine
from specmargin.limits import MAX_DEPTH
from specmargin.policies.study.ladder import Contest
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.fleet.run import simulate_fleet
from specmargin.simulator.policies import PolicyChoice, scheduled
from specmargin.simulator.pools import simulate_pools
from specmargin.simulator.results import Result, Slo
from specmargin.simulator.rounds import RoundBank, captured_rounds, drawn_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Pools, Serving
from specmargin.simulator.steady import run_steadily
from specmargin.simulator.traces import read_trace
from specmargin.simulator.workload import (
    Arrivals,
    Cancels,
    Category,
    ClosedLoop,
    Poisson,
    RateSchedule,
    Sessions,
    Workload,
)
from specmargin.verbs.plan.drafter_plan import drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.simulate.request_schema import SimulateRequest

_MEASURED_WHOLE = 4000  # requests of a run with sessions or cancelled requests, if no number is given


def serving_of(request: SimulateRequest, folder: Path) -> Serving:
    """Paths in the request are relative to `folder`."""
    choice, pricer = _pricer(_of_instance(request), folder)
    scenario = pricer.scenario
    depth = _depth(request, scenario.drafter.max_depth)
    own_routing = any(category.routing is not None for category in request.categories)
    routing = tuple(find_routing(c.routing, scenario.architecture) for c in request.categories) if own_routing else ()
    return Serving(
        pricer=pricer,
        workload=_workload(request, folder),
        bank=_rounds(request, choice, scenario, depth, folder),
        policy=request.policy,
        engine=_engine(request, scenario),
        max_depth=depth,
        seed=request.seed,
        category_routing=routing,
        steady=request.is_steady,
        router=request.router,
        pools=_pools(request, scenario),
    )


def _of_instance(request: SimulateRequest) -> ScenarioRequest:
    """Without the network that only carries KV from one instance to another."""
    asked = request.scenario_only()
    one_node = request.nodes in (None, 1) and request.gpus <= find_device(request.gpu).fabric.gpus_per_node
    return asked.model_copy(update={"fabric": None}) if request.prefill_instances is not None and one_node else asked


def _pools(request: SimulateRequest, scenario: Scenario) -> Pools | None:
    """With what carries KV between them: the links of a node that has all of them, else the network."""
    if request.prefill_instances is None:
        return None
    refusal = find_engine(scenario.engine).decode_refusal(scenario.layout)
    if refusal is not None:
        raise ScenarioError(f"--prefill-instances: {refusal}; leave it out")
    gpus = scenario.layout.gpus * (request.prefill_instances + request.decode_instances)
    per_node = scenario.device.fabric.gpus_per_node
    if request.fabric is not None and gpus <= per_node:
        raise ScenarioError(f"--fabric {request.fabric}: {gpus} GPUs are one machine of up to {per_node}; leave it out")
    fabric = over_nodes(scenario.device, gpus, None, request.fabric).fabric
    network = "links of one machine"
    if gpus > fabric.gpus_per_node:
        network = "network, as its datasheet says" if request.fabric is None else request.fabric
    return Pools(
        prefill=request.prefill_instances,
        decode=request.decode_instances,
        bytes_per_second=fabric.bytes_per_second(gpus),
        latency_seconds=fabric.latency_seconds(gpus),
        network=network,
    )


def _engine(request: SimulateRequest, scenario: Scenario) -> EngineSettings:
    """Limits that are not given are the engine's own on this device."""
    engine, device = find_engine(scenario.engine), scenario.device
    ranks = scenario.layout.data_ranks if engine.limits_per_rank else 1
    return EngineSettings(
        max_num_seqs=request.max_num_seqs or max(engine.max_seqs(device), -(-(request.concurrency or 0) // ranks)),
        max_num_batched_tokens=request.max_num_batched_tokens or engine.batched_tokens(device),
        limits_per_rank=engine.limits_per_rank,
        prefix_cache=not request.no_prefix_cache,
        prefix_hit=request.prefix_hit,
        scheduling=request.scheduling,
    )


RunOne = Callable[[Serving, PolicyChoice | None], Result]


def run_serving(
    serving: Serving,
    choice: PolicyChoice | None = None,
    *,
    log_steps: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Result:
    """By one engine, by ranks behind a router, or by instances for prompts and instances that decode."""
    if serving.pools is not None:
        return simulate_pools(serving, run_serving, choice=choice, advance=advance)
    if serving.router is not None:
        return simulate_fleet(serving, advance=advance)
    return simulate(serving, choice=choice, log_steps=log_steps, advance=advance)


def run_policies(request: SimulateRequest, folder: Path, serving: Serving, run: RunOne) -> list[Result]:
    """One result per policy, on the same requests: as many as asked for, or as a steady state takes."""
    names, choices = request.policy.split(","), planned_policies(request, folder, serving)

    def every(serving: Serving) -> list[Result]:
        return [run(replace(serving, policy=name), choices.get(name)) for name in names]

    return list(run_steadily(serving, every)) if serving.steady else every(serving)


def planned_policies(request: SimulateRequest, folder: Path, serving: Serving) -> dict[str, PolicyChoice]:
    """Those that are not made from the scenario alone."""
    if "schedule" not in request.policy.split(","):
        return {}
    return {"schedule": scheduled(_planned(request, folder), serving.max_num_seqs)}


def _planned(request: SimulateRequest, folder: Path) -> Schedule:
    """The depth by batch that `plan` prints for this scenario, under the load if its requests are of one kind."""
    fields = ScenarioRequest.model_fields.keys() & request.model_fields_set - {"context"}
    scenario, apart = _of_instance(request), request.prefill_instances is not None
    asked: dict[str, Any] = {name: getattr(scenario, name) for name in fields} | {"depth": request.depth}
    if request.acceptance is not None and (folder / request.acceptance).exists():
        asked["acceptance"] = str(folder / request.acceptance)
    lengths = {"isl": request.isl.tokens, "osl": request.osl.tokens}
    alike = None not in lengths.values() and not request.categories and not request.has_sessions
    if alike and (request.qps is not None or request.concurrency is not None):
        rate = None if request.qps is None else request.qps / request.decode_instances
        asked |= lengths | {"qps": rate, "concurrency": request.concurrency, "range_ratio": request.range_ratio}
        asked |= {} if apart else {"prefix_hit": request.prefix_hit}
        tokens = request.max_num_batched_tokens
        asked |= {} if tokens is None else {"max_num_batched_tokens": max(tokens, 64)}
    else:
        asked["context"] = request.context
    asked |= {"decode_only": True} if apart else {}
    return drafter_plans(read_request(PlanRequest, asked))[0].config.schedule


def run_cell(described: dict[str, Any], folder: str) -> dict[str, Any]:
    """The summary of one cell of a sweep, in any process. The sweep records input errors as results."""
    request = read_request(SimulateRequest, described, source="cell")
    serving = serving_of(request, Path(folder))
    (result,) = run_policies(request, Path(folder), serving, run_serving)
    return result.summary(slo_of(request), request.gpu_hour_price)


def slo_of(request: SimulateRequest) -> Slo | None:
    if request.ttft_slo is None and request.tpot_slo is None:
        return None
    ttft, tpot = (None if value is None else value / 1e3 for value in (request.ttft_slo, request.tpot_slo))
    return Slo(ttft_seconds=ttft, tpot_seconds=tpot)


# --- workload ---


def _workload(request: SimulateRequest, folder: Path) -> Workload:
    names = [category.name for category in request.categories]
    if len(set(names)) != len(names):
        raise ScenarioError(f"two categories have the same name ({', '.join(names)})")
    categories = tuple(
        Category(
            name=category.name,
            weight=category.weight,
            prompt=None if category.isl is None else category.isl.length(request.range_ratio),
            output=None if category.osl is None else category.osl.length(request.range_ratio),
            priority=category.priority,
        )
        for category in request.categories
    )
    return Workload(
        arrivals=_arrivals(request, folder),
        prompt=request.isl.length(request.range_ratio),
        output=request.osl.length(request.range_ratio),
        categories=categories or (Category(name="all"),),
        sessions=_sessions(request),
        cancels=_cancels(request),
    )


def _sessions(request: SimulateRequest) -> Sessions | None:
    if not request.has_sessions:
        return None
    return Sessions(
        turns=request.turns.length(0.0), think_seconds=request.think_seconds, shared_tokens=request.shared_prefix
    )


def _cancels(request: SimulateRequest) -> Cancels | None:
    if request.cancel_share == 0.0:
        return None
    tokens = None if request.cancel_tokens is None else request.cancel_tokens.length(0.0)
    return Cancels(share=request.cancel_share, tokens=tokens, seconds=request.cancel_seconds)


def _arrivals(request: SimulateRequest, folder: Path) -> Arrivals:
    if request.trace is not None:
        return read_trace(folder / request.trace, hash_tokens=request.hash_tokens)
    if request.hours is not None:
        return RateSchedule(hours=request.hours, requests_per_second=request.hourly_qps or ())
    requests = request.requests or (1 if request.is_steady else _MEASURED_WHOLE)  # a steady run chooses its own number
    if request.concurrency is not None:
        return ClosedLoop(users=request.concurrency, requests=requests)
    rate = request.qps or request.sessions_per_second or 1.0
    return Poisson(requests_per_second=rate, requests=requests, burst=request.burst)


# --- prices and rounds ---


@lru_cache(maxsize=16)
def _pricer(request: ScenarioRequest, folder: Path) -> tuple[DraftChoice, Pricer]:
    """Cached, so that the cells of a sweep share a pricer and its tables."""
    acceptance = request.acceptance
    if acceptance is not None and (folder / acceptance).exists():
        acceptance = str(folder / acceptance)
    choice, scenario = scenario_of(request.model_copy(update={"acceptance": acceptance}))
    return choice, Pricer(scenario)


def _depth(request: SimulateRequest, deepest: int | None) -> int:
    """The deepest draft: as given, or as deep as a fixed policy drafts; no deeper than the drafter can."""
    fixed = [int(part) for part in re.findall(r"(?:^|,)\s*fixed:([0-9]{1,4})\s*(?=,|$)", request.policy)]
    depth = request.depth if "depth" in request.model_fields_set else max(request.depth, *fixed, 0)
    return min(depth, deepest or depth, MAX_DEPTH)


def _rounds(request: SimulateRequest, choice: DraftChoice, scenario: Scenario, depth: int, folder: Path) -> RoundBank:
    if request.bank is not None:
        return _captured_rounds(str(folder / request.bank), tuple(category.name for category in request.categories))
    curves: dict[str, Survival] = {}
    for category in request.categories:
        acceptance = category.acceptance
        if acceptance is None:
            curves[category.name] = scenario.survival
        else:
            acceptance = str(folder / acceptance) if (folder / acceptance).exists() else acceptance
            curves[category.name] = find_acceptance(acceptance, choice, scenario.architecture)
    return drawn_rounds(curves or {"all": scenario.survival}, depth, seed=request.seed)


@lru_cache(maxsize=4)
def _captured_rounds(path: str, names: tuple[str, ...]) -> RoundBank:
    """Calibrators and policies are fitted on one half of the bank's requests; the other half is replayed."""
    rounds = read_bank([Path(path)])
    contest = Contest.of(rounds, seed=0)
    played, source = contest.played, f"rounds of {rounds.source}, the half not used for fitting"
    categories = played.category_by_round
    if names:
        for name in names:
            if name not in played.categories:
                hint = nearest_names(name, played.categories)
                raise ScenarioError(f"{path}: has no category {name!r}{hint}; it has: {', '.join(played.categories)}")
    else:
        categories = ("all",) * played.count
    accepted, signal = played.accepted_by_round, contest.calibrated
    bank = captured_rounds(categories, played.prompt_by_round, accepted, signal, source, names=names)
    return replace(bank, prior=product_limit(contest.learned), sample=contest.calibrated_sample)
