"""From the description of a run (a file, options or a cell of a sweep) to the run."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from specmargin.acceptance.survival import Survival
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.app.simulation_schema import SimulationFile, parse_simulation
from specmargin.app.verbs_schema import SimulateRequest
from specmargin.catalog.drafters import DraftChoice, find_acceptance
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import InputError, ScenarioError, nearest_names, needs_extra
from specmargin.files import read_toml


def simulation_of(request: SimulateRequest) -> tuple[SimulationFile, Path]:
    """The run that a command line describes, and the folder to which its paths are relative.

    Options given together with a scenario file override the file.
    """
    given = _nested(request)
    if not request.model.endswith(".toml"):
        if not request.gpu:
            raise InputError("name a device with --gpu (`specmargin gpus` lists them), or give a scenario file")
        if len(_LOADS & given["workload"].keys()) != 1:
            raise InputError("give one load: --qps, --users or --trace")
        return parse_simulation(_merged(_DEFAULTS, given), "simulate"), Path()
    path = Path(request.model)
    base = read_toml(path, ScenarioError)
    if _LOADS & given["workload"].keys() and isinstance(base.get("workload"), dict):
        base["workload"] = {name: value for name, value in base["workload"].items() if name not in _LOADS}
    for where, name in (("workload", "trace"), ("scenario", "acceptance"), ("", "bank")):
        table = given[where] if where else given
        if name in table and Path(table[name]).exists():
            table[name] = str(Path(table[name]).resolve())  # relative to the working directory, not to the file
    del given["scenario"]["model"]
    return parse_simulation(_merged(base, given), str(path)), path.parent


_LOADS = {"users", "requests_per_second", "hours", "rates", "trace"}
_DEFAULTS: dict[str, Any] = {"workload": {"requests": 400}, "policy": "controller,none"}
_FILE_KEYS = {
    "qps": ("workload", "requests_per_second"),
    "users": ("workload", "users"),
    "trace": ("workload", "trace"),
    "requests": ("workload", "requests"),
    "burst": ("workload", "burst"),
    "isl": ("workload", "prompt"),
    "osl": ("workload", "output"),
    "max_num_seqs": ("engine", "max_num_seqs"),
    "max_num_batched_tokens": ("engine", "max_num_batched_tokens"),
    "ttft_slo": ("slo", "ttft_ms"),
    "tpot_slo": ("slo", "tpot_ms"),
    "depth": ("", "max_depth"),
}


def _nested(request: SimulateRequest) -> dict[str, Any]:
    """The given options under the keys that they have in a scenario file."""
    nested: dict[str, Any] = {"scenario": {}, "workload": {}, "engine": {}, "slo": {}}
    for field in request.model_fields_set:
        table, name = _FILE_KEYS.get(field, ("scenario" if field in ScenarioRequest.model_fields else "", field))
        (nested[table] if table else nested)[name] = getattr(request, field)
    return nested


def _merged(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    tables = {name: {**base.get(name, {}), **value} for name, value in given.items() if isinstance(value, dict)}
    return base | given | tables


def serving_of(described: SimulationFile, folder: Path) -> Any:
    """A `Serving`; paths in the description are relative to `folder`."""
    with needs_extra("simulate"):
        from specmargin.simulator.serving import Serving  # noqa: PLC0415 (Numba is an extra)

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


@lru_cache(maxsize=16)
def _pricer(request: ScenarioRequest, folder: Path) -> tuple[DraftChoice, Pricer]:
    """Cached, so that the cells of a sweep share a pricer and its tables."""
    acceptance = request.acceptance
    if acceptance is not None and (folder / acceptance).exists():
        acceptance = str(folder / acceptance)
    choice, scenario = scenario_of(request.model_copy(update={"acceptance": acceptance}))
    return choice, Pricer(scenario)


def _rounds(described: SimulationFile, choice: DraftChoice, scenario: Scenario, depth: int, folder: Path) -> Any:
    from specmargin.simulator.rounds import drawn_rounds  # noqa: PLC0415

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
def _captured_rounds(path: str, names: tuple[str, ...]) -> Any:
    """Calibrators and policies are fitted on one half of the bank's requests; the other half is replayed."""
    from specmargin.acceptance.bank import read_bank  # noqa: PLC0415
    from specmargin.acceptance.estimate import product_limit  # noqa: PLC0415
    from specmargin.policies.study.ladder import Contest  # noqa: PLC0415
    from specmargin.simulator.rounds import captured_rounds  # noqa: PLC0415

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


def run_cell(described: dict[str, Any], folder: str) -> dict[str, Any]:
    """The summary of one cell of a sweep, in any process. The sweep records input errors as results."""
    cell = parse_simulation(described, "cell")
    from specmargin.simulator.run import simulate  # noqa: PLC0415

    result = simulate(serving_of(cell, Path(folder)))
    return result.summary(cell.slo.slo(), cell.gpu_hour_price)
