"""Slow kernels: they only read weights, yet stay far below the device's bandwidth. And faster alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specmargin.architecture.types import ExpertBlock
from specmargin.prices.kernels.kinds import DTYPES, is_plain
from specmargin.prices.kernels.law import Law
from specmargin.prices.kernels.model import SiliconPrices
from specmargin.prices.kernels.terms import BYTES, expert_terms_of_work
from specmargin.prices.work import Work

_SLOW = 0.4  # of the device's bandwidth, by the time of one more expert
_FASTER = 1.3  # times: speed-up from which an alternative is named
_LARGE = 0.1  # of the step: smaller shares are not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowKernel:
    """Routed experts that read far slower than the device can, and the fastest measured alternative, if any."""

    bytes_per_second: float
    device_bytes_per_second: float
    kernel: str
    seconds: float
    alternative: str
    alternative_seconds: float | None

    def with_more(self, other: SlowKernel | None) -> SlowKernel:
        """Times of the same kernel in other layers added."""
        if other is None:
            return self
        times = (self.alternative_seconds, other.alternative_seconds)
        both = None if None in times else sum(time for time in times if time is not None)
        return replace(self, seconds=self.seconds + other.seconds, alternative_seconds=both)

    def __str__(self) -> str:
        share = self.bytes_per_second / self.device_bytes_per_second
        text = (
            f"routed experts read at {self.bytes_per_second / 1e12:.1f} TB/s, {share:.0%} of the device's bandwidth "
            f"({self.kernel})"
        )
        if self.alternative_seconds is None:
            return f"{text}; no measured alternative is faster"
        return (
            f"{text}; {self.alternative} would take {self.alternative_seconds * 1e3:.2f} ms per step "
            f"instead of {self.seconds * 1e3:.2f}"
        )


def slow_kernels(prices: SiliconPrices, works: Sequence[Work], total_seconds: float) -> list[SlowKernel]:
    """For one step: `works` at a single point of the grid."""
    by_kernel: dict[str, SlowKernel] = {}
    for work in works:
        slow = _slow_experts(prices, work, work.subject) if isinstance(work.subject, ExpertBlock) else None
        if slow is not None:
            by_kernel[slow.kernel] = slow.with_more(by_kernel.get(slow.kernel))
    return [slow for slow in by_kernel.values() if slow.seconds >= _LARGE * total_seconds]


def _slow_experts(prices: SiliconPrices, work: Work, block: ExpertBlock) -> SlowKernel | None:
    spread = work.expert_ranks > 1
    entry = prices.book.experts(prices.engine, block, spread=spread)
    if entry is None:
        return None
    seconds = float(prices.price([work])[0].seconds)
    rate = _rate(entry.law, work, block, entry.dtype)
    device = prices.fallback.device.bandwidth_bytes_per_second
    if rate >= _SLOW * device:
        return None
    predicted = _seconds(entry.law, work, block, entry.dtype)
    choices = [choice for choice in _alternatives(prices, work, block) if choice[1] * _FASTER <= predicted]
    own = [choice for choice in choices if choice[0] == entry.engine]  # prefer a kernel of the same engine
    _, best_seconds, best_name = min(own or choices, key=lambda choice: choice[1], default=("", np.inf, ""))
    faster = bool(choices)
    return SlowKernel(
        bytes_per_second=rate,
        device_bytes_per_second=device,
        kernel=f"{entry.engine} {entry.dtype}",
        seconds=seconds,
        alternative=best_name if faster else "",
        alternative_seconds=float(seconds * best_seconds / predicted) if faster else None,
    )


def _seconds(law: Law, work: Work, block: ExpertBlock, dtype: str) -> float:
    return float(work.count * law.seconds(expert_terms_of_work(work, block, dtype)))


def _rate(law: Law, work: Work, block: ExpertBlock, dtype: str) -> float:
    """Bytes per second of reading one more expert: fixed time does not count against a kernel."""
    terms = expert_terms_of_work(work, block, dtype)
    expert_bytes = float(np.asarray(terms.bytes / work.distinct))
    return expert_bytes / (law.unit_seconds + expert_bytes / law.bytes_per_second)


def _alternatives(prices: SiliconPrices, work: Work, block: ExpertBlock) -> Iterator[tuple[str, float, str]]:
    """Every kernel measured on this GPU for a format of the same width, whatever the engine, scaling or kernel."""
    width = BYTES[DTYPES[block.expert[0].precision.name][0]]
    spread, plain = work.expert_ranks > 1, is_plain(block)
    for (engine, operation, dtype, variant), law in prices.book.laws.items():
        same = ("/spread" in variant) == spread and ("/plain" in variant) == plain
        if operation == "experts" and same and BYTES[dtype] == width and law.evidence.shapes >= 10:
            kernel = variant.removesuffix("/plain").removesuffix("/spread")
            yield engine, _seconds(law, work, block, dtype), f"{dtype} in {law.evidence.version} ({kernel})"
