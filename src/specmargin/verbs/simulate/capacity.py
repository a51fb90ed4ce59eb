"""`simulate --find`: the largest load of each policy that meets the targets, with an interval over seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, left, right, sourced
from specmargin.answers.verb import Progress
from specmargin.errors import ScenarioError
from specmargin.modes import Find
from specmargin.simulator.capacity import FLOOD, MOST_USERS, Capacity, Search, Targets, requests_of_tail
from specmargin.simulator.results import Result, Slo
from specmargin.simulator.serving import Serving
from specmargin.simulator.workload import Poisson
from specmargin.verbs.simulate.answer import SimulateAnswer, engine_text, milliseconds, policy_rows
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.verbs.simulate.serving import planned_policies, run_policies, run_serving, slo_of

if TYPE_CHECKING:
    from specmargin.show.figures.figure import Chart

_LOADS = {Find.QPS: "requests/s", Find.CONCURRENCY: "users"}
_ENGINE = "more is not served"


def find_capacity(request: SimulateRequest, folder: Path, serving: Serving, progress: Progress) -> CapacityAnswer:
    targets = Targets(slo=slo_of(request) or Slo(), percentile=request.percentile)
    choices = planned_policies(request, folder, serving)
    flooded = _flooded(request, folder, serving)
    requests = max(map(requests_of_tail, flooded))
    found = []
    for full in flooded:
        name = full.serving.policy
        search = Search(
            serving=replace(serving, policy=name).with_requests(requests),
            run=lambda each, name=name: run_serving(each, choices.get(name)),  # type: ignore[misc]
            targets=targets,
            seeds=request.seeds,
            serves=full.goodput / serving.workload.mean_output,
            whole=request.find is Find.CONCURRENCY,
        )
        with progress(f"{name}: seeds", request.seeds) as advance:
            found.append(search.capacity(advance))
    if not any(each.loads for each in found):
        raise ScenarioError(f"no policy meets the targets at any load: {_unmet(found[0], targets)}; raise the targets")
    met = [each for each in found if each.loads]
    rows = policy_rows([each.result for each in met], targets.slo, request.gpu_hour_price)
    return CapacityAnswer(
        request=request,
        results=tuple(each.result for each in met),
        policies=tuple(row | _values(each, targets, request) for row, each in zip(rows, met, strict=True)),
        found=tuple(found),
        targets=targets,
    )


def _flooded(request: SimulateRequest, folder: Path, serving: Serving) -> list[Result]:
    """Each policy with more requests than it can serve: the most that it serves, and how many it holds."""
    arrivals = Poisson(requests_per_second=FLOOD, requests=1, burst=request.burst)
    flood = replace(serving, workload=replace(serving.workload, arrivals=arrivals))
    return run_policies(request, folder, flood, run_serving)


def _unmet(of: Capacity, targets: Targets) -> str:
    """By what the targets are missed where requests hardly meet."""
    times = targets.times(of.result)
    missed = [name for name, limit in targets.limits.items() if times[name] > limit]
    parts = [
        f"{name} is {milliseconds(times[name])} ms, above {milliseconds(targets.limits[name])} ms" for name in missed
    ]
    return f"{of.policy}: at the lowest load {' and '.join(parts)} (p{targets.percentile:g})"


def _values(of: Capacity, targets: Targets, request: SimulateRequest) -> dict[str, Any]:
    times = targets.times(of.result)
    return {
        "find": str(request.find),
        "load": of.load,
        "load_low": min(of.loads),
        "load_high": max(of.loads),
        "load_by_seed": list(of.loads),
        "limited_by": list(of.limited_by),
        "percentile": targets.percentile,
        "ttft_at_percentile_seconds": times.get("TTFT"),
        "tpot_at_percentile_seconds": times.get("TPOT"),
        "tried": [
            {"load": each.load, "seed": each.seed, "missed": list(each.missed), **each.times} for each in of.tried
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CapacityAnswer(SimulateAnswer):
    """`results` and `rows` are of the policies that meet the targets, at the load that was found."""

    found: tuple[Capacity, ...]
    targets: Targets

    schema: ClassVar[str] = "specmargin.capacity/1"

    @property
    def _unit(self) -> str:
        return _LOADS[self.request.find or Find.QPS]

    @property
    def _asked(self) -> str:
        limits = [f"{name} ≤ {milliseconds(seconds)} ms" for name, seconds in self.targets.limits.items()]
        return f"{' and '.join(limits)} at p{self.targets.percentile:g}"

    @property
    def verdict(self) -> str:
        best = max(self.policies, key=lambda row: float(row["load"]))
        other = next((row for row in self.policies if row["policy"] == "none" and row is not best), None)
        against = "" if other is None else f", {best['load'] / other['load']:.2f}× none"
        return f"{best['policy']} serves most: {_load(best['load'])} {self._unit}{against} ({self._asked})."

    def table(self) -> list[dict[str, Any]]:
        nested = ("load_by_seed", "limited_by", "tried")
        rows = [{name: value for name, value in row.items() if name not in nested} for row in self.policies]
        listed = [{"limited_by": " ".join(row["limited_by"])} for row in self.policies]
        flattened = SimulateAnswer.table(replace(self, policies=tuple(rows)))
        return [row | limit for row, limit in zip(flattened, listed, strict=True)]

    def values(self) -> dict[str, Any]:
        unmet = {each.policy: _unmet(each, self.targets) for each in self.found if not each.loads}
        return SimulateAnswer.values(self) | {"unmet": unmet}

    def blocks(self) -> Iterator[Block]:
        serving = self.results[0].serving
        yield bold(self.verdict)
        yield GAP
        yield bold(f"largest load with {self._asked}")
        yield self._capacities()
        yield dim(f"times in ms; median of {self.request.seeds} seeds; low, high: their least and largest; limit: what")
        yield dim("is missed above; all policies and loads serve the same requests")
        for each in self.found:
            if not each.loads:
                yield Line(f"{_unmet(each, self.targets)}.")
        yield GAP
        yield from sourced({name: source for name, source in serving.pricer.sources.items() if name != "acceptance"})
        yield dim(f"  rounds: {serving.bank.source}")
        yield dim(engine_text(self.results[0]))

    def _capacities(self) -> Table:
        price = self.request.gpu_hour_price is not None
        tail = f"p{self.targets.percentile:g}"
        columns = [self._unit, "low", "high", "tok/s", *(f"{name} {tail}" for name in self.targets.limits), "batch"]
        return Table(
            columns=[*left("policy"), *right(*columns, *(["$/Mtok"] if price else [])), *left("limit")],
            rows=[self._cells(row, price=price) for row in self.policies],
        )

    def _cells(self, row: dict[str, Any], *, price: bool) -> list[str]:
        times = [row[f"{name.lower()}_at_percentile_seconds"] for name in self.targets.limits]
        return [
            row["policy"],
            *(_load(row[name]) for name in ("load", "load_low", "load_high")),
            f"{row['goodput_tokens_per_second']:,.0f}",
            *map(milliseconds, times),
            f"{row['mean_batch']:.1f}",
            *([f"{row['cost_per_million_tokens']:.3f}"] if price else []),
            _limit(row["limited_by"]),
        ]

    def chart(self) -> Chart:
        from specmargin.show.figures.simulation import SIMULATOR, Words, capacity_figure

        records = [
            {"policy": each.policy, "load": tried.load, "seed": tried.seed, "share": self._share(tried.times)}
            for each in self.found
            for tried in each.tried
        ]
        words = Words(
            title=f"{self.request.model} on {self.request.gpu}: {self._unit} with {self._asked}",
            takeaway=self.verdict,
            source=SIMULATOR,
        )
        return capacity_figure(words, records, unit=self._unit).chart()

    def _share(self, times: dict[str, float]) -> float:
        """The latency that is closest to its target, or furthest beyond it, as a share of the target."""
        return max(times[name] / limit for name, limit in self.targets.limits.items())


def _load(load: float) -> str:
    return f"{load:,.0f}" if load >= 100 or load == int(load) else f"{load:.3g}"


def _limit(limited_by: list[str]) -> str:
    if not limited_by:
        return f"none up to {MOST_USERS:,}"
    return ", ".join(_ENGINE if name == "engine" else name for name in limited_by[:1])
