"""Prices fitted to whole steps of one model in one engine on one machine.

    t = step + verify + sequence · B + position · T
        + Σ over components of ((bytes / bandwidth)³ + (operations / rate)³)^(1/3)

The bytes and operations of every component are counted as for any other price, so the routed experts follow the
distinct experts of any routing profile. Bandwidth and rate are what the engine reached over all of its kernels;
`verify` is added to steps that verify a draft; launches, scheduling and sampling are the engine's own time. Only what
varied in the measurement can be fitted: how a dense model's fixed time divides into weights and launches cannot, and
does not matter to a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from specmargin.architecture.types import Architecture
from specmargin.errors import CatalogError
from specmargin.hardware.layout import Layout
from specmargin.prices.drafters import DraftTime
from specmargin.prices.kernels.law import knee
from specmargin.prices.memory import weight_bytes
from specmargin.prices.model import EngineTime, WorkPrice
from specmargin.prices.work import Component, Work
from specmargin.sources import Source
from specmargin.step import FloatArray

SCHEMA: Literal["specmargin.measured/1"] = "specmargin.measured/1"  # of the files that hold such prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of all kernels of a step together; attention has its own, for it reads the cache and not the weights."""

    weight_bytes_per_second: float
    operations_per_second: float
    kv_bytes_per_second: float
    attention_operations_per_second: float

    def parts(self, work: Work) -> tuple[FloatArray, FloatArray]:
        """Seconds of memory and of compute of one piece of a work."""
        if work.component is Component.ATTENTION:
            return work.bytes / self.kv_bytes_per_second, work.flops / self.attention_operations_per_second
        return work.bytes / self.weight_bytes_per_second, work.flops / self.operations_per_second

    def seconds(self, works: Sequence[Work]) -> FloatArray:
        total = np.zeros(())
        for work in works:
            memory, compute = self.parts(work)
            total = total + work.count * knee(memory, compute)
        return np.asarray(total)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """The model that was measured: prices of whole steps are valid for it alone."""

    name: str
    layers: int
    hidden: int
    experts: int
    experts_per_token: int
    weight_bytes: float

    @classmethod
    def of(cls, architecture: Architecture) -> MeasuredModel:
        pool = architecture.pools[0] if architecture.pools else None
        return cls(
            name=architecture.name,
            layers=architecture.layers,
            hidden=architecture.hidden,
            experts=0 if pool is None else pool.experts,
            experts_per_token=0 if pool is None else pool.experts_per_token,
            weight_bytes=float(weight_bytes(architecture, Layout())),
        )

    def same_shapes(self, other: MeasuredModel) -> bool:
        return replace(self, name="", weight_bytes=0.0) == replace(other, name="", weight_bytes=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrices:
    name: str = "measured"
    file: str
    model: MeasuredModel
    rates: Rates
    engine_time: EngineTime
    draft_time: DraftTime | None
    source: Source

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        return tuple(self._price(work) for work in works)

    def _price(self, work: Work) -> WorkPrice:
        memory, compute = self.rates.parts(work)
        return WorkPrice(
            seconds=np.asarray(work.count * knee(memory, compute)),
            memory_seconds=np.asarray(work.count * memory),
            compute_seconds=np.asarray(work.count * compute),
            fixed_seconds=np.zeros(()),
            source=self.source,
        )

    def check(self, architecture: Architecture, layout: Layout) -> None:
        """Refuse a model or layout other than the measured one."""
        requested = MeasuredModel.of(architecture)
        if not self.model.same_shapes(requested):
            raise CatalogError(
                f"{self.file} was measured with {self.model.name} ({_shape(self.model)}), not with {requested.name} "
                f"({_shape(requested)}); measure that model, or use --prices laws"
            )
        if abs(requested.weight_bytes / self.model.weight_bytes - 1.0) > 0.02:
            raise CatalogError(
                f"{self.file} was measured with {self.model.weight_bytes / 1e9:.3g} GB of weights, not with "
                f"{requested.weight_bytes / 1e9:.3g} GB; measure that precision, or use --prices laws"
            )
        if layout.gpus != 1:
            raise CatalogError(f"{self.file} was measured on one GPU, not on {layout.gpus}; use --prices laws")


def _shape(model: MeasuredModel) -> str:
    experts = f", {model.experts_per_token} of {model.experts} experts" if model.experts else ", dense"
    return f"{model.layers} layers, hidden {model.hidden}{experts}"
