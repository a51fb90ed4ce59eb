"""Several GPUs or layouts in one table: one row per machine and batch, and the plan of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, left, right
from specmargin.answers.layouts import layout_text
from specmargin.catalog.gpu_hours import GpuHour, gpu_hour
from specmargin.catalog.lookup import find_device
from specmargin.decisions.advice import Advice
from specmargin.decisions.scenario import Scenario
from specmargin.errors import InputError, ScenarioError
from specmargin.verbs.plan.depth_grid import grid_blocks
from specmargin.verbs.plan.drafter_plan import (
    DEFAULT_BATCHES,
    USUAL_BATCH,
    DrafterPlan,
    drafter_plans,
    row_and_range,
)
from specmargin.verbs.plan.machines import machine_name
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.plan.text import plan_blocks
from specmargin.verbs.plan.values import plan_values

if TYPE_CHECKING:
    from specmargin.show.figures.figure import Chart

_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """A machine at one batch, or under the load. Everything but names is None where the model cannot be served."""

    machine: str
    gpu: str
    gpus: int
    parallel: str
    fits: bool
    note: str | None = None  # why not
    advice: str | None = None
    engine: str | None = None
    drafter: str | None = None
    batch: float | None = None  # a mean under a load
    depth: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    tokens_per_second_per_gpu: float | None = None
    no_spec_tokens_per_second_per_gpu: float | None = None
    tpot_seconds: float | None = None
    no_spec_tpot_seconds: float | None = None
    gpu_hour_price: float | None = None
    gpu_hour_price_assumed: bool | None = None  # a list price: it shows costs, and decides nothing
    cost_per_million_tokens: float | None = None
    no_spec_cost_per_million_tokens: float | None = None

    @property
    def best_cost(self) -> float | None:
        """With speculation or without, whichever is less."""
        costs = [self.no_spec_cost_per_million_tokens, self.cost_per_million_tokens if self.fits else None]
        return min((cost for cost in costs if cost is not None), default=None)

    @property
    def best_speed(self) -> float:
        """Tokens per second and GPU, with speculation or without, whichever is more."""
        return max(self.no_spec_tokens_per_second_per_gpu or 0.0, (self.tokens_per_second_per_gpu or 0.0) * self.fits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    request: PlanRequest
    ranked: tuple[DrafterPlan, ...]  # none where the model cannot be served
    refusal: InputError | None = None

    @property
    def layout_name(self) -> str:
        return self.ranked[0].plan.scenario.layout.name if self.ranked else layout_text(self.request)

    @property
    def name(self) -> str:
        return machine_name(find_device(self.request.gpu), self.request.gpus, self.layout_name)

    def rows(self, batches: Sequence[int]) -> list[MachineRow]:
        names: dict[str, Any] = {
            "machine": self.name,
            "gpu": find_device(self.request.gpu).name,
            "gpus": self.request.gpus,
            "parallel": self.layout_name,
        }
        if not self.ranked:
            return [MachineRow(**names, fits=False, note=str(self.refusal))]
        best = self.ranked[0]
        named = names | {"drafter": best.plan.scenario.drafter.name, "engine": best.engine.name}
        if best.service is not None:
            return [MachineRow(**named, **_served(best))]
        return [MachineRow(**named, **_decoded(best, batch)) for batch in batches]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """All machines of a request, and the batches at which they are compared."""

    planned: tuple[Machine, ...]
    batches: tuple[int, ...]

    @property
    def serving(self) -> list[Machine]:
        return [each for each in self.planned if each.ranked]

    @property
    def rows(self) -> list[MachineRow]:
        return [row for each in self.planned for row in each.rows(self.batches)]

    @property
    def preferred(self) -> Machine:
        """The cheapest where every price was given, else the fastest per GPU."""
        name = _best(self.rows).machine
        return next(each for each in self.planned if each.name == name)

    @property
    def verdict(self) -> str:
        return "\n".join(_sentences(self.rows))

    def values(self) -> dict[str, Any]:
        scenario = self.preferred.ranked[0].plan.scenario
        return {
            "model": scenario.architecture.name,
            "context": scenario.context,
            "verdict": self.verdict,
            "rows": [asdict(row) for row in self.rows],
            "plans": [{"machine": each.name} | plan_values(each.ranked) for each in self.serving],
        }

    def blocks(self, *, explain: bool, grid: bool) -> Iterator[Block]:
        answer, *facts = _sentences(self.rows)
        yield bold(answer)
        yield from map(Line, facts)
        yield GAP
        yield from _table(self.rows, self.preferred.ranked[0].plan.scenario)
        for machine in self.serving if grid else ():
            yield GAP
            yield bold(f"{machine.name}:")
            yield from grid_blocks(machine.ranked[0])
        if not explain:
            yield dim("flags and details: name one GPU, or add --explain for the plan of each")
            return
        for machine in self.serving:
            yield GAP
            yield bold(f"{machine.name}:")
            yield from plan_blocks(machine.ranked, None, explain=False)

    def chart(self) -> Chart:
        from specmargin.show.figures.overlay import overlay_figure

        sides = [(each.name, each.ranked[0].plan) for each in self.serving]
        return overlay_figure("overlay-speedup", sides, batch=self.batches[0]).chart()


def plan_machines(request: PlanRequest, requests: Sequence[PlanRequest]) -> Machines:
    """The plan of every machine; where none can serve the model, the first one's reason is the error."""
    if request.compare is not None:
        raise ScenarioError("--compare is for one GPU: name one with --gpu")
    planned = tuple(_planned(each) for each in requests)
    refusals = [each.refusal for each in planned if each.refusal is not None]
    if len(refusals) == len(planned):
        raise refusals[0]
    return Machines(planned=planned, batches=_batches(request, planned))


