"""From a request to where the experts are: on the GPUs, or in the main memory of a processor."""

from __future__ import annotations

from dataclasses import replace

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.architecture.types import Architecture
from specmargin.catalog.processors import DEFAULT, find_processor
from specmargin.errors import OffloadError
from specmargin.formats.base import EngineFormat
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.hardware.link import host_link
from specmargin.hardware.offload import Offload, moe_layers_among
from specmargin.hardware.processor import Processor
from specmargin.modes import ExpertsOn
from specmargin.prices.hosting import HOSTING, Hosting
from specmargin.prices.memory import fewest_offloaded
from specmargin.sources import assumed

_GB = 1e9


def with_memory(device: Device, request: ScenarioRequest) -> Device:
    """A processor as the device, with the memory that was given; other options of a host are refused there."""
    if device.processor is None:
        return device
    for option in ("cpu", "pcie", "n_cpu_moe"):
        if getattr(request, option) is not None:
            raise OffloadError(f"{_flag(option)}: {device.title} is the only processor here; leave it out")
    if request.host_memory is None:
        return device
    memory = request.host_memory * _GB
    return replace(device, memory_bytes=memory, processor=replace(device.processor, memory_bytes=memory))


def offload_of(
    request: ScenarioRequest,
    engine: EngineFormat,
    device: Device,
    target: Architecture,
    layout: Layout,
    other_bytes: float,
) -> Offload | None:
    """What the request keeps in main memory; None where all experts are on the GPUs.

    `other_bytes`: on one GPU beside the target's weights (the drafter, one sequence).
    """
    asked = request.experts_on is ExpertsOn.CPU or bool(request.n_cpu_moe)
    if request.experts_on is ExpertsOn.CPU and request.n_cpu_moe is not None:
        raise OffloadError(
            "--experts-on cpu keeps all experts in main memory, --n-cpu-moe those of some layers; give one"
        )
    if request.gpu_experts and request.experts_on is not ExpertsOn.CPU:
        raise OffloadError(f"--gpu-experts {request.gpu_experts}: only with --experts-on cpu")
    if device.processor is not None:
        return None
    named = request.cpu is not None or request.host_memory is not None
    if not asked and (not named or request.n_cpu_moe == 0):
        return None
    hosting = HOSTING.get(engine.name)
    if not asked and (hosting is None or not hosting.by_layer or not target.is_moe or device.is_unified):
        return None
    hosting = _checked(request, engine, hosting, device, target, layout)
    first = _first_layers(request, device, target, layout, other_bytes) if not asked else request.n_cpu_moe
    first = target.layers if first is None else min(first, target.layers)
    layers = moe_layers_among(target, first)
    if not layers:
        return None
    processor = _processor(request)
    return Offload(
        processor=processor,
        link=host_link(device, processor, request.pcie),
        layers=layers,
        first_layers=first,
        gpu_experts=request.gpu_experts,
        chosen=not asked,
    )


def _first_layers(
    request: ScenarioRequest, device: Device, target: Architecture, layout: Layout, other_bytes: float
) -> int | None:
    """The fewest that fit; None: all of them, which is not enough either."""
    usable = device.usable_bytes(request.memory_utilization) * layout.memories - other_bytes
    return fewest_offloaded(target, layout, usable)


def _processor(request: ScenarioRequest) -> Processor:
    processor = find_processor(request.cpu or DEFAULT)
    if request.cpu is None:
        detail = f"no --cpu was given: {processor.title}, {processor.source.detail}"
        processor = replace(processor, source=assumed(detail))
    if request.host_memory is not None:
        processor = replace(processor, memory_bytes=request.host_memory * _GB)
    return processor


def _checked(
    request: ScenarioRequest,
    engine: EngineFormat,
    hosting: Hosting | None,
    device: Device,
    target: Architecture,
    layout: Layout,
) -> Hosting:
    """An error where the engine, the GPU or the model cannot do it."""
    asked = "--experts-on cpu" if request.n_cpu_moe is None else f"--n-cpu-moe {request.n_cpu_moe}"
    if not target.is_moe:
        raise OffloadError(f"{asked}: {target.name} has no experts; leave it out")
    if device.is_unified:
        raise OffloadError(f"{asked}: the memory of {device.title} is main memory already; leave it out")
    if hosting is None:
        runs = " or ".join(f"--engine {name}" for name in HOSTING)
        raise OffloadError(f"{asked}: {engine.title} does not compute experts on the processor; use {runs}")
    if request.n_cpu_moe is not None and not hosting.by_layer:
        raise OffloadError(
            f"{asked}: {engine.title} keeps the experts of all layers in main memory; use --experts-on cpu, with "
            "--gpu-experts N for the most popular of each layer"
        )
    if request.gpu_experts and not hosting.keeps_popular:
        raise OffloadError(
            f"--gpu-experts: {engine.title} keeps whole layers on the GPU, not popular experts; use --n-cpu-moe N"
        )
    if layout.stages > 1 or layout.expert_ranks > 1 or layout.sequence_ranks > 1:
        raise OffloadError(f"{asked}: only with tensor-parallel GPUs; leave out --pp, --dp and --ep")
    return hosting


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
