"""`models --check`: a catalog file validated by its schema and by use, which prices a step with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from specmargin.acceptance.survival import parse_acceptance
from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import Architecture, DraftHead
from specmargin.catalog.drafters import user_drafter
from specmargin.catalog.engine_support import engines_of
from specmargin.catalog.engine_times import bundled_times, user_engine_time
from specmargin.catalog.entries import file_of
from specmargin.catalog.lookup import (
    bundled_device,
    bundled_devices,
    bundled_model,
    bundled_models,
    find_model,
    user_device,
    user_model,
)
from specmargin.catalog.machines import SERVER, bundled_fabrics, bundled_hosts
from specmargin.catalog.prices import find_prices
from specmargin.catalog.processors import as_device, bundled_processors, user_processor
from specmargin.catalog.routing_profiles import find_routing
from specmargin.catalog.user import FOLDERS, UserFile
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import CatalogError, InputError
from specmargin.hardware.device import Device
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import FREE, Drafter
from specmargin.prices.kernels.law import Curve
from specmargin.prices.kernels.links import fabric_book
from specmargin.prices.model import EngineTime
from specmargin.step import Step
from specmargin.verbs.models.answer import FileCheck

_GPU, _MODEL = "h200", "qwen3-8b"  # that a step is priced with, where the file is about something else
_DEPTH = 4
_SPARSE = 1.5  # times the rate of its generation: clocks differ less
_AS_STATED = 0.01  # of the parameters

Facts = tuple[dict[str, str], list[str]]  # what was read, and warnings


def checked(path: Path) -> Iterator[FileCheck]:
    """One file, or every entry of a catalog's folder."""
    path = path.expanduser()
    if not path.is_dir():
        yield _checked(path)
        return
    folders = [path / folder for folder in FOLDERS.values()] if path.name not in FOLDERS.values() else [path]
    files = sorted(file for folder in folders for file in folder.glob("*") if file.suffix in (".json", ".toml"))
    if not files:
        raise InputError(f"{path}: no entries; a catalog has the folders {', '.join(FOLDERS.values())}")
    yield from map(_checked, files)


def _checked(path: Path) -> FileCheck:
    kind = None
    try:
        file = file_of(path)
        kind = file.kind
        facts, warnings = _CHECKS[kind](file)
    except InputError as error:
        fault = str(error) if str(path) in str(error) else f"{path}: {error}"
        return FileCheck(path=str(path), kind=kind, fault=fault)
    return FileCheck(path=str(path), kind=kind, name=file.name, facts=facts, warnings=tuple(warnings))


# --- by kind ---


def _model(file: UserFile) -> Facts:
    entry, model = file.entry(), user_model(file)
    stated = entry.parameters
    if stated is not None and abs(model.parameters / stated - 1.0) > _AS_STATED:
        raise CatalogError(
            f"{file.path}: parameters states {stated:,.0f}, but the configuration gives {model.parameters:,}; correct "
            "one of them, or leave parameters out if the publisher counts otherwise"
        )
    pools = [f"{pool.experts_per_token} of {pool.experts}" for pool in model.pools[:1]]
    warnings = [f"family {model.family!r} is unknown, read by its fields: {each}" for each in model.assumptions]
    return {
        "hub_id": entry.hub_id,
        "family": model.family,
        "parameters": f"{model.parameters:,}" + ("" if stated is None else f" (stated: {stated:,.0f})"),
        "active": f"{model.active_parameters(count_embedding=False):,} per token, without the input embedding",
        "layers": f"{model.layers}",
        "experts": ", ".join(pools) or "none",
        "weights": ", ".join(model.weight_precisions),
        "context": "not stated" if model.max_context is None else f"{model.max_context:,}",
        "head": "MTP" if model.draft_head else "DSpark" if model.block_head else "none",
        "source": entry.source,
        "a step": _step(model, bundled_device(_GPU)),
    }, warnings + _replaced(file, bundled_models())


