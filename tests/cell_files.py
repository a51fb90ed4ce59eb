"""Reads the table of a cell of the static site, as `static/cell.js` does."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from specmargin.show.site.grids import QUANTUM
from specmargin.step import FloatArray


def unpacked(content: bytes, shapes: Sequence[tuple[int, int]]) -> list[FloatArray]:
    """Tables of these numbers of rows and columns; nothing may be left."""
    numbers = np.frombuffer(zlib.decompress(content), dtype=np.uint8).reshape(4, -1).T.copy().view("<i4").ravel()
    ends = np.cumsum([rows * columns for rows, columns in shapes])
    assert ends[-1] == numbers.size
    parts = zip(np.split(numbers, ends[:-1]), shapes, strict=True)
    return [np.cumsum(part.reshape(shape), axis=1) * QUANTUM for part, shape in parts]
