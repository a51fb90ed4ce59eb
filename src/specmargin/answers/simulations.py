"""From the description of a simulation (a file, options, a cell of a sweep) to the run; needs the extra `simulate`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from specmargin.acceptance.bank import read_bank
from specmargin.acceptance.estimate import product_limit
from specmargin.acceptance.survival import Survival
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.answers.simulation_schema import SimulationFile, parse_simulation
from specmargin.catalog.drafters import DraftChoice, find_acceptance
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError, nearest_names
from specmargin.policies.study.ladder import Contest
from specmargin.simulator.rounds import RoundBank, captured_rounds, drawn_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving


def serving_of(described: SimulationFile, folder: Path) -> Serving:
    """Paths in the description are relative to `folder`."""
    choice, pricer = _pricer(described.scenario, folder)
    scenario = pricer.scenario
    depth = min(described.max_depth, scenario.drafter.max_depth or described.max_depth)
    workload = described.workload.workload(folder)
    categories = described.workload.categories
    own_routing = any(category.routing is not None for category in categories)
    routing = tuple(find_routing(c.routing, scenario.architecture) for c in categories) if own_routing else ()
    return Serving(
        pricer=pricer,
        workload=workload,
        bank=_rounds(described, choice, scenario, depth, folder),
        policy=described.policy,
        engine=described.engine.settings(),
        max_depth=depth,
        seed=described.seed,
        category_routing=routing,
    )


def run_cell(described: dict[str, Any], folder: str) -> dict[str, Any]:
    """The summary of one cell of a sweep, in any process. The sweep records input errors as results."""
    cell = parse_simulation(described, "cell")
    result = simulate(serving_of(cell, Path(folder)))
    return result.summary(cell.slo.slo(), cell.gpu_hour_price)


@lru_cache(maxsize=16)
def _pricer(request: ScenarioRequest, folder: Path) -> tuple[DraftChoice, Pricer]:
    """Cached, so that the cells of a sweep share a pricer and its tables."""
    acceptance = request.acceptance
    if acceptance is not None and (folder / acceptance).exists():
        acceptance = str(folder / acceptance)
    choice, scenario = scenario_of(request.model_copy(update={"acceptance": acceptance}))
    return choice, Pricer(scenario)


def _rounds(described: SimulationFile, choice: DraftChoice, scenario: Scenario, depth: int, folder: Path) -> RoundBank:
    names = [category.name for category in described.workload.categories]
    if described.bank is not None:
        return _captured_rounds(str(folder / described.bank), tuple(names))
    curves: dict[str, Survival] = {}
    for category in described.workload.categories:
        acceptance = category.acceptance
        if acceptance is None:
            curves[category.name] = scenario.survival
        else:
            acceptance = str(folder / acceptance) if (folder / acceptance).exists() else acceptance
            curves[category.name] = find_acceptance(acceptance, choice, scenario.architecture)
    return drawn_rounds(curves or {"all": scenario.survival}, depth, seed=described.seed)


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
    bank = captured_rounds(categories, played.prompt_by_round, played.accepted_by_round, contest.calibrated, source)
    bank = replace(bank, prior=product_limit(contest.learned), sample=contest.calibrated_sample)
    return bank.only(names) if names else bank