def _gpu(file: UserFile) -> Facts:
    device = user_device(file)
    rates = ", ".join(f"{name} {rate / 1e12:g}" for name, rate in device.operations_per_second.items())
    fabric = device.fabric
    network = fabric.network_bytes_per_second
    return {
        "title": device.title,
        "memory": f"{device.memory_bytes / 1e9:g} GB",
        "bandwidth": f"{device.bandwidth_bytes_per_second / 1e12:g} TB/s",
        "rates": f"{rates} TFLOP/s",
        "link": f"{fabric.link_bytes_per_second / 1e9:g} GB/s, {fabric.link_latency_seconds * 1e6:g} µs",
        "network": "none" if network is None else f"{network / 1e9:g} GB/s",
        "node": f"{fabric.gpus_per_node} GPUs",
        "generation": device.architecture or "not stated: kernels are not chosen by it",
        "engines": ", ".join(engines_of(device)),
        "source": device.source.detail,
        "a step": _step(bundled_model(_MODEL), device),
    }, [*_unusual(device), *_aliases(file), *_replaced(file, bundled_devices())]


def _processor(file: UserFile) -> Facts:
    processor = user_processor(file)
    measured = processor.measured_bytes_per_second
    read = "" if measured is None else f", {measured / 1e9:g} GB/s measured"
    return {
        "title": processor.title,
        "cores": f"{processor.cores}, {processor.instructions}",
        "memory": f"{processor.memory_bytes / 1e9:g} GB, {processor.bandwidth_bytes_per_second / 1e9:g} GB/s{read}",
        "source": processor.source.detail,
        "a step": _step(bundled_model(_MODEL), as_device(processor)),
    }, _replaced(file, tuple(bundled_processors()))


def _unusual(device: Device) -> Iterator[str]:
    """Rates that no bundled GPU has: beside the bandwidth, or per multiprocessor of its generation (sparse ones)."""
    others = [bundled_device(name) for name in bundled_devices()]
    own, known = _operations_per_byte(device), sorted(map(_operations_per_byte, others))
    if not known[0] <= own <= known[-1]:
        usual = f"bundled GPUs have {known[0]:.0f} to {known[-1]:.0f}"
        yield f"{own:.0f} bf16 operations per byte of bandwidth, where {usual}: check the units of both"
    peers = [each for each in others if each.architecture == device.architecture and each.multiprocessors]
    nearest = max(peers, key=_per_multiprocessor, default=device)
    if device.multiprocessors and _per_multiprocessor(device) > _SPARSE * _per_multiprocessor(nearest):
        ratio = _per_multiprocessor(device) / _per_multiprocessor(nearest)
        yield f"bf16 is {ratio:.1f} times that of {nearest.name} per multiprocessor: if it is a sparse rate, halve it"


def _operations_per_byte(device: Device) -> float:
    return device.rate(Arithmetic.BF16) / device.bandwidth_bytes_per_second


def _per_multiprocessor(device: Device) -> float:
    return device.rate(Arithmetic.BF16) / (device.multiprocessors or 1)


def _aliases(file: UserFile) -> list[str]:
    return ["aliases are read of bundled GPUs only: the file's name counts"] if file.values().get("aliases") else []


def _drafter(file: UserFile) -> Facts:
    entry, target = file.entry(), find_model(file.entry().target)
    choice = user_drafter(file, target)
    head, pricer = choice.drafter.runs, _pricer(target, bundled_device(_GPU), choice.drafter)
    if not isinstance(head, DraftHead):
        raise CatalogError(f"{file.path}: is not a head")
    depth = min(choice.drafter.max_depth or _DEPTH, _DEPTH)
    seconds = float(pricer.draft_seconds(1.0, depth, pricer.scenario.context))
    curve = ", ".join(f"{value:.3g}" for value in entry.survival or ())
    return {
        "kind": entry.drafter,
        "target": target.name,
        "checkpoint": entry.checkpoint or "none",
        "parameters": f"{head.parameters:,}",
        "block": "none: one pass per token" if head.block is None else f"{head.block} positions",
        "survival": curve or "none: that of its kind is borrowed",
        "source": entry.source,
        "drafting": f"{seconds * 1e3:.3g} ms for {depth} tokens at batch 1 on one {_GPU}",
    }, ["derived: the shape is shown as assumed"] if entry.derived else []


