"""Reads the file of a cell of the static site, as `static/coding.js` does."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from specmargin.show.site.codes import interpolated
from specmargin.step import IntArray


def header_of(content: bytes) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(zlib.decompress(content[4 : _end(content)]))
    return values


def numbers_of(content: bytes) -> Iterator[int]:
    return read_varints(zlib.decompress(content[_end(content) :]))


def _end(content: bytes) -> int:
    return 4 + int.from_bytes(content[:4], "little")


def read_varints(content: bytes) -> Iterator[int]:
    rest, shift = 0, 0
    for byte in content:
        rest |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield -(rest + 1) // 2 if rest & 1 else rest // 2
            rest, shift = 0, 0


def read_table(numbers: Iterator[int], contexts: Sequence[float], columns: int) -> dict[float, list[IntArray]]:
    rows: dict[float, list[IntArray]] = {}
    for tokens in contexts:
        row: list[IntArray] = []
        missed: list[IntArray] = []
        for column in range(columns):
            code, length = next(numbers), next(numbers)
            series = np.array([next(numbers) for _ in range(length)], dtype=np.int64)
            for _ in range(code % 4):
                series = np.cumsum(series)
            if code >= 8:
                series = series + 2 * missed[-1][:length] - missed[-2][:length]
            elif code >= 4:
                series = series + missed[-1][:length]
            missed.append(series)
            known = {other: before[column][:length] for other, before in rows.items()}
            row.append(series + np.floor(interpolated(known, tokens, outside=False) + 0.5).astype(np.int64))
        rows[tokens] = row
    return rows
