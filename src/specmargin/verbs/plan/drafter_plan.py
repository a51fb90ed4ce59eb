"""The plan of one drafter: rows, contexts, load, and the engine's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from specmargin.answers.graphs import beyond_graphs, held_by_graphs
from specmargin.answers.scenarios import ALL_DRAFTERS, engine_of, scenarios_of
from specmargin.architecture.types import Architecture
from specmargin.catalog.accuracy import price_errors
from specmargin.catalog.drafters import DraftChoice
from specmargin.catalog.engine_support import fp8_warning
from specmargin.catalog.gpu_hours import GpuHour, gpu_hour
from specmargin.catalog.tokenizers import same_tokenizer
from specmargin.decisions.advice import Advice, Judgement, judge
from specmargin.decisions.certainty import SpeedupRange, speedup_ranges
from specmargin.decisions.compare import Comparison
from specmargin.decisions.compare import compare as compare_sources
from specmargin.decisions.grid import Grid
from specmargin.decisions.load import Load, Operating, settle
from specmargin.decisions.plan import HORIZON, Plan, best_draft, check_range, make_plan
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.routing_effect import RoutingEffect, routing_effect
from specmargin.decisions.rows import PlanRow
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.schedule import Schedule
from specmargin.decisions.setting import Setting
from specmargin.decisions.verdict import extrapolated
from specmargin.decisions.warnings import price_warnings
from specmargin.errors import ScenarioError
from specmargin.formats import find_engine
from specmargin.formats.base import EngineConfig, EngineFormat, ScheduleRequest, find_release
from specmargin.limits import MAX_BATCH
from specmargin.modes import RooflineForm
from specmargin.verbs.plan.decode_only import check_decode_only
from specmargin.verbs.plan.request_schema import PlanRequest

if TYPE_CHECKING:
    from specmargin.simulator.service import Service, ServiceLoad

MAX_NUM_SEQS = 512  # a usual limit of engines: schedules reach at least as far
DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
USUAL_BATCH = 32  # machines are compared and costs quoted at this batch, or at the largest below it that fits
_DRAFTING = (Advice.SPECULATE, Advice.UP_TO_BATCH, Advice.UNCERTAIN)  # of which a load decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Where a request rate settles, in the steady state."""

    load: Load
    no_spec: Operating  # without speculation
    speculating: Operating


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target for the time between tokens, and what it is with the flags and without speculation."""

    seconds: float
    tpot_seconds: float
    no_spec_tpot_seconds: float

    @property
    def is_met(self) -> bool:
        return self.tpot_seconds <= self.seconds

    @property
    def is_met_without(self) -> bool:
        return self.no_spec_tpot_seconds <= self.seconds


def service_advice(service: Service, sure: tuple[float, float]) -> Advice:
    """`sure`: the 80% range of its speed-up."""
    if service.speculating.queue_growth_per_second:
        serves_more = service.speculating.tokens_per_second > service.plain.tokens_per_second
        overloaded = service.plain.queue_growth_per_second and serves_more
        return Advice.OVERLOADED if overloaded else Advice.DO_NOT
    if sure[0] <= 1.0 <= sure[1]:
        return Advice.UNCERTAIN
    if service.speedup <= 1.0:
        return Advice.DO_NOT
    return Advice.SLOWER_FIRST_TOKEN if service.waits_longer else Advice.SPECULATE


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterPlan:
    request: PlanRequest
    choice: DraftChoice
    plan: Plan
    config: EngineConfig
    by_context: dict[int, tuple[PlanRow, ...]]  # the same setting at other contexts
    settled: Settled | None  # with a request rate
    warnings: tuple[str, ...]  # about the prices, a load that was shortened, and CUDA graphs too small for it
    ranges: tuple[SpeedupRange, ...]  # of each row's speed-up
    service: Service | None = None  # the load as whole requests
    refused: tuple[PlanRow, SpeedupRange] | None = None  # where nothing is drafted: the best draft, and how sure it is

    @property
    def gpu_hour(self) -> GpuHour | None:
        """Of this machine's GPUs: as given, else the catalog's list price."""
        price = self.request.gpu_hour_price
        if isinstance(price, dict):
            raise ScenarioError("a plan of one machine has one price per GPU-hour")
        return gpu_hour(self.plan.scenario.device.name, price)

    @property
    def gpu_hour_price(self) -> float | None:
        return None if self.gpu_hour is None else self.gpu_hour.usd

    @property
    def routing_effect(self) -> RoutingEffect | None:
        """Against uniform routing; priced when asked for."""
        return routing_effect(self.plan)

    @property
    def engine(self) -> EngineFormat:
        return find_engine(self.plan.scenario.engine)

    @property
    def headline(self) -> tuple[PlanRow, SpeedupRange]:
        """The row asked about, or the first that fits, and how sure it is."""
        pairs = list(zip(self.plan.rows, self.ranges, strict=True))
        if self.request.at_batch is not None:
            return next(pair for pair in pairs if pair[0].batch == self.request.at_batch)
        return next((pair for pair in pairs if pair[0].fits), pairs[0])

    @property
    def headline_row(self) -> PlanRow:
        return self.headline[0]

    @property
    def headline_range(self) -> SpeedupRange | None:
        """How sure the verdict is; None if nothing is drafted."""
        sure = self.judgement.range
        return sure if sure.inputs else None

    @property
    def judgement(self) -> Judgement:
        """What the plan advises, by the ranges of its rows."""
        supported, at_batch = not self.config.unsupported, self.request.at_batch
        return judge(self.plan, self.ranges, supported=supported, refused=self.refused, at_batch=at_batch)

    @property
    def service_range(self) -> tuple[float, float] | None:
        """The 80% range of the service's speed-up; None without a load."""
        if self.service is None:
            return None
        row, sure = self.headline
        return self.service.bound(row.speedup, sure.low), self.service.bound(row.speedup, sure.high)

    @property
    def advice(self) -> Advice:
        """Of the service, with a load; else of decode steps. A gain that misses the latency target is none."""
        advice, sure = self.judgement.advice, self.service_range
        if advice not in _DRAFTING or not self.plan.pays:
            return advice
        if self.service is not None and sure is not None:
            advice = service_advice(self.service, sure)
        target = self.target
        if advice in (Advice.DO_NOT, Advice.UNCERTAIN, Advice.OVERLOADED) or target is None or target.is_met:
            return advice
        return Advice.DO_NOT if target.is_met_without else Advice.MISSES_TARGET

    @property
    def target(self) -> Target | None:
        """Time between tokens against its target, of the service or at the batch asked about."""
        if self.request.tpot_slo is None:
            return None
        row = self.headline_row
        drafting, plain = row.tpot_seconds, row.no_spec_tpot_seconds
        if self.service is not None:
            drafting, plain = (side.tpot_seconds or 0.0 for side in (self.service.speculating, self.service.plain))
        return Target(seconds=self.request.tpot_slo * 1e-3, tpot_seconds=drafting, no_spec_tpot_seconds=plain)

    @property
    def usual_row(self) -> PlanRow:
        """At which costs are quoted: the largest row that fits up to a usual batch."""
        usual = [row for row in self.plan.rows if row.fits and row.batch <= USUAL_BATCH]
        return usual[-1] if usual else self.headline_row

    @property
    def mean_speedup(self) -> float:
        rows = [row for row in self.plan.rows if row.fits] or list(self.plan.rows)
        return sum(row.speedup for row in rows) / len(rows)


