"""A cell into Specmargin's words and its plan back into plain numbers: what `specmargin plan` would do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenarios_of
from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import plan_rows
from specmargin.decisions.schedule import Schedule
from specmargin.decisions.setting import Setting
from specmargin.errors import CatalogError, InputError, ParallelismError
from specmargin.modes import Parallel, Placement, RooflineForm
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plan, engine_config
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.golden.cells import BATCHES, MAX_DEPTH, Cell

FloatArray = npt.NDArray[np.float64]

_LARGEST_BATCH = 64  # of the schedule; a whole plan goes to 512, as `specmargin plan` does
_WHOLE_BATCH = 512
_GPUS = (1, 2, 4, 8)
_TYPES: dict[str, Any] = {
    "context": int,
    "gpus": int,
    "tp": int,
    "dp": int,
    "pp": int,
    "redundant_experts": int,
    "ep": "true".__eq__,
    "graph_limit": int,
    "step_ms": float,
    "sequence_ms": float,
    "position_us": float,
    "layer_us": float,
    "off_ms": float,
    "draft_p_min": float,
    "draft_vocabulary": int,
    "memory_utilization": float,
    "form": RooflineForm,
    "parallel": Parallel,
    "placement": Placement,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """One batch size; by depth where it is a tuple."""

    batch: int
    verify_us: tuple[float, ...]  # microseconds
    draft_us: tuple[float, ...]
    plain_us: float  # a step of an engine without speculation
    best_depth: int
    scheduled_depth: int
    speedup: float
    hurdle: float
    break_even: float | None
    distinct_experts: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePlan:
    """What a plan says beyond its rows."""

    schedule: str
    config: str
    scheduled_speedup: tuple[float, ...]  # by batch
    pays_at_batches: str
    pays_without_graph_limit: str
    stops_at_context: int | None
    switch_acceptance: float | None
    largest_batch: int
    plain_largest_batch: int
    peak_tokens_per_second: float
    plain_peak_tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    gpus: int
    drafter: str
    rows: tuple[PlannedRow, ...]
    schedule: str
    config: str
    whole: WholePlan | None


def plan_cell(cell: Cell) -> Planned | Refused:
    try:
        return _planned(cell)
    except InputError as error:
        return Refused(kind=_kind(error))


def _kind(error: InputError) -> str:
    """Coarser than the sentence, whose words may change."""
    match error:
        case ParallelismError():
            return "does not fit"
        case CatalogError():
            return "not in the catalog"
        case _:
            return "not possible"


def _planned(cell: Cell) -> Planned:
    gpus, choice, pricer = _pricer_of(cell)
    scenario = pricer.scenario
    setting = Setting.of(scenario, max_depth=MAX_DEPTH)  # the best depth, whatever the engine can express
    largest = _WHOLE_BATCH if cell.whole else _LARGEST_BATCH
    # One pass over all batches; the pricer keeps what it has priced.
    pricer.grid(sorted({*range(1, largest + 1), *BATCHES}), setting.max_depth)
    rows = plan_rows(pricer, BATCHES, setting, min_gain=0.0)
    # `answer` also finds out where speculation stops to pay, which takes three times as long as this part of it.
    config = engine_config(choice, pricer, list(BATCHES), _question(cell, _LARGEST_BATCH), setting)
    grid = pricer.grid(BATCHES, setting.max_depth)
    whole = None
    if cell.whole:
        whole = _whole(drafter_plan(choice, pricer, _question(cell, _WHOLE_BATCH)))
    return Planned(
        gpus=gpus,
        drafter=scenario.drafter.name,
        rows=tuple(
            PlannedRow(
                batch=row.batch,
                verify_us=tuple((1e6 * grid.verify_seconds[i]).tolist()),
                draft_us=tuple((1e6 * grid.draft_seconds[i]).tolist()),
                plain_us=float(1e6 * grid.no_spec_seconds[i]),
                best_depth=row.depth,
                scheduled_depth=config.schedule.depth_at(row.batch),
                speedup=row.speedup,
                hurdle=sum(row.hurdle_by_component.values()),  # as a price: `row.hurdle` is a probability or nothing
                break_even=row.break_even_acceptance,
                distinct_experts=row.distinct_experts,
            )
            for i, row in enumerate(rows)
        ),
        schedule=_ranges(config.schedule),
        config=_text(config.text, config.file_text),
        whole=whole,
    )


def _question(cell: Cell, max_batch: int) -> PlanRequest:
    return PlanRequest(
        model=cell.model, gpu=cell.gpu, engine=cell.engine, batch=BATCHES, depth=MAX_DEPTH, max_batch=max_batch
    )


def goodput_by_batch_depth(cell: Cell) -> FloatArray:
    """From batch 1 on, relative to the best; −inf where a depth has no graph. Not recorded: it tells ties."""
    _, _, pricer = _pricer_of(cell)
    return Setting.of(pricer.scenario, max_depth=MAX_DEPTH).depth_table(pricer, max_batch=_WHOLE_BATCH).relative


def _pricer_of(cell: Cell) -> tuple[int, DraftChoice, Pricer]:
    options = _options(cell.options)
    gpus = int(options.pop("gpus", 0)) or _fewest_gpus(cell.model, cell.gpu, cell.options)
    return gpus, *_pricer(cell, gpus, options)


def _options(text: str) -> dict[str, Any]:
    """`--kv-cache fp8` as the scenario takes it."""
    words = shlex.split(text)
    names = [name.removeprefix("--").replace("-", "_") for name in words[::2]]
    return {name: _TYPES.get(name, str)(value) for name, value in zip(names, words[1::2], strict=True)}


def _pricer(cell: Cell, gpus: int, options: dict[str, Any]) -> tuple[DraftChoice, Pricer]:
    asked = ScenarioRequest(
        model=cell.model, gpu=cell.gpu, gpus=gpus, engine=cell.engine, prices=cell.prices, **options
    )
    ((choice, scenario),) = scenarios_of(asked)
    pricer = Pricer(scenario)
    pricer.check_memory()
    return choice, pricer


@cache
def _fewest_gpus(model: str, gpu: str, options: str) -> int:
    """The smallest power of two, up to 8, that holds the weights; more than one where experts are spread."""
    given = _options(options)
    alone = given.get("parallel", Parallel.TP) is Parallel.TP
    cell = Cell(model=model, gpu=gpu, engine="vllm", prices="datasheet", options=options)
    for gpus in _GPUS[:-1] if alone else _GPUS[1:-1]:
        try:
            _pricer(cell, gpus, given)
        except ParallelismError:
            continue
        return gpus
    return _GPUS[-1]


def _whole(answer: DrafterPlan) -> WholePlan:
    plan = answer.plan
    return WholePlan(
        schedule=_ranges(answer.config.schedule),
        config=_text(answer.config.text, answer.config.file_text),
        scheduled_speedup=tuple(row.speedup for row in plan.rows),
        pays_at_batches=_pairs(plan.paying),
        pays_without_graph_limit=_pairs(plan.graph_free_paying),
        stops_at_context=plan.stops_at_context,
        switch_acceptance=plan.switch_acceptance,
        largest_batch=plan.largest_batch,
        plain_largest_batch=plan.no_spec_largest_batch,
        peak_tokens_per_second=plan.peak_tokens_per_second,
        plain_peak_tokens_per_second=plan.no_spec_peak_tokens_per_second,
    )


def _ranges(schedule: Schedule) -> str:
    """`1-4:5 5-512:3`: batches and their depth."""
    return " ".join(f"{entry.first}-{entry.last}:{entry.depth}" for entry in schedule.ranges)


def _pairs(ranges: tuple[tuple[int, int], ...]) -> str:
    return " ".join(f"{first}-{last}" for first, last in ranges)


def _text(setting: str, file: str | None) -> str:
    return setting if file is None else f"{setting}\n{file}"
