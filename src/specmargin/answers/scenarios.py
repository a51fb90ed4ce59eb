"""From a request to its scenario: the only module that uses every field of `ScenarioRequest`."""

from __future__ import annotations

from dataclasses import replace

from specmargin.acceptance.early_stop import EarlyStop
from specmargin.acceptance.survival import Survival
from specmargin.answers.layouts import layout_of
from specmargin.answers.offloads import offload_of, with_memory
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.architecture.precision import MXFP4, PRECISIONS, Precision, precision_named
from specmargin.architecture.types import Architecture
from specmargin.catalog.drafters import (
    DraftChoice,
    available_drafters,
    default_kind,
    find_acceptance,
    find_drafter,
    find_early_stop,
)
from specmargin.catalog.engine_releases import Run
from specmargin.catalog.engine_support import check_engine, check_weights, default_engine, fp8_warning
from specmargin.catalog.engine_times import NO_ENGINE_TIME, find_engine_time, named_build, named_release
from specmargin.catalog.lookup import find_device, find_model
from specmargin.catalog.machines import over_nodes
from specmargin.catalog.prices import find_prices
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import CatalogError, ScenarioError
from specmargin.files import existing
from specmargin.formats import find_engine
from specmargin.formats.base import EngineFormat
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.modes import ExpertsOn
from specmargin.prices.drafters import drafter_weight_bytes
from specmargin.prices.hosted import hosted_prices
from specmargin.prices.measured import MeasuredPrices
from specmargin.prices.memory import sequence_bytes
from specmargin.prices.model import EngineTime, PriceModel
from specmargin.sources import Source, SourceKind

ALL_DRAFTERS = "all"
ENGINE_TIMES = {
    "step_seconds": ("step_ms", 1e-3),
    "sequence_seconds": ("sequence_ms", 1e-3),
    "position_seconds": ("position_us", 1e-6),
    "layer_seconds": ("layer_us", 1e-6),
    "verify_step_seconds": ("verify_ms", 1e-3),
    "verify_sequence_seconds": ("verify_sequence_ms", 1e-3),
    "verify_token_seconds": ("verify_token_us", 1e-6),
    "draft_pass_seconds": ("draft_pass_ms", 1e-3),
    "off_step_seconds": ("off_ms", 1e-3),
}


def scenarios_of(request: ScenarioRequest) -> list[tuple[DraftChoice, Scenario]]:
    """One scenario, or one per drafter of a list or of `--drafter all`."""
    engine = engine_of(request)
    request = _with_all_memory(request, engine)
    target = _target(request, engine)
    choices = _drafters(request, target, engine)
    device = with_memory(over_nodes(find_device(request.gpu), request.gpus, request.nodes, request.fabric), request)
    layout = layout_of(request, engine, target)
    fp8_warning(engine.name, engine.title, device, target)
    release = named_release(request.engine_time, engine.name)
    build = named_build(request.engine_time, engine.name)
    prices = find_prices(
        request.prices, device, engine.name, request.form, release=release, build=build, backend=request.backend
    )
    steps = prices if isinstance(prices, MeasuredPrices) else None
    if steps is not None:
        steps.check(target, layout)
    kv = precision_named(request.kv_cache) if request.kv_cache else None
    other_bytes = [_other_bytes(request, target, choice, layout, kv) for choice in choices]
    offload = offload_of(request, engine, device, target, layout, max(other_bytes))
    if offload is not None:
        prices = hosted_prices(prices, offload, engine.name)
    graph_limit = engine.graph_limit(device) if steps is None else steps.engine_time.graph_limit
    engine_times = [
        replace(
            _engine_time(request, prices, engine.name, _run(target, device, kv, choice)),
            graph_limit=graph_limit if request.graph_limit is None else request.graph_limit,
        )
        for choice in choices
    ]
    survival_by_choice = [find_acceptance(request.acceptance, choice, target) for choice in choices]
    return [
        (
            choice,
            Scenario(
                architecture=target,
                device=device,
                prices=prices,
                routing=find_routing(request.routing, target),
                placement=request.placement,
                offload=offload,
                drafter=choice.drafter,
                survival=survival,
                early_stop=early_stop_of(request, choice, survival),
                layout=layout,
                context=float(request.context),
                engine_time=engine_time,
                draft_time=None if steps is None else steps.draft_time,
                kv=kv,
                memory_utilization=request.memory_utilization,
                engine=engine.name,
            ),
        )
        for choice, survival, engine_time in zip(choices, survival_by_choice, engine_times, strict=True)
    ]


def _other_bytes(
    request: ScenarioRequest, target: Architecture, choice: DraftChoice, layout: Layout, kv: Precision | None
) -> float:
    """On one GPU beside the target's weights: the drafter, and one sequence."""
    own = drafter_weight_bytes(choice.drafter, layout)
    return own + float(sequence_bytes(target.groups, request.context, layout=layout, kv=kv or target.kv_precision))


def _stated_weights(request: ScenarioRequest) -> tuple[str, ...]:
    """The precisions that the options or the model's id state."""
    if request.weights is not None:
        return (precision_named(request.weights).name,)
    return tuple(find_model(request.model).weight_precisions) if "/" in request.model else ()


