"""A processor with its main memory: where experts are computed that a GPU does not hold, or the whole model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from specmargin.sources import Source, datasheet

CHANNEL_BYTES = 8  # a memory channel is 64 bits wide


class Instructions(StrEnum):
    """What multiplies on a processor: the widest set that integer kernels use."""

    AVX2 = "avx2"
    AVX_VNNI = "avx-vnni"
    AVX512 = "avx512"
    AVX512_VNNI = "avx512-vnni"
    AMX = "amx"
    NEON_DOTPROD = "neon-dotprod"
    I8MM = "i8mm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    name: str
    title: str
    cores: int  # physical ones, of all sockets
    base_clock_hz: float
    boost_clock_hz: float
    instructions: Instructions
    memory_channels: int
    memory_transfers_per_second: float
    memory_bytes: float  # installed
    pcie_generation: int
    source: Source
    measured_bytes_per_second: float | None = None  # what a test such as STREAM reads on this machine

    @property
    def bandwidth_bytes_per_second(self) -> float:
        """Of main memory, as its channels and transfers give it."""
        return self.memory_channels * self.memory_transfers_per_second * CHANNEL_BYTES

    @property
    def clock_hz(self) -> float:
        """With all cores busy: vendors state only the two ends, and this lies between them."""
        return math.sqrt(self.base_clock_hz * self.boost_clock_hz)


def processor_of(name: str, table: Mapping[str, Any]) -> Processor:
    """From a table that is known to be valid."""
    return Processor(
        name=name,
        title=table["title"],
        cores=table["cores"],
        base_clock_hz=table["base_clock_hz"],
        boost_clock_hz=table["boost_clock_hz"],
        instructions=Instructions(table["instructions"]),
        memory_channels=table["memory_channels"],
        memory_transfers_per_second=table["memory_transfers_per_second"],
        memory_bytes=table["memory_bytes"],
        pcie_generation=table["pcie_generation"],
        source=datasheet(table["source"]),
        measured_bytes_per_second=table.get("measured_bytes_per_second"),
    )
