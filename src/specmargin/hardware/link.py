"""The link from main memory to a GPU: PCIe by generation and lanes, as large copies measure it."""

from __future__ import annotations

import re

from specmargin.errors import HardwareError
from specmargin.hardware.device import Device
from specmargin.hardware.offload import HostLink
from specmargin.hardware.processor import Processor
from specmargin.sources import Source, SourceKind, assumed

#: GB/s of 16 lanes, host to device, from pinned memory.
_MEASURED = {3: 12.0, 4: 25.0, 5: 56.3}
_SOURCES = {
    3: "12 GB/s over PCIe 3.0 x16 (ZaidQureshi/bam issue 54, V100)",
    4: "25 GB/s over PCIe 4.0 x16 (ZaidQureshi/bam issue 54, A100; 25.6 to 26.2 through the host between RTX 4090s, "
    "tinygrad/open-gpu-kernel-modules issue 6)",
    5: "56.3 GB/s over PCIe 5.0 x16 (nvbandwidth, RTX 5090: tinygrad/open-gpu-kernel-modules issue 29)",
}
_LANES = 16
_SPREAD = 0.3  # unpinned memory, other boards
_LATENCY_SECONDS = 15e-6  # of a small copy with the wait for it
#: The PCIe generation of a GPU, by how its generation's name begins; the longest counts.
_GENERATIONS = {
    "sm_6": 3,
    "sm_7": 3,
    "sm_8": 4,
    "sm_9": 5,
    "sm_10": 5,
    "sm_12": 5,
    "gfx9": 4,
    "gfx942": 5,
    "gfx950": 5,
    "gfx11": 4,
    "gfx12": 5,
    "bmg": 5,
}
_NEWEST = 5


def host_link(device: Device, processor: Processor, given: str | None) -> HostLink:
    """`given`: generation and lanes, such as 4x16."""
    generation, lanes = pcie_lanes(given) if given else (_generation(device, processor), _LANES)
    rate = _MEASURED[generation] * 1e9 * lanes / _LANES
    detail = f"{_SOURCES[generation]}, for {lanes} lanes" if lanes != _LANES else _SOURCES[generation]
    kind = SourceKind.PUBLISHED
    source = Source(kind=kind, detail=detail, spread=_SPREAD)
    if given is None and device.architecture is None:
        source = assumed(f"PCIe {generation}.0 x16: give --pcie; {detail}")
    return HostLink(bytes_per_second=rate, latency_seconds=_LATENCY_SECONDS, source=source)


def _generation(device: Device, processor: Processor) -> int:
    """Of the older of the two."""
    name = device.architecture or ""
    starts = [start for start in _GENERATIONS if name.startswith(start)]
    return min(_GENERATIONS[max(starts, key=len)] if starts else _NEWEST, processor.pcie_generation)


def pcie_lanes(text: str) -> tuple[int, int]:
    """Generation and lanes of `4x16`."""
    match = re.fullmatch(r"(?:pcie)?\s*([345])(?:\.0)?\s*[x×]\s*(1|2|4|8|16)", text.strip().lower())
    if match is None:
        raise HardwareError(f"--pcie {text}: give generation (3, 4 or 5) and lanes (1 to 16), such as 4x16 or 5x8")
    return int(match[1]), int(match[2])
