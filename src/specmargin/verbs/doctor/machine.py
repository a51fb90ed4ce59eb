"""The machine of a local server, as nvidia-smi shows it: evidence for a slow GPU, or a GPU that waits for its host."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from specmargin.measure.nvidia_smi import nvidia_smi

_FIELDS = (
    "utilization.gpu",
    "clocks.sm",
    "clocks.max.sm",
    "mig.mode.current",
    "clocks_event_reasons.hw_slowdown",
    "clocks_event_reasons.sw_thermal_slowdown",
)
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The first GPU, while the server was busy."""

    utilization: float | None = None  # 0 to 1: the share of time in which a kernel ran
    clock_mhz: float | None = None
    largest_clock_mhz: float | None = None
    mig: bool = False
    slowed: bool = False  # by the hardware (power, temperature)

    @property
    def clock_share(self) -> float | None:
        if not self.clock_mhz or not self.largest_clock_mhz:
            return None
        return self.clock_mhz / self.largest_clock_mhz


def read_machine(url: str) -> Machine | None:
    """None for a server elsewhere, and without nvidia-smi."""
    if urlsplit(url if "//" in url else f"//{url}").hostname not in _LOCAL:
        return None
    return parse_machine(nvidia_smi(",".join(_FIELDS)))


def parse_machine(text: str) -> Machine | None:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(_FIELDS):
        return None
    used, clock, most = (_number(part) for part in parts[:3])
    return Machine(
        utilization=None if used is None else used / 100.0,
        clock_mhz=clock,
        largest_clock_mhz=most,
        mig=parts[3] == "Enabled",
        slowed="Active" in parts[4:],
    )


def _number(text: str) -> float | None:
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None
