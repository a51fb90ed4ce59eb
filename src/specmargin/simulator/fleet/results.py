"""Results of a fleet: those of one engine, and what imbalance and padding cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specmargin.simulator.fleet.state import FleetRow
from specmargin.simulator.results import Result, Slo


@dataclass(frozen=True, kw_only=True)
class FleetResult(Result):
    ranks: int = 1
    fleet: FleetRow | None = None

    @property
    def cell_ranks(self) -> int:
        return self.ranks

    @property
    def goodput_per_gpu(self) -> float:
        return self.goodput / self.serving.gpus

    @property
    def imbalance_share(self) -> float:
        """Of the busy time of all ranks: until the slowest rank is done."""
        return self._share("waiting")

    @property
    def padding_share(self) -> float:
        """Of the busy time of all ranks: kernels of batches that are padded to the largest."""
        return self._share("padding")

    @property
    def busiest_over_mean(self) -> float:
        """Sequences that decode on the busiest rank, over those on the mean one."""
        return self.fleet.busiest / self.fleet.sequences if self.fleet is not None and self.fleet.sequences else 1.0

    def _share(self, name: str) -> float:
        busy = self.busy_seconds * self.ranks
        return float(getattr(self.fleet, name)) / busy if busy > 0.0 else 0.0

    def summary(self, slo: Slo | None = None, gpu_hour_price: float | None = None) -> dict[str, Any]:
        return Result.summary(self, slo, gpu_hour_price) | {
            "ranks": self.ranks,
            "goodput_per_gpu": self.goodput_per_gpu,
            "imbalance_share": self.imbalance_share,
            "padding_share": self.padding_share,
            "busiest_over_mean": self.busiest_over_mean,
        }
