"""The datasheet roofline: bytes over bandwidth or operations over rate, whichever is longer.

It leaves out the fixed time of every kernel and of the engine, so it is a lower bound on a step, and it
overstates the price of depth relative to plain decoding: compare it with measured prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from specmargin.hardware.device import Device, Fabric
from specmargin.modes import RooflineForm
from specmargin.prices.model import WorkPrice, fixed_price
from specmargin.prices.work import Collective, CollectiveKind, Work, shards_touched
from specmargin.sources import datasheet
from specmargin.step import FloatArray

# Dispatch and combine of 16 positions with DeepEP's high-throughput kernels in vLLM 0.24 on an H200 take 255 to 274 and
# 79 to 89 us (aiconfigurator-core 0.12.0, moe_a2a_perf): the host waits for counts. Half of both, for each.
_FORWARDING_SECONDS = 170e-6
_ZERO: FloatArray = np.zeros(())  # constants stay 0-dimensional and broadcast: a third of the time of full arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    device: Device
    form: RooflineForm = RooflineForm.PER_COMPONENT
    name: str = "datasheet"

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]:
        prices = [self._price(work) for work in works]
        return tuple(_whole_step(prices)) if self.form is RooflineForm.WHOLE_STEP else tuple(prices)

    def _price(self, work: Work) -> WorkPrice:
        if isinstance(work.subject, Collective):
            return self._collective(work, work.subject)
        memory = work.bytes * (work.count / self.device.bandwidth_bytes_per_second)
        compute = _ZERO
        for arithmetic, amount in work.operations.items():
            seconds = amount * (work.count / self.device.rate(arithmetic))
            compute = seconds if compute is _ZERO else compute + seconds
        return WorkPrice(
            seconds=np.maximum(memory, compute),
            memory_seconds=memory,
            compute_seconds=compute,
            fixed_seconds=_ZERO,
            source=self.device.source,
        )

    def _collective(self, work: Work, collective: Collective) -> WorkPrice:
        seconds = work.count * collective_seconds(self.device.fabric, collective, work.bytes)
        fabric = self.device.fabric
        source = datasheet(f"{self.device.title}: link bandwidth and latency")
        if fabric.network is not None and collective.ranks > fabric.gpus_per_node:
            source = fabric.network
        if _goes_by_node(fabric, collective):
            source = replace(source, detail=f"{source.detail}; where faster, once per node, as DeepEP in vLLM 0.24")
        return fixed_price(seconds, source)


def sent_bytes(collective: Collective, message_bytes: FloatArray) -> FloatArray:
    """Bytes that each rank sends. An all-reduce sends its message twice: reduce-scatter, then all-gather."""
    others = (collective.ranks - 1) / collective.ranks
    match collective.kind:
        case CollectiveKind.ALL_REDUCE:
            return 2.0 * others * message_bytes
        case CollectiveKind.ALL_GATHER:
            return (collective.ranks - 1) * message_bytes
        case CollectiveKind.ALL_TO_ALL:
            return others * message_bytes
        case CollectiveKind.SEND:
            return message_bytes
        case _:
            assert_never(collective.kind)


def collective_seconds(fabric: Fabric, collective: Collective, message_bytes: FloatArray) -> FloatArray:
    bandwidth = fabric.bytes_per_second(collective.ranks)
    direct = fabric.latency_seconds(collective.ranks) + sent_bytes(collective, message_bytes) / bandwidth
    if not _goes_by_node(fabric, collective):
        return direct
    return np.minimum(direct, _by_node(fabric, collective, message_bytes))


def _goes_by_node(fabric: Fabric, collective: Collective) -> bool:
    return collective.choices > 0 and collective.ranks > fabric.gpus_per_node


def _by_node(fabric: Fabric, collective: Collective, message_bytes: FloatArray) -> FloatArray:
    """An all-to-all in which a position crosses the network once for each other node that holds one of its experts; the
    GPU there forwards it over the node's links (DeepEP's normal mode; low-latency kernels send to every rank)."""
    nodes, choices = collective.ranks / fabric.gpus_per_node, collective.choices
    position_bytes = message_bytes / shards_touched(choices, collective.ranks)
    others = shards_touched(choices, nodes) * (nodes - 1.0) / nodes
    across = position_bytes * others / fabric.bytes_per_second(collective.ranks)
    within = sent_bytes(collective, message_bytes) / fabric.link_bytes_per_second
    return _FORWARDING_SECONDS + fabric.latency_seconds(collective.ranks) + np.maximum(across, within)


def _whole_step(prices: Sequence[WorkPrice]) -> list[WorkPrice]:
    """Each component gets its share of the one resource that limits the whole step."""
    memory: FloatArray = np.asarray(sum((p.memory_seconds for p in prices), start=np.zeros(())))
    compute: FloatArray = np.asarray(sum((p.compute_seconds for p in prices), start=np.zeros(())))
    by_memory = memory >= compute
    return [
        replace(p, seconds=np.where(by_memory, p.memory_seconds, p.compute_seconds) + p.fixed_seconds) for p in prices
    ]