def engine_of(request: ScenarioRequest) -> EngineFormat:
    """The engine that was named, or the default of the GPU; an error where it does not run there."""
    device = find_device(request.gpu)
    weights = _stated_weights(request)
    hosted = request.experts_on is ExpertsOn.CPU or bool(request.n_cpu_moe)
    engine = find_engine(request.engine or default_engine(device, weights, hosted=hosted or request.cpu is not None))
    check_engine(engine.name, engine.title, device)
    if request.backend is not None and engine.name != "llamacpp":
        raise ScenarioError(f"--backend is an option of llama.cpp, not of {engine.title}: add --engine llamacpp")
    if request.backend is not None and request.prices is not None:
        raise ScenarioError(
            f"--backend names kernels of llama.cpp, which --prices {request.prices} does not price; "
            "leave one of them out"
        )
    for each in weights:
        check_weights(engine.name, engine.title, device, precision_named(each))
    if request.graph_limit is not None and device.vendor == "apple":
        raise ScenarioError(f"--graph-limit: there are no CUDA graphs on {device.title}; leave it out")
    return engine


def scenario_of(request: ScenarioRequest) -> tuple[DraftChoice, Scenario]:
    """The scenario of a request that names one drafter."""
    if len(drafter_specs(request.drafter)) > 1 or request.drafter == ALL_DRAFTERS:
        raise CatalogError(f"--drafter {request.drafter}: name one drafter here; `plan` takes several")
    return scenarios_of(request)[0]


def drafter_specs(drafter: str | None) -> list[str]:
    """The drafters of a list such as `mtp,eagle`; a drafter whose detail is a path is taken whole."""
    detail = "" if drafter is None else drafter.partition(":")[2]
    if drafter is None or (detail and existing(detail) is not None):
        return [] if drafter is None else [drafter]
    specs = [part.strip() for part in drafter.split(",")]
    if len(specs) > 1 and (ALL_DRAFTERS in specs or "" in specs):
        raise CatalogError(f"--drafter {drafter}: a list names drafters, such as mtp,eagle; `all` is given alone")
    return list(dict.fromkeys(specs))


def pricer_of(request: ScenarioRequest) -> Pricer:
    """Its prices; an error where the model does not fit in memory."""
    pricer = Pricer(scenario_of(request)[1])
    pricer.check_memory()
    return pricer


def early_stop_of(request: ScenarioRequest, choice: DraftChoice, survival: Survival) -> EarlyStop | None:
    """Only llama.cpp stops drafts by confidence, and look-up drafts have none."""
    if request.draft_p_min is None:
        return None
    engine = engine_of(request)
    if not engine.stops_early:
        raise ScenarioError(f"--draft-p-min is an option of llama.cpp, not of {engine.title}: add --engine llamacpp")
    if choice.kind == "ngram":
        if request.drafter != choice.kind:  # one of several
            return None
        raise ScenarioError("--draft-p-min: n-gram drafts have no confidence; leave it out")
    return find_early_stop(request.draft_p_min, request.acceptance, survival)


def _target(request: ScenarioRequest, engine: EngineFormat) -> Architecture:
    """The model; llama.cpp's file of a model whose experts are published in MXFP4 has the rest in q8_0."""
    weights = precision_named(request.weights) if request.weights else None
    target = find_model(request.model, weights=weights)
    if engine.name == "llamacpp" and MXFP4.name in target.weight_precisions and weights in (None, MXFP4):
        return find_model(request.model, weights=PRECISIONS["mxfp4_moe"])
    return target


def _with_all_memory(request: ScenarioRequest, engine: EngineFormat) -> ScenarioRequest:
    """llama.cpp has no fraction of its own: it allocates what the model and the cache need."""
    if engine.name != "llamacpp" or "memory_utilization" in request.model_fields_set:
        return request
    return request.model_copy(update={"memory_utilization": 1.0})


def _drafters(request: ScenarioRequest, target: Architecture, engine: EngineFormat) -> list[DraftChoice]:
    """In the format that was named, else in that of the checkpoint; llama.cpp's are files of the target's type."""
    weights = precision_named(request.draft_weights) if request.draft_weights else None
    own = precision_named(request.weights) if request.weights and engine.name == "llamacpp" else None
    vocabulary = request.draft_vocabulary
    if request.drafter == ALL_DRAFTERS:
        return available_drafters(target, weights=weights, vocabulary=vocabulary, default=own)
    specs = drafter_specs(request.drafter) or [default_kind(target)]
    return [find_drafter(spec, target, weights=weights, vocabulary=vocabulary, default=own) for spec in specs]


def _run(target: Architecture, device: Device, kv: Precision | None, choice: DraftChoice) -> Run:
    return Run(target=target, device=device, kv=kv or target.kv_precision, drafter=choice.kind)


def _engine_time(request: ScenarioRequest, prices: PriceModel, engine: str, run: Run) -> EngineTime:
    """Engine time of the measurement or of the catalog, overridden by the times that the user gave."""
    if isinstance(prices, MeasuredPrices) and request.engine_time is None:
        base = prices.engine_time
    else:
        base = find_engine_time(request.engine_time, engine=engine, prices=prices.name, run=run)
    given = {name: (getattr(request, field), scale) for name, (field, scale) in ENGINE_TIMES.items()}
    overrides = {name: value * scale for name, (value, scale) in given.items() if value is not None}
    if not overrides:
        return base
    others = "" if base is NO_ENGINE_TIME else f"; the rest {base.source}"
    source = Source(kind=SourceKind.MEASURED, detail=f"given by the user{others}")
    return replace(base, source=source, **overrides)