def drafter_plans(request: PlanRequest) -> list[DrafterPlan]:
    """One per requested drafter, the best first."""
    if request.isl is not None and request.osl is not None:
        request = request.model_copy(update={"context": round(request.isl + request.osl / 2.0)})
    by_drafter = [drafter_plan(choice, pricer, request) for choice, pricer in _fitting(request)]
    return sorted(by_drafter, key=lambda entry: -entry.mean_speedup)


def check_policy(request: PlanRequest) -> None:
    """Before anything is priced: only the plug-ins read a policy."""
    engine = engine_of(request)
    if engine.with_policy is None:
        raise ScenarioError(f"--policy: there is no plug-in for {engine.title}, only for vLLM and SGLang; leave it out")


def _fitting(request: PlanRequest) -> list[tuple[DraftChoice, Pricer]]:
    """Every drafter that was named; of `--drafter all`, those for which there is memory beside the target."""
    pairs = [(choice, Pricer(scenario)) for choice, scenario in scenarios_of(request)]
    fitting = [pair for pair in pairs if pair[1].has_memory] if request.drafter == ALL_DRAFTERS else pairs
    return fitting or pairs


def load_of(request: PlanRequest) -> Load | None:
    if request.qps is None or request.isl is None or request.osl is None:
        return None
    target = None if request.tpot_slo is None else request.tpot_slo * 1e-3
    return Load(
        requests_per_second=request.qps,
        prompt_tokens=request.isl,
        output_tokens=request.osl,
        tpot_target_seconds=target,
        reads_prompts=not request.decode_only,
    )