def _planned(request: PlanRequest) -> Machine:
    try:
        return Machine(request=request, ranked=tuple(drafter_plans(request)))
    except InputError as error:
        return Machine(request=request, ranked=(), refusal=error)


def _batches(request: PlanRequest, planned: Sequence[Machine]) -> tuple[int, ...]:
    """Those that were asked for, or one at which all machines can be compared."""
    if request.batch is not None:
        return request.batch
    room = min(each.ranked[0].plan.no_spec_largest_batch for each in planned if each.ranked)
    return (max((batch for batch in DEFAULT_BATCHES if batch <= min(room, USUAL_BATCH)), default=1),)


def _best(rows: Sequence[MachineRow]) -> MachineRow:
    """The cheapest where every price was given, else the fastest per GPU."""
    served = [row for row in rows if row.speedup is not None]
    if _all_given(served):
        return min(served, key=lambda row: row.best_cost or 0.0)
    return max(served, key=lambda row: row.best_speed)


def _all_given(rows: Sequence[MachineRow]) -> bool:
    return all(row.best_cost is not None and not row.gpu_hour_price_assumed for row in rows if row.speedup is not None)


def _decoded(of: DrafterPlan, batch: int) -> dict[str, Any]:
    row, sure = row_and_range(of, batch)
    gpus = of.plan.scenario.layout.gpus
    return {
        "fits": row.fits,
        "note": None if row.fits else f"{of.plan.largest_batch:,} sequences fit with drafts of {of.plan.held_depth}",
        "advice": str(of.advice),
        "batch": row.batch,
        "depth": row.depth,
        "speedup": row.speedup,
        "speedup_low": sure.low,
        "speedup_high": sure.high,
        "tokens_per_second_per_gpu": row.goodput_tokens_per_second / gpus,
        "no_spec_tokens_per_second_per_gpu": row.no_spec_tokens_per_second / gpus,
        "tpot_seconds": row.tpot_seconds,
        "no_spec_tpot_seconds": row.no_spec_tpot_seconds,
        **_costs(of.gpu_hour, row.goodput_tokens_per_second / gpus, row.no_spec_tokens_per_second / gpus),
    }


def _served(of: DrafterPlan) -> dict[str, Any]:
    """The load as whole requests."""
    assert of.service is not None
    assert of.service_range is not None
    plain, speculating, gpus = of.service.plain, of.service.speculating, of.service.gpus
    speeds = speculating.tokens_per_second / gpus, plain.tokens_per_second / gpus
    return {
        "fits": True,
        "advice": str(of.advice),
        "batch": speculating.sequences,
        "depth": speculating.depth,
        "speedup": of.service.speedup,
        "speedup_low": of.service_range[0],
        "speedup_high": of.service_range[1],
        "tokens_per_second_per_gpu": speeds[0],
        "no_spec_tokens_per_second_per_gpu": speeds[1],
        "tpot_seconds": speculating.tpot_seconds,
        "no_spec_tpot_seconds": plain.tpot_seconds,
        **_costs(of.gpu_hour, *speeds),
    }


def _costs(hour: GpuHour | None, speed: float, no_spec_speed: float) -> dict[str, float]:
    """Per million tokens, from tokens per second and GPU."""
    if hour is None:
        return {}
    per_token_rate = hour.usd * 1e6 / _HOUR_SECONDS
    return {
        "gpu_hour_price": hour.usd,
        "gpu_hour_price_assumed": hour.assumed,
        "cost_per_million_tokens": per_token_rate / speed,
        "no_spec_cost_per_million_tokens": per_token_rate / no_spec_speed,
    }


# --- in words ---


