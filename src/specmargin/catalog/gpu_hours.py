"""What a GPU costs per hour: the user's price, else a dated list price of a public cloud, which is an assumption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specmargin.catalog.bundled import read_bundled


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHour:
    usd: float
    assumed: bool  # a list price of the catalog
    source: str | None = None  # the cloud, of an assumed price
    month: str | None = None  # when its list was read

    def __str__(self) -> str:
        """`$4.59 per GPU-hour (assumed: RunPod 2026-10)`."""
        return f"${self.usd:g} per GPU-hour" + (f" (assumed: {self.source} {self.month})" if self.assumed else "")


def gpu_hour(device: str, given: float | None = None) -> GpuHour | None:
    """Of a device by its name; None where nobody gave or listed a price."""
    if given is not None:
        return GpuHour(usd=given, assumed=False)
    listed: dict[str, Any] | None = read_bundled("gpu_hours.toml").get(device)
    return None if listed is None else GpuHour(**listed, assumed=True)