def drafter_plan(choice: DraftChoice, pricer: Pricer, request: PlanRequest) -> DrafterPlan:
    """The setting first; everything else is what that setting gives."""
    if request.decode_only:
        check_decode_only(pricer.scenario)
    setting, load = setting_of(request, pricer), load_of(request)
    settled = None
    if load is not None:
        no_spec = settle(pricer, load, Setting.fixed(0))
        settled = Settled(load=load, no_spec=no_spec, speculating=settle(pricer, load, setting))
    batches = _batches(pricer, request, setting, settled)
    check_range("batch", batches, 1, MAX_BATCH)
    config = engine_config(choice, pricer, batches, request, setting)
    service = _service(pricer, request, config.schedule)
    if service is not None and service.batches != batches:  # for the batches that the service really has
        found, config = config.schedule, engine_config(choice, pricer, service.batches, request, setting)
        service = service if config.schedule == found else _service(pricer, request, config.schedule)
    setting = setting.with_schedule(config.schedule)
    if settled is not None:
        settled = replace(settled, speculating=settle(pricer, settled.load, setting))
        batches = _batches(pricer, request, setting, settled)
    if service is not None:
        batches = service.batches
    if request.at_batch is not None:
        batches = sorted({*batches, request.at_batch})
    usual = find_engine(pricer.scenario.engine).usual_batch
    plan = make_plan(pricer, batches, setting, min_gain=request.min_gain, up_to=usual)
    return DrafterPlan(
        request=request,
        choice=choice,
        plan=plan,
        config=config,
        by_context={tokens: plan.rows_at_context(float(tokens)) for tokens in request.contexts},
        settled=settled,
        warnings=_warnings(plan, service),
        ranges=_ranges(plan, request),
        service=service,
        refused=_refused(plan, request),
    )


def _refused(plan: Plan, request: PlanRequest) -> tuple[PlanRow, SpeedupRange] | None:
    row = best_draft(plan, request.at_batch)
    return None if row is None else (row, _ranges(replace(plan, rows=(row,)), request)[0])


def _warnings(plan: Plan, service: Service | None) -> tuple[str, ...]:
    scenario, row = plan.scenario, plan.rows[0]
    engine = find_engine(scenario.engine)
    fp8 = fp8_warning(engine.name, engine.title, scenario.device, scenario.architecture)
    prices = price_warnings(plan.pricer, batch=row.batch, depth=row.depth)
    load = () if service is None else (service.shortened, _graph_warning(plan, service))
    return tuple(text for text in (*load, fp8, *prices, extrapolated(plan)) if text is not None)


def _graph_warning(plan: Plan, service: Service) -> str | None:
    side, setting = service.speculating, plan.setting
    batch = max(round(side.sequences), 1)
    beyond = beyond_graphs(plan.pricer, share=side.beyond_graphs, positions=side.most_positions)
    if beyond is not None or setting.graph_limit is None or setting.schedule is None:
        return beyond
    depth = setting.schedule.depth_at(batch)
    return held_by_graphs(plan.pricer, batch=batch, depth=depth, max_depth=setting.max_depth)


def _ranges(plan: Plan, request: PlanRequest) -> tuple[SpeedupRange, ...]:
    errors = price_errors(plan.scenario.prices.name, plan.scenario.device.name)
    return speedup_ranges(plan, errors, own_acceptance=request.acceptance is not None)


def row_and_range(of: DrafterPlan, batch: int) -> tuple[PlanRow, SpeedupRange]:
    """What the same setting gives at any batch, and how sure that is."""
    for row, sure in zip(of.plan.rows, of.ranges, strict=True):
        if row.batch == batch:
            return row, sure
    alone = replace(of.plan, rows=(of.plan.row_at(batch),))
    return alone.rows[0], _ranges(alone, of.request)[0]


def _service(pricer: Pricer, request: PlanRequest, schedule: Schedule) -> Service | None:
    load = service_load(request, pricer.scenario)
    if load is None:
        return None
    from specmargin.simulator.service import service

    return service(pricer, load, schedule)


def service_load(request: PlanRequest, scenario: Scenario) -> ServiceLoad | None:
    """None: the request names batch sizes instead."""
    if request.isl is None or request.osl is None or (request.concurrency is None and request.qps is None):
        return None
    from specmargin.simulator.service import ServiceLoad

    engine = find_engine(scenario.engine)
    return ServiceLoad(
        prompt_tokens=request.isl,
        output_tokens=request.osl,
        users=request.concurrency,
        requests_per_second=request.qps,
        range_ratio=request.range_ratio,
        prefix_hit=request.prefix_hit,
        kv_arrives=request.decode_only,
        max_num_batched_tokens=request.max_num_batched_tokens or engine.batched_tokens(scenario.device),
        max_num_seqs=engine.max_seqs(scenario.device),
        limits_per_rank=engine.limits_per_rank,
    )


