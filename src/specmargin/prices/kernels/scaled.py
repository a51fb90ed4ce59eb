"""Laws for a GPU that nobody measured: those of the nearest measured GPU, scaled.

What each constant of a law follows was chosen by leaving out one measured GPU at a time (`python -m
lab.validation.scaled`): reading follows the bandwidth and products the matrix rate, always. Fixed times of GEMMs,
experts and GatedDeltaNet follow the clock: they are dependent instructions and barriers inside the kernel. So do the
times per expert, and the depth of a product between GPUs with the same kind of memory. Attention's time per sequence
and per token of the longest sequence follows the bandwidth, its fixed time nothing. A blend of several GPUs is worse
than the nearest one; so is a GPU with the other kind of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from specmargin.architecture.precision import Arithmetic
from specmargin.hardware.device import Device
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.kinds import arithmetic_of
from specmargin.prices.kernels.law import Curve, Law

_RATE_WEIGHT = 0.25  # decoding reads: bandwidth decides more than the matrix rate
_PCIE_BYTES_PER_SECOND = 128e9  # PCIe 6.0 x16, one direction
_FARTHEST = math.log(12.0)
_OTHER_CLASS = 1.0  # distance between GPUs with HBM and those without
_SHARE_WEIGHT = 0.25  # of the bandwidth per multiprocessor: it decides how much of the bandwidth a kernel reaches
_OTHER_GENERATION = 0.7  # engines choose kernels by it; not tested, because no two generations were measured twice
_HBM = ("sm_70", "sm_80", "sm_90", "sm_100", "sm_103", "sm_107", "gfx942", "gfx950")

#: Boost clocks in GHz by generation, as datasheets give them; cards of one generation differ by 5%.
_CLOCKS = {
    "sm_61": 1.58, "sm_70": 1.53, "sm_75": 1.6, "sm_80": 1.41, "sm_86": 1.7, "sm_89": 2.52, "sm_90": 1.98,
    "sm_100": 1.97, "sm_103": 1.92, "sm_120": 2.5, "sm_121": 2.42, "gfx942": 2.1, "gfx950": 2.4, "gfx1100": 2.5,
    "gfx1151": 2.9, "gfx1201": 2.92,
}  # fmt: skip
_USUAL_CLOCK = 2.0

#: Share of the datasheet's bandwidth that long reads reach. Of measured GPUs: the best bf16 GEMM of one position on
#: 500 MB or more (vLLM's rows in aiconfigurator-core 0.12.0). Of others, published: RTX 3090 0.88 to 0.956, RTX 5090
#: 1674 of 1792 GB/s (github.com/Don-Chad/ninfer-3090, pull request 17), RTX 4090 921 of 1008 GB/s
#: (github.com/krrishnarraj/clpeak, issue 106), GB10 201 to 214 of 273 GB/s in matrix-vector kernels
#: (github.com/lablup/mlxcel, pull request 684); Strix Halo has the same kind of memory.
_REACHED = {
    "a100": 0.85, "h100": 0.92, "h200": 0.89, "l40s": 0.87, "b200": 0.86, "b300": 0.86, "gb200": 0.86, "gb300": 0.86,
    "rtx-pro-6000": 0.95,
}  # fmt: skip
_REACHED_ELSEWHERE = {
    "rtx-3090": 0.91, "rtx-3090-ti": 0.91, "rtx-4090": 0.91, "rtx-5090": 0.93, "dgx-spark": 0.78, "strix-halo": 0.78,
}  # fmt: skip


def clock_hertz(device: Device) -> float:
    return _CLOCKS.get(device.architecture or "", _USUAL_CLOCK) * 1e9


class Follows(Enum):
    """What a time shrinks with."""

    NOTHING = "nothing"
    CLOCK = "clock"
    BANDWIDTH = "bandwidth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the constants of a law follow; bytes follow the bandwidth and operations the matrix rate."""

    fixed: Follows
    unit: Follows  # and residents
    element: Follows
    far_element: Follows  # between GPUs with other kinds of memory


_KERNEL = Rule(fixed=Follows.CLOCK, unit=Follows.CLOCK, element=Follows.CLOCK, far_element=Follows.BANDWIDTH)
_ATTENTION = Rule(
    fixed=Follows.NOTHING, unit=Follows.BANDWIDTH, element=Follows.BANDWIDTH, far_element=Follows.BANDWIDTH
)
_EXPERTS = replace(_KERNEL, far_element=Follows.CLOCK)
RULES = {"gemm": _KERNEL, "gdn": _KERNEL, "experts": _EXPERTS}  # others: as attention


def nearest_device(device: Device, measured: Iterable[Device]) -> Device | None:
    """The measured device of its class with the most similar bandwidth and matrix rate; None where none is near.

    Two classes: GPUs with HBM, built for datacentres, and those without.
    Intel's laws have the launches of an engine without graphs in them: they are for Intel's GPUs, and the others' not.
    """
    closest = next(iter(by_distance(device, measured)), None)
    return None if closest is None or _distance(device, closest) > _FARTHEST else closest


def by_distance(device: Device, measured: Iterable[Device]) -> list[Device]:
    """The measured devices other than this one, nearest first."""
    others = (other for other in measured if other.name != device.name and _is_intel(other) == _is_intel(device))
    return sorted(others, key=lambda to: _distance(device, to))


