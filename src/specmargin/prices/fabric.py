"""Seconds of a collective from the links' datasheet: latency + bytes that one rank sends / bandwidth."""

from __future__ import annotations

from typing import assert_never

from specmargin.hardware.device import Fabric
from specmargin.prices.work import Collective, CollectiveKind
from specmargin.step import FloatArray


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
        case _:
            assert_never(collective.kind)


def collective_seconds(fabric: Fabric, collective: Collective, message_bytes: FloatArray) -> FloatArray:
    bandwidth = fabric.bytes_per_second(collective.ranks)
    return fabric.link_latency_seconds + sent_bytes(collective, message_bytes) / bandwidth
