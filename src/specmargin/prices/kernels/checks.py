"""Rows of measured tables held against bandwidth, arithmetic and their neighbours.

The fit of the laws (`lab/fits/laws.py`) and the interpolation of the tables both read rows through these checks, so a
row that cannot be true, or that no engine runs, prices nothing. The bounds are physical and the same for all GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from specmargin.hardware.device import Device
from specmargin.prices.kernels.kinds import arithmetic_of
from specmargin.step import BoolArray, FloatArray

FASTEST = 1.03  # times the datasheet's bandwidth or rate: beyond that, a row did not read or compute what it claims to
# A kernel that only reads weights reaches 0.6 to 0.95 of the bandwidth on every GPU and in every format. One that stays
# below a third takes longer than the unquantized kernel (half or a quarter of the bytes, at a third of the rate):
# an untuned tile, a reference path, or weights that were stored in a wider format than the table says.
SLOWEST = 1.0 / 3.0
# Reads of this duration at full bandwidth, by few positions: launches and products no longer matter.
READ_SECONDS = 150e-6
FEW_POSITIONS = 64
# Level-2 caches that hold the weights of a kernel between the repeats of a benchmark, and that take longer to fill from
# memory than a kernel takes to start (sizes: NVIDIA's Ada and RTX Blackwell PRO whitepapers). In a served step other
# layers evict the weights.
CACHE_BYTES = {"l40s": 96e6, "rtx-pro-6000": 128e6}
_CACHED = (0.1, 1.5)  # times the cache: below, a read takes no time beside the launch; above, it comes from memory
_EAGER = {"arc-pro-b60"}  # vLLM 0.26 launches every kernel on Intel GPUs: so do its rows, and so do served steps
WARM = 0.1  # of the rows that only read: so many faster than memory, and the whole table was timed with a warm cache
STRAY = 2.0  # times as fast as the neighbours on both sides say


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What no kernel of a device exceeds, by the datasheet."""

    bytes_per_second: float
    operations_per_second: float = np.inf  # in the arithmetic of the rows
    cache_bytes: float = 0.0
    graphs: bool = True  # engines replay graphs on it, so a row with launches in it says nothing about a served step

    @classmethod
    def of(cls, device: Device, dtype: str) -> Peaks:
        rate = device.rate(arithmetic_of(dtype))
        return cls(
            bytes_per_second=device.bandwidth_bytes_per_second,
            operations_per_second=rate,
            cache_bytes=CACHE_BYTES.get(device.name, 0.0),
            graphs=device.name not in _EAGER,
        )

    def cached(self, read_bytes: FloatArray) -> BoolArray:
        """Reads that the cache served while the kernel was timed."""
        low, high = _CACHED
        return np.asarray((read_bytes > low * self.cache_bytes) & (read_bytes < high * self.cache_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Rows that were left out: of which kernel ("": of any), how many, and why."""

    kernel: str
    rows: int
    reason: str


def strays(rows: pl.DataFrame, shape: list[str], axis: str) -> BoolArray:
    """Rows of experts twice as fast as their two neighbours along `axis` say. `rows` are sorted by shape and axis.

    Not for GEMMs, whose libraries switch kernels from size to size: there the fast row is right.
    Rows that are slower than their neighbours need no check: more work never takes less time, so a size is priced at
    most like the next larger one (`tables.py`), and libraries do switch to slower kernels for some sizes.
    """
    number = rows.select(pl.struct(shape).rank("dense")).to_series().to_numpy()
    log_size, log_seconds = (np.log(rows[name].to_numpy().astype(np.float64)) for name in (axis, "seconds"))
    inner = np.flatnonzero((number[1:-1] == number[:-2]) & (number[1:-1] == number[2:])) + 1
    left, right = inner - 1, inner + 1
    share = (log_size[inner] - log_size[left]) / (log_size[right] - log_size[left])
    expected = (1.0 - share) * log_seconds[left] + share * log_seconds[right]
    mask = np.zeros(rows.height, dtype=bool)
    mask[inner] = log_seconds[inner] < expected - np.log(STRAY)
    return mask


def without(rows: pl.DataFrame, mask: BoolArray, kernel: str, reason: str) -> tuple[pl.DataFrame, list[Dropped]]:
    count = int(mask.sum())
    if count == 0:
        return rows, []
    return rows.filter(pl.Series(~mask)), [Dropped(kernel=kernel, rows=count, reason=reason)]


def read_share(read_bytes: FloatArray, seconds: FloatArray, positions: FloatArray, bandwidth: float) -> float | None:
    """Median share of the bandwidth over the rows that only read; None where there are none."""
    only_reads = (read_bytes >= bandwidth * READ_SECONDS) & (positions <= FEW_POSITIONS)
    return float(np.median((read_bytes / seconds)[only_reads])) / bandwidth if only_reads.any() else None


def too_slow(share: float) -> str:
    """Why a kernel that reads at this share of the bandwidth is dropped; "" where it is not."""
    if share >= SLOWEST:
        return ""
    return f"reads weights at {share:.0%} of the memory bandwidth where other kernels of this GPU reach 60 to 95%"
