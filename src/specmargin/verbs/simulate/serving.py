"""From a request to the run that it describes; needs the extra `simulate`."""

from __future__ import annotations

import re
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
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError, nearest_names
from specmargin.limits import MAX_DEPTH
from specmargin.policies.study.ladder import Contest
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.results import Slo
from specmargin.simulator.rounds import RoundBank, captured_rounds, drawn_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.traces import read_trace
from specmargin.simulator.workload import (
    Arrivals,
    Category,
    ClosedLoop,
    FixedLength,
    Length,
    LognormalLength,
    Poisson,
    RateSchedule,
    UniformLength,
    Workload,
)
from specmargin.verbs.simulate.request_schema import LengthTable, SimulateRequest


def serving_of(request: SimulateRequest, folder: Path) -> Serving:
    """Paths in the request are relative to `folder`."""
    choice, pricer = _pricer(request.scenario_only(), folder)
    scenario = pricer.scenario
    depth = _depth(request, scenario.drafter.max_depth)
    own_routing = any(category.routing is not None for category in request.categories)
    routing = tuple(find_routing(c.routing, scenario.architecture) for c in request.categories) if own_routing else ()
    return Serving(
        pricer=pricer,
        workload=_workload(request, folder),
        bank=_rounds(request, choice, scenario, depth, folder),
        policy=request.policy,
        engine=EngineSettings(max_num_seqs=request.max_num_seqs, max_num_batched_tokens=request.max_num_batched_tokens),
        max_depth=depth,
        seed=request.seed,
        category_routing=routing,
    )


def run_cell(described: dict[str, Any], folder: str) -> dict[str, Any]:
    """The summary of one cell of a sweep, in any process. The sweep records input errors as results."""
    request = read_request(SimulateRequest, described, source="cell")
    return simulate(serving_of(request, Path(folder))).summary(slo_of(request), request.gpu_hour_price)


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
            prompt=None if category.isl is None else _length(category.isl),
            output=None if category.osl is None else _length(category.osl),
        )
        for category in request.categories
    )
    return Workload(
        arrivals=_arrivals(request, folder),
        prompt=_length(request.isl),
        output=_length(request.osl),
        categories=categories or (Category(name="all"),),
    )


def _arrivals(request: SimulateRequest, folder: Path) -> Arrivals:
    if request.trace is not None:
        return read_trace(folder / request.trace)
    if request.hours is not None:
        return RateSchedule(hours=request.hours, requests_per_second=request.hourly_qps or ())
    if request.concurrency is not None:
        return ClosedLoop(users=request.concurrency, requests=request.requests)
    return Poisson(requests_per_second=request.qps or 0.0, requests=request.requests, burst=request.burst)


def _length(table: LengthTable) -> Length:
    if table.tokens is not None:
        return FixedLength(tokens=table.tokens)
    if table.ln_mean is not None and table.ln_sd is not None:
        most = 131_072 if table.most is None else table.most
        return LognormalLength(ln_mean=table.ln_mean, ln_sd=table.ln_sd, least=table.least or 1, most=most)
    return UniformLength(least=table.least or 1, most=table.most or 1)


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
