"""llama.cpp's GPU backends: what a kernel takes beside its bytes, and what it sustains of the datasheet's bandwidth.

Constants are fitted to plain `llama-bench` tables in pull requests, never to speculation (lab/validation/llamacpp.py
fits them again and prints the error on sources that were left out).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specmargin.errors import HardwareError
from specmargin.hardware.device import Device


class Backend(StrEnum):
    CUDA = "cuda"
    HIP = "hip"
    METAL = "metal"
    VULKAN = "vulkan"


_BY_VENDOR = {
    "nvidia": (Backend.CUDA, Backend.VULKAN),
    "amd": (Backend.HIP, Backend.VULKAN),
    "apple": (Backend.METAL,),
    "intel": (Backend.VULKAN,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """One backend.

    `bandwidth_share` of the datasheet's is sustained by large matrix-vector kernels, `attention_share` by attention.
    `kernel_seconds`: each kernel beside its bytes, or on backends that run independent kernels at the same time, each
    group of them. `column_work`: what one position of a matrix-vector kernel takes, in multiples of its bare integer
    operations, for q4_0 (`formats.py` has the others).
    """

    bandwidth_share: float
    attention_share: float
    kernel_seconds: float
    column_work: float
    tile_share: float  # of bandwidth, by matrix-matrix kernels with few positions
    tile_decode_work: float  # per weight of such a kernel, whatever the positions
    tile_column_work: float
    tile_columns: int  # positions are rounded up to these
    kernel_clock: float | None = None  # Hz at which `kernel_seconds` holds, where it is a number of clock cycles
    expert_columns: int  # the least that a routed expert pays for in such a kernel
    spread: float = 0.0  # 80% range of a plain step on sources that were left out, as a logarithm on each side


def backends_of(device: Device) -> tuple[Backend, ...]:
    """Those that run on this GPU, the default first."""
    return _BY_VENDOR.get(device.vendor or "", (Backend.CUDA, Backend.VULKAN))


def backend_named(name: str | None, device: Device) -> Backend:
    """The named one, or the GPU's default."""
    known = backends_of(device)
    if name is None:
        return known[0]
    if name not in known:
        others = " or ".join(known)
        raise HardwareError(f"--backend {name}: llama.cpp runs on {device.title} with {others}")
    return Backend(name)
