"""Laws for a GPU that nobody measured: those of a measured GPU, scaled by the ratios of their datasheets.

Reading scales with the bandwidth, products with the rate of their format, collectives with the link. Fixed times stay:
they are launches and latencies. What a kernel reaches of its device's peaks is assumed to carry over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from specmargin.architecture.precision import Arithmetic
from specmargin.hardware.device import Device
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.kinds import arithmetic_of
from specmargin.prices.kernels.law import Curve, Law

_RATE_WEIGHT = 0.25  # decoding reads: bandwidth decides more than the matrix rate
_PCIE_BYTES_PER_SECOND = 128e9  # PCIe 6.0 x16, one direction
_FARTHEST = math.log(12.0)


def nearest_device(device: Device, measured: Iterable[Device]) -> Device | None:
    """The measured device of its class with the most similar bandwidth and matrix rate; None where none is near.

    Two classes: GPUs whose links are built for collectives (NVLink and the like, with HBM) and those behind PCIe.
    Intel's laws have the launches of an engine without graphs in them: they are for Intel's GPUs, and the others' not.
    """
    others = [
        other
        for other in measured
        if other.name != device.name
        and _is_linked(other) == _is_linked(device)
        and _is_intel(other) == _is_intel(device)
    ]
    closest = min(others, key=lambda other: _distance(device, other), default=None)
    return None if closest is None or _distance(device, closest) > _FARTHEST else closest


def _is_linked(device: Device) -> bool:
    return device.fabric.link_bytes_per_second > _PCIE_BYTES_PER_SECOND


def _is_intel(device: Device) -> bool:
    return (device.architecture or "").startswith("bmg")


def _distance(one: Device, other: Device) -> float:
    """Sum of the two ratios, as logarithms."""
    bandwidth = one.bandwidth_bytes_per_second / other.bandwidth_bytes_per_second
    rate = one.rate(Arithmetic.BF16) / other.rate(Arithmetic.BF16)
    return abs(math.log(bandwidth)) + _RATE_WEIGHT * abs(math.log(rate))


def scaled_book(book: LawBook, measured: Device, device: Device) -> LawBook:
    """The laws of `measured` as they would be on `device`."""
    bandwidth = device.bandwidth_bytes_per_second / measured.bandwidth_bytes_per_second
    link = device.fabric.link_bytes_per_second / measured.fabric.link_bytes_per_second
    return replace(
        book,
        laws={
            key: _scaled_law(law, bandwidth, _rate_ratio(key[2], device, measured)) for key, law in book.laws.items()
        },
        curves={key: _scaled_curve(curve, link) for key, curve in book.curves.items()},
        scaled_to=device.name,
    )


def _rate_ratio(dtype: str, device: Device, measured: Device) -> float:
    arithmetic = arithmetic_of(dtype)
    return device.rate(arithmetic) / measured.rate(arithmetic)


def _scaled_law(law: Law, bandwidth: float, rate: float) -> Law:
    """Time per unit, resident and element is reading and writing, too."""
    return replace(
        law,
        bytes_per_second=law.bytes_per_second * bandwidth,
        operations_per_second=law.operations_per_second * rate,
        unit_seconds=law.unit_seconds / bandwidth,
        resident_seconds=law.resident_seconds / bandwidth,
        element_seconds=law.element_seconds / bandwidth,
    )


def _scaled_curve(curve: Curve, link: float) -> Curve:
    """A message of the same duration is as many times larger as the link is faster."""
    return replace(curve, sizes=tuple(size * link for size in curve.sizes))
