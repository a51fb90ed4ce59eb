"""The dtype that vLLM's CPU build can run on this machine.

Its kernels are compiled for one instruction set. Those for x86-64 convert bf16 in software where the CPU has no
instructions for it; those for aarch64 are built with `-march=armv8.2-a+bf16` and end with an illegal instruction on an
older core (Neoverse-N1). Other machines get float32, which runs everywhere.
"""

from __future__ import annotations

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cpu_dtype() -> str:
    """bfloat16, the dtype of the reference models, where this CPU runs it, else float32."""
    text = _CPUINFO.read_text(encoding="utf-8", errors="replace") if _CPUINFO.is_file() else ""
    return dtype_of(platform.system(), platform.machine(), text)


def dtype_of(system: str, machine: str, cpuinfo: str) -> str:
    match system, machine.lower():
        case "Linux", "x86_64" | "amd64":
            return "bfloat16"
        case "Linux", "aarch64" | "arm64":
            return "bfloat16" if "bf16" in _features(cpuinfo) else "float32"
        case _:
            return "float32"


def _features(cpuinfo: str) -> set[str]:
    """Features of every core; the cores of a big.LITTLE machine may differ."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    by_core = [set(value.split()) for name, _, value in lines if name.strip() == "Features"]
    return set.intersection(*by_core) if by_core else set()