def is_linked(device: Device) -> bool:
    return device.fabric.link_bytes_per_second > _PCIE_BYTES_PER_SECOND


def has_hbm(device: Device) -> bool:
    """By its links where the generation is not known."""
    return device.architecture in _HBM if device.architecture else is_linked(device)


def _is_intel(device: Device) -> bool:
    return (device.architecture or "").startswith("bmg")


def _distance(one: Device, other: Device) -> float:
    """Sum of the ratios, as logarithms."""
    bandwidth = abs(math.log(one.bandwidth_bytes_per_second / other.bandwidth_bytes_per_second))
    rate = abs(math.log(one.rate(Arithmetic.BF16) / other.rate(Arithmetic.BF16)))
    apart = 0.0 if has_hbm(one) == has_hbm(other) else _OTHER_CLASS
    apart += 0.0 if _generation(one) == _generation(other) else _OTHER_GENERATION
    return bandwidth + _RATE_WEIGHT * rate + _SHARE_WEIGHT * _share_distance(one, other) + apart


def _generation(device: Device) -> str:
    """Without its last digit: sm_120 and sm_121 run the same kernels, sm_86 and sm_89 most of them."""
    return (device.architecture or "")[:-1]


def _share_distance(one: Device, other: Device) -> float:
    """Of the bandwidth per multiprocessor; 0 where their number is not known."""
    if not one.multiprocessors or not other.multiprocessors:
        return 0.0
    shares = [device.bandwidth_bytes_per_second / (device.multiprocessors or 1) for device in (one, other)]
    return abs(math.log(shares[0] / shares[1]))


_SOUND = 0.4  # held-out median error: all laws but six are below it, those at 42 to 76%


def scaled_book(book: LawBook, measured: Device, device: Device, spreads: Mapping[str, float] | None = None) -> LawBook:
    """The laws of `measured` as they would be on `device`; collectives only between links of the same kind.

    A law that is far off on shapes of its own GPU is left out: another GPU's, or the datasheet, is nearer.
    """
    ratios = Ratios(measured=measured, device=device)
    sound = {key: law for key, law in book.laws.items() if law.evidence.median_error <= _SOUND}
    return replace(
        book,
        laws=_ScaledLaws(laws=sound, ratios=ratios),
        curves={key: ratios.curve(curve) for key, curve in book.curves.items() if ratios.connects(int(key[3]))},
        scaled_to=device.name,
        spreads=spreads or {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """A device over the measured one."""

    measured: Device
    device: Device

    @property
    def bandwidth(self) -> float:
        """Of what long reads reach, where that is published; otherwise of the datasheets."""
        one, other = _REACHED_ELSEWHERE.get(self.device.name), _REACHED.get(self.measured.name)
        reached = one / other if one and other else 1.0
        return reached * self.device.bandwidth_bytes_per_second / self.measured.bandwidth_bytes_per_second

    @property
    def clock(self) -> float:
        """1 where a clock is not known."""
        known = all((device.architecture or "") in _CLOCKS for device in (self.device, self.measured))
        return clock_hertz(self.device) / clock_hertz(self.measured) if known else 1.0

    def rate(self, dtype: str) -> float:
        arithmetic = arithmetic_of(dtype)
        return self.device.rate(arithmetic) / self.measured.rate(arithmetic)

    def of(self, follows: Follows) -> float:
        return {Follows.NOTHING: 1.0, Follows.CLOCK: self.clock, Follows.BANDWIDTH: self.bandwidth}[follows]

    def law(self, operation: str, dtype: str, law: Law, rule: Rule | None = None) -> Law:
        """`rule`: None for that of the operation."""
        rule = rule or RULES.get(operation, _ATTENTION)
        near = has_hbm(self.device) == has_hbm(self.measured)
        unit = self.of(rule.unit)
        return replace(
            law,
            bytes_per_second=law.bytes_per_second * self.bandwidth,
            operations_per_second=law.operations_per_second * self.rate(dtype),
            fixed_seconds=law.fixed_seconds / self.of(rule.fixed),
            unit_seconds=law.unit_seconds / unit,
            resident_seconds=law.resident_seconds / unit,
            element_seconds=law.element_seconds / self.of(rule.element if near else rule.far_element),
        )

    def connects(self, ranks: int) -> bool:
        """Whether so many GPUs of both are connected by links of the same kind."""
        within = ranks <= min(self.device.fabric.gpus_per_node, self.measured.fabric.gpus_per_node)
        return within and is_linked(self.device) == is_linked(self.measured)

    def curve(self, curve: Curve) -> Curve:
        """A message of the same duration is as many times larger as the link is faster."""
        link = self.device.fabric.link_bytes_per_second / self.measured.fabric.link_bytes_per_second
        return replace(curve, sizes=tuple(size * link for size in curve.sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScaledLaws(Mapping[tuple[str, str, str, str], Law]):
    """Scaled when asked for: a step uses a dozen of a thousand laws."""

    laws: Mapping[tuple[str, str, str, str], Law]
    ratios: Ratios
    _known: dict[tuple[str, str, str, str], Law] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getitem__(self, key: tuple[str, str, str, str]) -> Law:
        if key not in self._known:
            self._known[key] = self.ratios.law(key[1], key[2], self.laws[key])
        return self._known[key]

    def __iter__(self) -> Iterator[tuple[str, str, str, str]]:
        return iter(self.laws)

    def __len__(self) -> int:
        return len(self.laws)
