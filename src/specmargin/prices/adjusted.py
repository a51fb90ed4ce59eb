"""Prices of another model, adjusted where an engine's kernels differ from the ones that were priced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from specmargin.hardware.device import Device
from specmargin.prices.model import PriceModel, WorkPrice
from specmargin.prices.work import Work


@dataclass(frozen=True, kw_only=True)
class AdjustedPrices(ABC):
    inner: PriceModel
    device: Device

    @property
    def name(self) -> str:
        return self.inner.name

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        return tuple(self.adjusted(work, price) for work, price in zip(works, self.inner.price(works), strict=True))

    @abstractmethod
    def adjusted(self, work: Work, price: WorkPrice) -> WorkPrice: ...