def compare_prices(best: DrafterPlan, request: PlanRequest, prices: str) -> Comparison:
    """The same plan under other prices, with the recommended drafter."""
    plan = best.plan
    changes = {"prices": prices, "form": RooflineForm.PER_COMPONENT, "context": plan.scenario.context}
    others = scenarios_of(request.model_copy(update=changes))
    other = next(scenario for _, scenario in others if scenario.drafter == plan.scenario.drafter)
    if other.prices.name == plan.scenario.prices.name:
        raise ScenarioError(f"--compare {prices}: the plan uses {prices} prices already; name another source")
    batches = [row.batch for row in plan.rows]
    return compare_sources(plan.pricer, Pricer(other), batches, plan.setting)


def setting_of(request: PlanRequest, pricer: Pricer) -> Setting:
    """The depths to choose from."""
    device = pricer.scenario.device
    if request.ignore_graph_limit and device.vendor == "apple":
        raise ScenarioError(f"--ignore-graph-limit: there are no CUDA graphs on {device.title}; leave it out")
    setting = Setting.of(pricer.scenario, max_depth=request.depth)
    return setting.without_graph_limit() if request.ignore_graph_limit else setting


def _batches(pricer: Pricer, request: PlanRequest, setting: Setting, settled: Settled | None) -> list[int]:
    if settled is not None:
        return sorted({settled.no_spec.batch, settled.speculating.batch})
    if request.batch is not None:
        return list(request.batch)
    fits = max(pricer.no_spec_largest_batch, 1)
    if request.concurrency is not None:
        drafting = max(pricer.largest_batch(setting.max_depth), 1)
        return sorted({min(request.concurrency, drafting), min(request.concurrency, fits)})
    usual = find_engine(pricer.scenario.engine).usual_batch or fits
    return [batch for batch in DEFAULT_BATCHES if batch <= min(fits, usual)] or [1]


def engine_config(
    choice: DraftChoice, pricer: Pricer, batches: list[int], request: PlanRequest, setting: Setting
) -> EngineConfig:
    """The schedule for these batches, in the engine's format, from the depths that the setting allows."""
    grid, stop = pricer.grid(batches, setting.max_depth), pricer.scenario.early_stop
    fits = pricer.largest_batch(setting.held_depth(grid))
    last = request.max_batch or max(MAX_NUM_SEQS, min(fits, HORIZON), *batches)
    form = find_engine(pricer.scenario.engine)
    schedule = ScheduleRequest(
        table=setting.depth_table(pricer, max_batch=last),
        batches=tuple(batch for batch in batches if batch <= fits) or tuple(batches),
        drafter_kind=choice.kind,
        drafter_model=choice.model,
        layout=pricer.scenario.layout,
        min_gain=request.min_gain,
        hurdle_by_depth=_hurdles(grid),
        p_min=None if stop is None else stop.p_min,
        drafted_by_depth=() if stop is None else stop.mean_drafted_by_depth(setting.max_depth),
        release=find_release(form, request.engine_version),
        unsupported=_unsupported(choice, pricer.scenario),
    )
    config = form.write(schedule)
    configured = config.schedule.max_depth
    if request.max_batch is not None or configured == 0:
        return config
    reach = min(pricer.largest_batch(configured), HORIZON)
    if reach <= last:
        return config
    # Shallower drafts were configured than are best somewhere, so that more sequences fit.
    return form.write(replace(schedule, table=setting.depth_table(pricer, max_batch=reach)))


def _unsupported(choice: DraftChoice, scenario: Scenario) -> str:
    """Why the engine cannot run the drafter; "" where it can."""
    if choice.drafter.hit_rate is not None:
        return "no supported engine overlaps drafting with verification"
    form = find_engine(scenario.engine)
    refusal = form.cannot_draft(choice.kind, scenario.architecture.layer_counts.recurrent_layers > 0)
    if refusal:
        return refusal
    refusal = form.stage_drafts(scenario.layout, choice.kind)
    if scenario.layout.stages > 1 and refusal:
        return refusal
    runs, target = choice.drafter.runs, scenario.architecture
    if isinstance(runs, Architecture) and same_tokenizer(target, runs) is False:
        translated = "; vLLM's use_heterogeneous_vocab is not priced" if scenario.engine == "vllm" else ""
        return f"{choice.drafter.name} has another tokenizer than {target.name}{translated}"
    return ""


def _hurdles(grid: Grid) -> tuple[float, ...]:
    """At the first batch: the survival at which verifying token 1, 2, … pays."""
    added = np.diff(grid.verify_seconds[0]) / grid.batches[0]
    return tuple((added * grid.goodput[0, 1:]).tolist())
