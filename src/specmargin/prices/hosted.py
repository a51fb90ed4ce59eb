"""Prices of a scenario with experts in main memory: the GPU's, the processor's, and the link between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.errors import OffloadError
from specmargin.hardware.offload import Offload
from specmargin.prices.hosting import HOSTING, Hosting
from specmargin.prices.measured import MeasuredPrices
from specmargin.prices.model import PriceModel, WorkPrice
from specmargin.prices.processor import ProcessorPrices
from specmargin.prices.work import Component, Work
from specmargin.step import BoolArray, FloatArray

_HIDING = (Component.ROUTED_EXPERTS,)  # what a GPU computes beside the processor
_COPIES_PER_LAYER = 2.0  # activations there, results back


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedPrices:
    """`inner` prices what is on the GPU."""

    inner: PriceModel
    offload: Offload
    hosting: Hosting

    @property
    def name(self) -> str:
        return self.inner.name

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        there = {i for i, work in enumerate(works) if work.component in (Component.HOST_EXPERTS, Component.HOST_LINK)}
        on_gpu = iter(self.inner.price([work for i, work in enumerate(works) if i not in there]))
        prices = [None if i in there else next(on_gpu) for i in range(len(works))]
        hiding = [p.seconds for work, p in zip(works, prices, strict=True) if p and work.component in _HIDING]
        hidden = np.asarray(sum(hiding, start=np.zeros(()))) if self.hosting.overlaps else np.zeros(())
        total = sum(work.count for work in works if work.component is Component.HOST_EXPERTS)
        return tuple(
            self._there(work, hidden * (work.count / total)) if price is None else price
            for work, price in zip(works, prices, strict=True)
        )

    def _there(self, work: Work, hidden: FloatArray) -> WorkPrice:
        if work.component is Component.HOST_LINK:
            return self._link(work)
        price = _less(ProcessorPrices(processor=self.offload.processor, repacks=False).price([work])[0], hidden)
        if self.hosting.copied_from is None or not np.any(work.positions >= self.hosting.copied_from):
            return price
        copied = self._copied(work)
        return _chosen(work.positions >= self.hosting.copied_from, copied, price)

    def _link(self, work: Work) -> WorkPrice:
        link = self.offload.link
        moved = np.asarray(work.count * work.bytes / link.bytes_per_second)
        fixed = np.asarray(work.count * _COPIES_PER_LAYER * link.latency_seconds)
        return WorkPrice(
            seconds=moved + fixed,
            memory_seconds=moved,
            compute_seconds=np.zeros(()),
            fixed_seconds=fixed,
            source=link.source,
        )

    def _copied(self, work: Work) -> WorkPrice:
        """The used experts go over the link, then the GPU multiplies them."""
        there = self.inner.price([replace(work, component=Component.ROUTED_EXPERTS)])[0]
        moved = np.asarray(work.count * work.bytes / self.offload.link.bytes_per_second)
        return replace(
            there,
            seconds=there.seconds + moved,
            memory_seconds=there.memory_seconds + moved,
            source=self.offload.link.source,
        )


def hosted_prices(inner: PriceModel, offload: Offload, engine: str) -> HostedPrices:
    """Measured steps hold no part of them: an engine that was measured had its experts where they were."""
    if isinstance(inner, MeasuredPrices):
        raise OffloadError(f"{inner.name} holds whole steps, measured with all weights on the GPU; leave out --prices")
    return HostedPrices(inner=inner, offload=offload, hosting=HOSTING[engine])


def _less(price: WorkPrice, hidden: FloatArray) -> WorkPrice:
    return replace(price, seconds=np.maximum(price.seconds - hidden, 0.0))


def _chosen(where: BoolArray, this: WorkPrice, other: WorkPrice) -> WorkPrice:
    parts = ("seconds", "memory_seconds", "compute_seconds", "fixed_seconds")
    chosen = {part: np.where(where, getattr(this, part), getattr(other, part)) for part in parts}
    return replace(this if np.all(where) else other, **chosen)
