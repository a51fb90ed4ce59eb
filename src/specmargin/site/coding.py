"""Numbers of a grid in few bytes: quantised, as differences from what their neighbours predict, in variable length.

Prices are smooth in the batch, so second differences are small; most take one byte before compression, and a fraction
of one after it. `static/cell.js` reads what this module writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from specmargin.step import FloatArray, IntArray

QUANTUM = 3e-6  # of about a plain step: an error of at most half of it, 0.00015%
EXPERTS = 0.01
BYTES = 0.125  # of a sequence: all formats have whole eighths
COARSE = 3e-4  # of corrections between contexts
MOVED = 2e-5  # of the effect of uniform routing, which only widens a range


def quantised(values: FloatArray, quantum: float = QUANTUM) -> IntArray:
    return np.asarray(np.round(np.asarray(values, dtype=np.float64) / quantum), dtype=np.int64)


def restored(values: IntArray, quantum: float = QUANTUM) -> FloatArray:
    return np.asarray(values, dtype=np.float64) * quantum


def second_differences(values: IntArray) -> IntArray:
    """The first value, the first difference, and then how much each difference changes."""
    return np.diff(np.diff(values, prepend=0), prepend=0)


def second_sums(values: IntArray) -> IntArray:
    return np.asarray(np.cumsum(np.cumsum(values)), dtype=np.int64)


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
    """One file: the length of the header, the header, and the second differences of every series, compressed."""
    numbers = b"".join(varints(second_differences(part).tolist()) for part in series)
    return zlib.compress(len(header).to_bytes(4, "little") + header + numbers, 9)


def unpacked(content: bytes) -> tuple[bytes, IntArray]:
    """The header, and all second differences in one array."""
    plain = zlib.decompress(content)
    end = 4 + int.from_bytes(plain[:4], "little")
    return plain[4:end], read_varints(plain[end:])
