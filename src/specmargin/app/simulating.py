"""The answer to a `simulate` request: one run per policy on the same load, and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from specmargin.answers.stamp import stamped, used_options
from specmargin.app.serving import serving_of, simulation_of
from specmargin.app.simulation_schema import SimulationFile
from specmargin.app.verbs_schema import SimulateRequest
from specmargin.simulator.results import Result
from specmargin.simulator.run import check, expected_requests, simulate, with_tables
from specmargin.words import duration

#: Called with a policy and its number of requests; gives the function that is told how many have finished.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def _silent(_policy: str, _requests: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    request: SimulateRequest
    described: SimulationFile
    results: tuple[Result, ...]  # one per policy, in the order asked for

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per policy."""
        slo, price = self.described.slo.slo(), self.described.gpu_hour_price
        return [
            {"policy": result.serving.policy}
            | result.summary(slo, price)
            | {"seconds_by_component": result.seconds_by_component()}
            for result in self.results
        ]

    @property
    def flat_rows(self) -> list[dict[str, Any]]:
        """The same, nested results with their names joined by underscores."""
        return [_flat(row) for row in self.rows]

    @property
    def verdict(self) -> str:
        rows = self.rows
        served = f"{rows[0]['finished']:,} of {rows[0]['requests']:,} requests served"
        refused = f", {rows[0]['refused']:,} refused (would never fit)" if rows[0]["refused"] else ""
        if len(rows) == 1:
            return f"{served}{refused}, {rows[0]['committed']:,} tokens in {duration(rows[0]['span_seconds'])}."
        best = max(rows, key=lambda row: float(row["busy_tokens_per_second"]))
        rate = best["busy_tokens_per_second"]
        return f"{served}{refused}; highest throughput while busy: {best['policy']}, {rate:,.0f} tokens/s."


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= {f"{name}_{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def simulated(request: SimulateRequest, *, log_steps: bool = False, progress: Progress = _silent) -> Simulated:
    described, folder = simulation_of(request)
    serving = serving_of(described, folder)
    names = described.policy.split(",")
    for name in names:
        check(serving, name)
    serving = with_tables(serving)
    results = []
    for name in names:
        with progress(name, expected_requests(serving)) as advance:
            results.append(simulate(replace(serving, policy=name), log_steps=log_steps, advance=advance))
    return Simulated(request=request, described=described, results=tuple(results))


def policy_names(request: SimulateRequest) -> Sequence[str]:
    return simulation_of(request)[0].policy.split(",")


def simulated_json(simulated: Simulated) -> dict[str, Any]:
    """The JSON of `specmargin simulate --json`: the first policy at the top level, all of them under `policies`."""
    described, first = simulated.described, simulated.results[0].serving
    rows = simulated.rows
    sources = {name: str(source) for name, source in first.pricer.sources.items()}
    values = {
        "schema": "specmargin.simulate/1",
        "model": described.scenario.model,
        "gpu": described.scenario.gpu,
        **rows[0],
        "policies": rows,
        "sources": sources | {"rounds": first.bank.source},
        "description": described.description(),
    }
    scenario = first.pricer.scenario
    options = {"options": used_options(described.scenario, scenario)}  # the rest is in `description`
    return stamped(values) | options | {"survival": [float(part) for part in first.bank.prior[: described.max_depth]]}
