"""List the bundled devices: datasheet memory, bandwidth, rates and links.

Your own device is a TOML file: specmargin gpus h20 --template -o my-gpu.toml, edit it, then --gpu my-gpu.toml
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Table, Verbatim, dim, left, right
from specmargin.answers.outputs_schema import FILE, Outputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import verb
from specmargin.architecture.precision import Arithmetic
from specmargin.errors import InputError, matching
from specmargin.files import check_table, write_table, write_text

if TYPE_CHECKING:
    from specmargin.hardware.device import Device

_TEMPLATE = "rtx-4090"  # the figures of --template where no device is named
_SHOWN = (Arithmetic.BF16, Arithmetic.FP8, Arithmetic.FP4)


class GpusRequest(Request):
    search: Annotated[str, Field(description="Only names that contain this."), Shown(argument=True)] = ""
    template: Annotated[
        bool, Field(description="Print a documented device file, with the figures of SEARCH if given.")
    ] = False


class GpusOutputs(Outputs):
    output: Annotated[
        Path | None,
        Field(description="Write the table to FILE.csv or FILE.parquet, with --template the device file to FILE.toml."),
        FILE.named("--output", "-o"),
    ] = None


@verb(GpusRequest, outputs=GpusOutputs)
def gpus(request: GpusRequest, outputs: GpusOutputs | None = None) -> GpusAnswer | TemplateAnswer:
    from specmargin.catalog.lookup import bundled_device, device_names, device_template

    outputs = outputs or GpusOutputs()
    if request.template:
        if outputs.as_json:
            raise InputError("--json: a device file is TOML; leave out --json or --template")
        if outputs.output is not None and outputs.output.suffix != ".toml":
            raise InputError(f"{outputs.output}: a device file must end in .toml")
        return TemplateAnswer(request=request, text=device_template(request.search or _TEMPLATE))
    if outputs.output is not None:
        check_table(outputs.output, force=outputs.force)
    return GpusAnswer(
        request=request,
        devices=tuple(bundled_device(name) for name in matching("GPU", request.search, device_names())),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GpusAnswer(Answer[GpusRequest]):
    devices: tuple[Device, ...]

    schema: ClassVar[str] = "specmargin.gpus/1"

    @property
    def verdict(self) -> str:
        return f"{len(self.devices)} bundled devices"

    def table(self) -> list[dict[str, Any]]:
        return [_row(device) for device in self.devices]

    def values(self) -> dict[str, Any]:
        return {"gpus": self.table()}

    def blocks(self) -> Iterator[Block]:
        rates = [str(arithmetic) for arithmetic in _SHOWN]
        yield Table(
            columns=[*left("name", "device"), *right("GB", "TB/s", *rates, "link")],
            rows=[_cells(device) for device in self.devices],
        )
        yield dim("datasheet peaks; bf16, fp8, fp4: dense TFLOP/s; link: GB/s per direction within a node")

    def written(self, outputs: Outputs) -> Self:
        if isinstance(outputs, GpusOutputs) and outputs.output is not None:
            write_table(outputs.output, self.table(), force=outputs.force)
        return self


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TemplateAnswer(Answer[GpusRequest]):
    """A device file to edit."""

    text: str
    path: Path | None = None  # where it was written

    schema: ClassVar[str] = "specmargin.gpu-template/1"

    @property
    def verdict(self) -> str:
        return self.text

    def values(self) -> dict[str, Any]:
        return {"text": self.text}

    def blocks(self) -> Iterator[Block]:
        if self.path is None:
            yield Verbatim(self.text.rstrip("\n"))

    def written(self, outputs: Outputs) -> Self:
        if not isinstance(outputs, GpusOutputs) or outputs.output is None:
            return self
        write_text(outputs.output, self.text, force=outputs.force)
        return replace(self, path=outputs.output)


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
