"""List the bundled devices and yours: datasheet memory, bandwidth, rates and links; then processors.

Your own device is a TOML file: specmargin gpus h20 --template -o my-gpu.toml, edit it, then --gpu my-gpu.toml. As
~/.config/specmargin/gpus/my-gpu.toml it is found by its name, --gpu my-gpu. To check it: specmargin models --check FILE

Processors are hosts of experts in main memory (--cpu NAME, with --n-cpu-moe or --experts-on cpu), or the device itself
(--gpu NAME: without a GPU). Yours likewise: specmargin gpus ryzen-9950x --template -o my-cpu.toml
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.blocks import Block, Table, dim, left, owned, right, warned
from specmargin.answers.outputs_schema import ListOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.text_file import ListAnswer, TextAnswer
from specmargin.answers.verb import verb
from specmargin.architecture.precision import Arithmetic
from specmargin.errors import matching, usable

if TYPE_CHECKING:
    from specmargin.hardware.device import Device
    from specmargin.hardware.processor import Processor

_SHOWN = (Arithmetic.BF16, Arithmetic.FP8, Arithmetic.FP4)


class GpusRequest(Request):
    search: Annotated[str, Field(description="Only names that contain this."), Shown(argument=True)] = ""
    template: Annotated[
        bool, Field(description="Print a documented device file, with the figures of SEARCH if given.")
    ] = False


@verb(GpusRequest, outputs=ListOutputs)
def gpus(request: GpusRequest, outputs: ListOutputs | None = None) -> GpusAnswer | TextAnswer[GpusRequest]:
    from specmargin.catalog.lookup import device_names, named_device
    from specmargin.catalog.processors import find_processor, processor_names

    outputs = outputs or ListOutputs()
    if request.template:
        outputs.check_text(".toml")
        return TextAnswer(request=request, text=_template(request.search))
    outputs.check_list()
    names = matching("GPU", request.search, (*device_names(), *processor_names()))
    devices, faults = usable([name for name in names if name in device_names()], named_device)
    processors, others = usable([name for name in names if name in processor_names()], find_processor)
    return GpusAnswer(
        request=request, devices=tuple(devices), processors=tuple(processors), warnings=(*faults, *others)
    )


def _template(search: str) -> str:
    from specmargin.catalog.entries import template
    from specmargin.catalog.lookup import bundled_device_name
    from specmargin.catalog.processors import named_processor

    processor = named_processor(search) if search else None
    if processor is not None:
        return template("processor", processor.name)
    return template("gpu", bundled_device_name(search) if search else "")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GpusAnswer(ListAnswer[GpusRequest]):
    devices: tuple[Device, ...]
    processors: tuple[Processor, ...] = ()
    warnings: tuple[str, ...] = ()  # files of the user's that could not be read

    schema: ClassVar[str] = "specmargin.gpus/1"

    @property
    def verdict(self) -> str:
        return f"{len(self.devices)} devices, {len(self.processors)} processors"

    def table(self) -> list[dict[str, Any]]:
        return [_row(device) for device in self.devices]

    def values(self) -> dict[str, Any]:
        processors = [_processor_row(processor) for processor in self.processors]
        return {"gpus": self.table(), "processors": processors, "warnings": list(self.warnings)}

    def blocks(self) -> Iterator[Block]:
        if self.devices:
            rates = [str(arithmetic) for arithmetic in _SHOWN]
            yield Table(
                columns=[*left("name", "device"), *right("GB", "TB/s", *rates, "link")],
                rows=[_cells(device) for device in self.devices],
            )
            yield dim("datasheet peaks; bf16, fp8, fp4: dense TFLOP/s; link: GB/s per direction within a node")
        if self.processors:
            yield Table(
                columns=[*left("name", "processor"), *right("cores", "instructions", "GB", "GB/s", "PCIe")],
                rows=[_processor_cells(processor) for processor in self.processors],
            )
            yield dim("--cpu NAME, or --gpu NAME without a GPU; GB: assumed (--host-memory); GB/s: all channels")
        yield from owned({device.name: device.source for device in self.devices})
        yield from owned({processor.name: processor.source for processor in self.processors})
        yield from warned(self.warnings)


def _cells(device: Device) -> list[str]:
    rates = [device.operations_per_second.get(arithmetic) for arithmetic in _SHOWN]
    return [
        device.name,
        device.title.removeprefix("NVIDIA "),
        f"{device.memory_bytes / 1e9:.0f}",
        f"{device.bandwidth_bytes_per_second / 1e12:.2f}",
        *("–" if rate is None else f"{rate / 1e12:,.0f}" for rate in rates),
        f"{device.fabric.link_bytes_per_second / 1e9:.0f}",
    ]


def _processor_cells(processor: Processor) -> list[str]:
    return [
        processor.name,
        processor.title.removeprefix("AMD ").removeprefix("Intel "),
        str(processor.cores),
        str(processor.instructions),
        f"{processor.memory_bytes / 1e9:.0f}",
        f"{processor.bandwidth_bytes_per_second / 1e9:.0f}",
        f"{processor.pcie_generation}.0",
    ]


def _processor_row(processor: Processor) -> dict[str, Any]:
    return {
        "name": processor.name,
        "title": processor.title,
        "cores": processor.cores,
        "instructions": str(processor.instructions),
        "memory_channels": processor.memory_channels,
        "bandwidth_bytes_per_second": processor.bandwidth_bytes_per_second,
        "memory_bytes": processor.memory_bytes,
        "pcie_generation": processor.pcie_generation,
        "source": str(processor.source),
    }


def _row(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "title": device.title,
        "memory_bytes": device.memory_bytes,
        "bandwidth_bytes_per_second": device.bandwidth_bytes_per_second,
        "operations_per_second": {str(key): rate for key, rate in device.operations_per_second.items()},
        "link_bytes_per_second": device.fabric.link_bytes_per_second,
        "gpus_per_node": device.fabric.gpus_per_node,
        "source": str(device.source),
    }
