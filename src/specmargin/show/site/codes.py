"""Tables of numbers in few bytes: quantised, as differences from what is known already, in variable length.

A table has a row per context and a series per column. A series stores what interpolation between the contexts before it
misses, or how that changed from the column before, as differences of whichever order is shortest: prices are smooth, so
most numbers take one byte before compression and a fraction of one after it. `static/coding.js` reads what this module
writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from specmargin.step import FloatArray, IntArray

QUANTUM = 3e-6  # of about a plain step: an error of at most half of it, 0.00015%
COARSE = 2e-5  # of about a plain step: of corrections between contexts
EXPERTS = 0.01
BYTES = 0.125  # of a sequence: all formats have whole eighths
MOVED = 1e-4  # of the effect of uniform routing, which only widens a range
_ORDERS = 4  # of differences along a series, from 0

Row = Sequence[IntArray]  # by column; a series may end early


def quantised(values: FloatArray, quantum: float) -> IntArray:
    return np.asarray(np.round(np.asarray(values, dtype=np.float64) / quantum), dtype=np.int64)


def series(values: FloatArray, quantum: float) -> Row:
    """One per column, up to its first missing number."""
    return [quantised(column[~np.isnan(column)], quantum) for column in values.T]


def coded(table: Mapping[float, Row]) -> Iterator[IntArray]:
    """The series of a table, rows by context: how each is coded, its length, and its numbers."""
    known: dict[float, Row] = {}
    for tokens, row in table.items():
        missed: list[IntArray] = []
        for column, numbers in enumerate(row):
            by_context = {other: before[column][: numbers.size] for other, before in known.items()}
            missed.append(numbers - np.floor(interpolated(by_context, tokens, outside=False) + 0.5).astype(np.int64))
            yield _shortest(missed)
        known[tokens] = row


def interpolated(known: Mapping[float, FloatArray | IntArray], tokens: float, *, outside: bool) -> FloatArray:
    """Linear in the context; beyond the ends too if `outside`, else as at the end."""
    contexts = sorted(known)
    if len(contexts) < 2:
        return np.asarray(known[contexts[0]] if contexts else 0.0, dtype=np.float64)
    after = int(np.clip(np.searchsorted(contexts, tokens, side="right"), 1, len(contexts) - 1))
    low, high = contexts[after - 1], contexts[after]
    share = (tokens - low) / (high - low)
    share = share if outside else min(max(share, 0.0), 1.0)
    return np.asarray((1.0 - share) * known[low] + share * known[high])


def _shortest(missed: Sequence[IntArray]) -> IntArray:
    """Of the last column: as it is, as its change from the column before, or as the change of that."""
    last, *before = missed[::-1]
    length = last.size
    left = [column[:length] for column in before[:2] if column.size >= length]
    tried = [last, *([last - left[0]] if left else []), *([last - 2 * left[0] + left[1]] if len(left) == 2 else [])]
    candidates: list[IntArray] = []
    for numbers in tried:
        candidates.append(numbers)
        for _ in range(_ORDERS - 1):
            differences = candidates[-1].copy()  # numpy.diff takes five times as long
            differences[1:] -= candidates[-1][:-1]
            candidates.append(differences)
    bits = [float(np.log2(1.0 + 2.0 * np.abs(each)).sum()) for each in candidates]
    best = int(np.argmin(bits))
    return np.concatenate([[best, length], candidates[best]])


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


def packed(header: bytes, parts: Iterable[IntArray]) -> bytes:
    """One file: the length of the compressed header, the header, and the numbers, compressed as numbers are best."""
    text = zlib.compress(header, 9)
    press = zlib.compressobj(9, strategy=zlib.Z_FILTERED)
    numbers = b"".join(press.compress(varints(part.tolist())) for part in parts) + press.flush()
    return len(text).to_bytes(4, "little") + text + numbers
