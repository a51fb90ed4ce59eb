"""Numbers of a grid in few bytes: quantised, as differences from what their neighbours predict, in variable length.

Prices are smooth in the batch, so their differences, or the differences of these, are small; most take one byte before
compression, and a fraction of one after it. `static/cell.js` reads what this module writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from specmargin.step import FloatArray, IntArray

QUANTUM = 3e-6  # of about a plain step: an error of at most half of it, 0.00015%
EXPERTS = 0.01
BYTES = 0.125  # of a sequence: all formats have whole eighths
COARSE = 2e-5  # of about a plain step: of corrections between contexts
MOVED = 1e-4  # of the effect of uniform routing, which only widens a range
_HIGHEST_ORDER = 3


def quantised(values: FloatArray, quantum: float = QUANTUM) -> IntArray:
    return np.asarray(np.round(np.asarray(values, dtype=np.float64) / quantum), dtype=np.int64)


def restored(values: IntArray, quantum: float = QUANTUM) -> FloatArray:
    return np.asarray(values, dtype=np.float64) * quantum


def coded(series: IntArray) -> IntArray:
    """The order of the differences that take the fewest bits, and these differences."""
    tried = [series]
    for _ in range(_HIGHEST_ORDER):
        differences = tried[-1].copy()  # numpy.diff takes five times as long
        differences[1:] -= tried[-1][:-1]
        tried.append(differences)
    bits = [float(np.log2(1.0 + 2.0 * np.abs(each)).sum()) for each in tried]
    order = int(np.argmin(bits))
    return np.concatenate([[order], tried[order]])


def decoded(numbers: IntArray) -> IntArray:
    series = numbers[1:]
    for _ in range(int(numbers[0])):
        series = np.cumsum(series)
    return series


def varints(values: Iterable[int]) -> bytes:
    """Seven bits per byte, the sign in the lowest bit."""
    out = bytearray()
    for value in values:
        rest = 2 * value if value >= 0 else -2 * value - 1
        while rest >= 128:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def read_varints(content: bytes) -> IntArray:
    values, rest, shift = [], 0, 0
    for byte in content:
        rest |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(-(rest + 1) // 2 if rest & 1 else rest // 2)
            rest, shift = 0, 0
    return np.array(values, dtype=np.int64)


def packed(header: bytes, series: Iterable[IntArray]) -> bytes:
    """One file: the length of the compressed header, the header, and the series, compressed as numbers are best."""
    text = zlib.compress(header, 9)
    press = zlib.compressobj(9, strategy=zlib.Z_FILTERED)
    numbers = b"".join(press.compress(varints(coded(part).tolist())) for part in series) + press.flush()
    return len(text).to_bytes(4, "little") + text + numbers


def unpacked(content: bytes) -> tuple[bytes, IntArray]:
    """The header, and the numbers of all series in one array."""
    end = 4 + int.from_bytes(content[:4], "little")
    return zlib.decompress(content[4:end]), read_varints(zlib.decompress(content[end:]))
