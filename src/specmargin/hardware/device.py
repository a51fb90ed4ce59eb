"""Rates and memory of a device, and of the links between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmargin.architecture.precision import Arithmetic
from specmargin.errors import HardwareError
from specmargin.files import origin, read_json, read_toml
from specmargin.hardware.generations import UNIFIED, VENDORS, capability_of
from specmargin.hardware.processor import Processor
from specmargin.sources import Source, datasheet

DEFAULT_UTILIZATION = 0.9
_SMALL_MAC_BYTES = 36e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Links between GPUs: inside a node, and between nodes where there is a network card."""

    link_bytes_per_second: float
    link_latency_seconds: float
    network_bytes_per_second: float | None
    gpus_per_node: int
    network_latency_seconds: float | None = None  # of a small collective between nodes; None: as inside a node
    network: Source | None = None  # of a network that was named; None: the datasheet's
    collectives: str | None = None  # entry of the catalog's fabrics with measured ones, where no kernel table has them

    def latency_seconds(self, ranks: int) -> float:
        """Of a small collective over `ranks` GPUs."""
        within = ranks <= self.gpus_per_node or self.network_latency_seconds is None
        return self.link_latency_seconds if within else float(self.network_latency_seconds or 0.0)

    def bytes_per_second(self, ranks: int) -> float:
        """Bandwidth of a collective over `ranks` GPUs: the slowest link it uses."""
        if ranks <= self.gpus_per_node:
            return self.link_bytes_per_second
        if self.network_bytes_per_second is None:
            raise HardwareError(
                f"{ranks} GPUs need a network between nodes of {self.gpus_per_node}, and the device has none; "
                "name one with --fabric"
            )
        return min(self.link_bytes_per_second, self.network_bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    title: str
    memory_bytes: float
    bandwidth_bytes_per_second: float
    operations_per_second: dict[Arithmetic, float]
    fabric: Fabric
    source: Source
    architecture: str | None = None  # generation as compilers name it, by which engines choose kernels: sm_90, gfx1151
    multiprocessors: int | None = None  # SMs, compute units or Xe cores
    processor: Processor | None = None  # where the device is one, without a GPU

    @property
    def is_unified(self) -> bool:
        """Whether its memory is main memory."""
        return (self.architecture or "").startswith(UNIFIED)

    @property
    def vendor(self) -> str | None:
        """By its generation, else by the first word of its title; None: unknown."""
        by_generation = (name for start, name in VENDORS.items() if (self.architecture or "").startswith(start))
        first = self.title.partition(" ")[0].lower()
        return next(by_generation, first if first in VENDORS.values() else None)

    @property
    def compute_capability(self) -> int | None:
        """Of an NVIDIA GPU whose generation is known, times ten: 89 for sm_89."""
        return capability_of(self.architecture or "")

    def usable_bytes(self, utilization: float) -> float:
        """Memory that an engine may use.

        macOS wires at most three quarters of the memory for the GPU by default, two thirds up to 36 GB
        (`recommendedMaxWorkingSetSize`). A larger `utilization` than the default says that iogpu.wired_limit_mb is
        raised.
        """
        if self.vendor == "apple" and utilization <= DEFAULT_UTILIZATION:
            utilization = min(utilization, 2.0 / 3.0 if self.memory_bytes <= _SMALL_MAC_BYTES else 0.75)
        return self.memory_bytes * utilization

    def rate(self, arithmetic: Arithmetic) -> float:
        """Operations per second in one format.

        A format that the matrix units lack is multiplied in bf16 after conversion, as engines do (weight-only
        kernels); fp32 counts as TF32, half of bf16.
        """
        if arithmetic in self.operations_per_second:
            return self.operations_per_second[arithmetic]
        bf16 = self.operations_per_second[Arithmetic.BF16]
        return bf16 / 2 if arithmetic is Arithmetic.FP32 else bf16


def read_device(name: str, table: dict[str, Any], origin: str) -> Device:
    """Validate one table of a device file. Unknown fields are refused: a typo must not become a default."""
    from specmargin.hardware.schema import DeviceTable  # noqa: PLC0415 (pydantic is slow to import)
    from specmargin.schema import first_complaint  # noqa: PLC0415

    try:
        checked = DeviceTable.model_validate(table)
    except ValueError as error:
        raise HardwareError(f"{origin}: {first_complaint(error)}") from None
    return device_of(name, checked.model_dump())


def device_of(name: str, table: Mapping[str, Any]) -> Device:
    """From a table that is known to be valid."""
    return Device(
        name=name,
        title=table["title"],
        memory_bytes=table["memory_bytes"],
        bandwidth_bytes_per_second=table["bandwidth_bytes_per_second"],
        operations_per_second={Arithmetic(key): rate for key, rate in table["operations_per_second"].items()},
        fabric=Fabric(
            link_bytes_per_second=table["link_bytes_per_second"],
            link_latency_seconds=table["link_latency_seconds"],
            network_bytes_per_second=table.get("network_bytes_per_second"),
            gpus_per_node=table["gpus_per_node"],
            collectives=table.get("fabric"),
        ),
        source=datasheet(table["source"]),
        architecture=table.get("architecture"),
        multiprocessors=table.get("multiprocessors"),
    )


def load_device(path: Path) -> Device:
    """A user-defined device: a TOML or JSON file with one table, or with the fields at top level."""
    values = read_json(path, HardwareError) if path.suffix == ".json" else read_toml(path, HardwareError)
    if not isinstance(values, dict):
        raise HardwareError(f"{origin(path)}: a device is a table of names and values, not a {type(values).__name__}")
    tables = {key: value for key, value in values.items() if isinstance(value, dict) and "title" in value}
    if tables and len(values) == 1:
        name, table = next(iter(tables.items()))
        return read_device(name, table, f"{path}: [{name}]")
    if len(tables) > 1:
        raise HardwareError(f"{path}: holds {len(tables)} devices ({', '.join(tables)}); keep one")
    return read_device(path.stem, values, origin(path))