def _engine_time(file: UserFile) -> Facts:
    entry, time = file.entry(), user_engine_time(file)
    pricer = _pricer(bundled_model(_MODEL), bundled_device(_GPU), engine_time=time, engine=entry.engine)
    plain, drafted = _milliseconds(pricer, 1, 0), _milliseconds(pricer, 32, 4)
    given = {name: value for name, value in entry.model_dump().items() if name.endswith("_seconds") and value}
    return {
        "engine": entry.engine,
        "beside": entry.prices or "laws and tables",
        **{name: f"{value * 1e6:.4g} µs" for name, value in given.items()},
        "evidence": f"{time.source.kind}: {entry.source}",
        "a step": f"{plain:.3g} ms at batch 1, {drafted:.3g} ms at batch 32 and depth 4: {_MODEL} on one {_GPU}",
    }, _replaced(file, bundled_times())


def _fabric(file: UserFile) -> Facts:
    entry = file.entry()
    device = bundled_device(_GPU)
    if entry.network_bytes_per_second is not None:
        latency = f"{(entry.network_latency_seconds or 0.0) * 1e6:g} µs"
        facts = {"title": entry.title, "network": f"{entry.network_bytes_per_second / 1e9:g} GB/s per GPU, {latency}"}
        return facts, _replaced(file, tuple(bundled_fabrics()))
    link = entry.measured_link_bytes_per_second or device.fabric.link_bytes_per_second
    device = replace(device, fabric=replace(device.fabric, link_bytes_per_second=link))
    book = fabric_book(device, entry.model_dump(), file.shown)
    curves = {ranks: curve for (engine, _, _, ranks), curve in book.curves.items() if engine == "vllm"}
    return {
        "title": entry.title,
        **{f"{ranks} GPUs": _all_reduces(curve) for ranks, curve in curves.items()},
        "link": f"{link / 1e9:g} GB/s",
        "spread": f"{entry.spread:g}",
        "source": entry.source,
    }, _replaced(file, tuple(bundled_fabrics()))


def _all_reduces(curve: Curve) -> str:
    sizes = {"16 KB": 16e3, "1 MB": 1e6, "64 MB": 64e6}
    micros = {name: 1e6 * float(curve.seconds(np.asarray(size))) for name, size in sizes.items()}
    return ", ".join(f"{value:,.0f} µs for {name}" for name, value in micros.items())


def _host(file: UserFile) -> Facts:
    entry, names = file.entry(), tuple(bundled_hosts())
    if file.name not in names:
        raise CatalogError(f"{file.path}: plans use the host {SERVER!r} alone; name the file {SERVER}.toml")
    times = {name: value for name, value in entry.model_dump().items() if name.endswith("_seconds")}
    return {
        "title": entry.title,
        **{name: f"{value * 1e6:.4g} µs" for name, value in times.items()},
        "source": entry.source,
        "launches": entry.kernel_launch_source,
    }, _replaced(file, names)


_CHECKS: dict[str, Callable[[UserFile], Facts]] = {
    "model": _model,
    "gpu": _gpu,
    "drafter": _drafter,
    "engine-time": _engine_time,
    "fabric": _fabric,
    "host": _host,
    "processor": _processor,
}


# --- a step that uses the entry ---


def _replaced(file: UserFile, names: tuple[str, ...]) -> list[str]:
    said = f"{file.name} is the name of a bundled entry, which this file replaces in a catalog"
    return [said] if file.name in names else []


def _step(model: Architecture, device: Device) -> str:
    pricer = _pricer(model, device)
    prices = pricer.scenario.prices.name
    where = f"{model.name} on one {device.name}, {prices} prices, kernels alone"
    return f"{_milliseconds(pricer, 1, 0):.3g} ms at batch 1 ({where})"


def _milliseconds(pricer: Pricer, batch: int, depth: int) -> float:
    step = Step.uniform(batch=batch, depth=depth, context=pricer.scenario.context)
    return 1e3 * float(pricer.verify(step).total_seconds)


def _pricer(
    model: Architecture,
    device: Device,
    drafter: Drafter = FREE,
    *,
    engine_time: EngineTime | None = None,
    engine: str | None = None,
) -> Pricer:
    engine = engine or engines_of(device)[0]
    scenario = Scenario(
        architecture=model,
        device=device,
        prices=find_prices(None, device, engine, RooflineForm.PER_COMPONENT),
        routing=find_routing(None, model),
        drafter=drafter,
        survival=parse_acceptance("0.7"),
        context=float(min(1024, model.max_context or 1024)),
        engine=engine,
    )
    return Pricer(scenario if engine_time is None else replace(scenario, engine_time=engine_time))
