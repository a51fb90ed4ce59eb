"""How wrong a scaled law is, by kernel family: every measured GPU left out and priced from the nearest other one.

A family is an operation in one dtype (attention: in one head size and cache). GPUs of one die are no test of each
other. Times are compared at sizes of decode steps, with the law that was fitted to the GPU itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from specmargin.architecture.precision import Arithmetic
from specmargin.catalog.prices import law_book, measured_devices
from specmargin.hardware.device import Device
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.kinds import family
from specmargin.prices.kernels.law import Curve, Law, Terms
from specmargin.prices.kernels.scaled import Follows, Ratios, Rule, by_distance
from specmargin.prices.kernels.terms import attention_terms, expert_terms, gemm_terms

Key = tuple[str, str, str, str]

#: GPUs with the same die, or nearly: laws of one are laws of the other.
DIES = {
    name: tuple(other for other in dies if other != name)
    for dies in (("h100", "h200"), ("b200", "b300", "gb200", "gb300"))
    for name in dies
}
_POSITIONS = (1.0, 4.0, 16.0, 64.0, 256.0)
_MATRICES = ((4096, 4096), (28672, 4096), (4096, 14336), (6144, 5120), (2048, 2048), (7168, 2304))
_EXPERTS = ((2048, 768, 8, 128), (7168, 256, 8, 256), (4096, 768, 8, 160))
_LOADS = tuple(product((1.0, 8.0, 64.0), (1024.0, 8192.0)))
_MESSAGES = np.array([2.0**exponent for exponent in range(13, 22)])
#: What the constants of a law could follow: what is used, then the alternatives.
ALTERNATIVES = {
    "nothing": Rule(**dict.fromkeys(("fixed", "unit", "element", "far_element"), Follows.NOTHING)),
    "clock": Rule(**dict.fromkeys(("fixed", "unit", "element", "far_element"), Follows.CLOCK)),
    "bandwidth": Rule(
        fixed=Follows.NOTHING, unit=Follows.BANDWIDTH, element=Follows.BANDWIDTH, far_element=Follows.BANDWIDTH
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyError:
    """One law of one GPU: logarithms of predicted over own time at the sizes of its grid."""

    family: str
    kernel: str
    gpu: str
    scaled_from: str
    errors: tuple[float, ...]
    by_alternative: dict[str, tuple[float, ...]]
    datasheet: tuple[float, ...]  # of all sizes together: single small ones are nearly all fixed time


def family_errors() -> Iterator[FamilyError]:
    for device in measured_devices():
        book = law_book(device)
        if book is None:
            continue
        others = [other for other in measured_devices() if other.name not in DIES.get(device.name, ())]
        ordered = [(other, found) for other in by_distance(device, others) if (found := law_book(other)) is not None]
        yield from (_law_error(device, key, law, ordered) for key, law in book.laws.items() if _known(key, ordered))
        yield from _curve_errors(device, book, ordered)


def _known(key: Key, ordered: list[tuple[Device, LawBook]]) -> bool:
    return any(key in book.laws for _, book in ordered)


def _law_error(device: Device, key: Key, law: Law, ordered: list[tuple[Device, LawBook]]) -> FamilyError:
    source, book = next((other, book) for other, book in ordered if key in book.laws)
    _, operation, dtype, variant = key
    ratios, other = Ratios(measured=source, device=device), book.laws[key]
    grid = list(_terms(operation, dtype, variant))
    own = [float(law.seconds(terms)) for terms in grid]

    def errors(rule: Rule | None) -> tuple[float, ...]:
        scaled = ratios.law(operation, dtype, other, rule)
        return tuple(math.log(float(scaled.seconds(t)) / own[i]) for i, t in enumerate(grid))

    return FamilyError(
        family=family(operation, dtype, variant),
        kernel=variant,
        gpu=device.name,
        scaled_from=source.name,
        errors=errors(None),
        by_alternative={name: errors(rule) for name, rule in ALTERNATIVES.items()},
        datasheet=(math.log(sum(_roofline(device, dtype, terms) for terms in grid) / sum(own)),),
    )


def _roofline(device: Device, dtype: str, terms: Terms) -> float:
    arithmetic = Arithmetic.FP8 if dtype.startswith(("fp8", "w4a8")) else Arithmetic.BF16
    arithmetic = Arithmetic.FP4 if dtype == "nvfp4" else arithmetic
    reading = float(terms.bytes) / device.bandwidth_bytes_per_second
    return max(reading, float(terms.operations) / device.rate(arithmetic))


def _terms(operation: str, dtype: str, variant: str) -> Iterator[Terms]:
    """Sizes of decode steps."""
    if operation == "gemm":
        yield from (gemm_terms(np.array(m), n, k, dtype) for (n, k), m in product(_MATRICES, _POSITIONS))
    elif operation == "experts":
        yield from (_expert_terms(shape, positions, dtype) for shape, positions in product(_EXPERTS, _POSITIONS))
    elif operation == "attention":
        yield from (_attention_terms(variant, sequences, context) for sequences, context in _LOADS)
    elif operation == "gdn":
        state = 2.0 * 32 * 128 * 128 * 4
        yield from (
            Terms(bytes=np.array(n * state), operations=np.zeros(()), units=np.array(n)) for n in (1.0, 8.0, 64.0)
        )
    elif operation == "prefill":
        yield from (Terms(bytes=np.zeros(()), operations=np.array(amount)) for amount in (1e11, 1e12))
    else:  # latent attention: 16 heads on 576 elements per token
        for sequences, context in _LOADS:
            tokens = sequences * context
            yield Terms(
                bytes=np.array(tokens * 1152.0), operations=np.array(tokens * 34816.0), units=np.array(sequences)
            )


def _expert_terms(shape: tuple[int, int, int, int], positions: float, dtype: str) -> Terms:
    hidden, inter, topk, experts = shape
    return expert_terms(
        distinct=np.array(experts * (1.0 - (1.0 - topk / experts) ** positions)),
        pairs=np.array(positions * topk),
        positions=np.array(positions),
        parameters=3.0 * hidden * inter,
        residents=float(experts),
        hidden=hidden,
        dtype=dtype,
    )


def _attention_terms(variant: str, sequences: float, context: float) -> Terms:
    seen = min(context, 128.0) if "window" in variant else context
    return attention_terms(
        sequences=np.array(sequences),
        tokens=np.array(sequences * seen),
        pairs=np.array(sequences * seen),
        longest=np.array(seen),
        heads=32,
        kv_heads=8,
        dims=2 * int(variant.split("-", maxsplit=1)[0].removeprefix("d")),
        kv_bytes=1.0 if variant.endswith("fp8") else 2.0,
    )


def _curve_errors(device: Device, book: LawBook, ordered: list[tuple[Device, LawBook]]) -> Iterator[FamilyError]:
    for key, curve in book.curves.items():
        ratios = (Ratios(measured=other, device=device) for other, found in ordered if key in found.curves)
        near = next((ratio for ratio in ratios if ratio.connects(int(key[3]))), None)
        if near is None:
            continue
        found = law_book(near.measured)
        assert found is not None
        errors = _curve_error(near.curve(found.curves[key]), curve)
        ranks = int(key[3])
        sent = 2.0 * (ranks - 1) / ranks * _MESSAGES / device.fabric.link_bytes_per_second
        datasheet = float(np.sum(device.fabric.link_latency_seconds + sent) / np.sum(curve.seconds(_MESSAGES)))
        yield FamilyError(
            family=f"{key[1]}/{key[2]}",
            kernel=f"{ranks} GPUs",
            gpu=device.name,
            scaled_from=near.measured.name,
            errors=errors,
            by_alternative=dict.fromkeys(ALTERNATIVES, errors),
            datasheet=(math.log(datasheet),),
        )


def _curve_error(scaled: Curve, own: Curve) -> tuple[float, ...]:
    return tuple(np.log(scaled.seconds(_MESSAGES) / own.seconds(_MESSAGES)).tolist())