def _sentences(rows: Sequence[MachineRow]) -> Iterator[str]:
    best = _best(rows)
    if best.best_cost is None or not _all_given(rows):
        yield f"Fastest per GPU: {best.machine}, {best.best_speed:,.0f} tokens/s {_how(best)}."
    else:
        yield f"Cheapest: {best.machine}, ${best.best_cost:.3f} per million tokens {_how(best)}."
    for start, machines in groupby(sorted(rows, key=_order), key=_outcome):
        yield f"{start} {', '.join(dict.fromkeys(row.machine for row in machines))}."


_OUTCOMES = (
    "Speculation pays on",
    "It is uncertain on",
    "It does not pay on",
    "No engine runs the drafter on",
    "Drafts do not fit at this batch on",
    "The model cannot be served by",
)


def _outcome(row: MachineRow) -> str:
    """Of speculation at the row's batch or load."""
    pays, uncertain, loses, unsupported, crowded, refused = _OUTCOMES
    if row.speedup is None or row.speedup_low is None:
        return refused
    if not row.fits:
        return crowded
    if row.advice == str(Advice.UNSUPPORTED):
        return unsupported
    if row.speedup <= 1.0:
        return loses
    return uncertain if row.speedup_low <= 1.0 else pays


def _order(row: MachineRow) -> int:
    return _OUTCOMES.index(_outcome(row))


def _how(row: MachineRow) -> str:
    """With speculation or without, as the better figure is."""
    plain = not row.fits or (row.speedup or 1.0) <= 1.0
    at = f"at batch {row.batch:,.0f}"
    return f"{at} without speculation" if plain else f"{at} with {row.drafter} drafting {_depth(row)}"


def _depth(row: MachineRow) -> str:
    return f"{row.depth:.1f}".removesuffix(".0")


# --- as a table ---


def _table(rows: Sequence[MachineRow], scenario: Scenario) -> Iterator[Block]:
    priced = any(row.cost_per_million_tokens is not None for row in rows)
    drafters = list(dict.fromkeys(row.drafter for row in rows if row.drafter))
    several = len(drafters) > 1
    model = scenario.architecture.name
    shown = model if several else f"{model} with {drafters[0]}"
    yield bold(f"{shown}, context {scenario.context:,.0f}; tok/s per GPU")
    yield Table(
        columns=[
            *left("gpu", *(["drafter"] if several else [])),
            *right("batch", "draft", "speed-up", "80% range", "tok/s", *([] if priced else ["plain"]), "ms/token"),
            *right(*(["$/Mtok", "plain $"] if priced else [])),
        ],
        rows=[_cells(row, priced=priced, several=several) for row in rows],
        dim=frozenset(index for index, row in enumerate(rows) if not row.fits),
    )
    yield from _assumed_prices(rows)
    yield from _engines(rows)
    for row in rows:
        if row.note is not None:
            at = "" if row.batch is None else f" at batch {row.batch:,.0f} (parentheses)"
            yield dim(f"{row.machine}{at}: {row.note}")


def _assumed_prices(rows: Sequence[MachineRow]) -> Iterator[Block]:
    names = dict.fromkeys(row.gpu for row in rows if row.gpu_hour_price_assumed)
    listed = [(name, hour) for name in names if (hour := gpu_hour(name)) is not None]
    if listed:
        texts = (f"{name} {hour.usd:g} ({hour.source} {hour.month})" for name, hour in listed)
        yield dim(f"assumed $ per GPU-hour: {', '.join(texts)}")
        yield dim("with your prices (--gpu-hour-price) the verdict names the cheapest")


def _engines(rows: Sequence[MachineRow]) -> Iterator[Block]:
    """Where they differ, because no one engine runs on all of these GPUs."""
    by_engine: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.engine is not None:
            by_engine.setdefault(row.engine, {})[row.machine] = None
    if len(by_engine) > 1:
        yield dim("; ".join(f"{engine}: {', '.join(machines)}" for engine, machines in by_engine.items()))


def _cells(row: MachineRow, *, priced: bool, several: bool) -> list[str]:
    drafter = [row.drafter or ""] if several else []
    if row.speedup is None:
        return [row.machine, *drafter, "–", "–", "none", *["–"] * (5 if priced else 4)]
    depth = _depth(row)
    speeds = [row.tokens_per_second_per_gpu, *([] if priced else [row.no_spec_tokens_per_second_per_gpu])]
    costs = [row.cost_per_million_tokens, row.no_spec_cost_per_million_tokens] if priced else []
    return [
        row.machine,
        *drafter,
        f"{row.batch:,.0f}",
        depth if row.fits else f"({depth})",
        f"{row.speedup:.2f}×",
        f"{row.speedup_low:.2f}–{row.speedup_high:.2f}",
        *(f"{speed:,.0f}" for speed in speeds),
        "" if row.tpot_seconds is None else f"{row.tpot_seconds * 1e3:.2f}",
        *("–" if cost is None else f"{cost:.3f}" for cost in costs),
    ]
