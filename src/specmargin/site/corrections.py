"""Corrections between contexts: what linear interpolation misses, at a few batches.

Attention bends where it turns from memory-bound to compute-bound, at windows, and at the knots of measured tables. Each
context halves the distance between two earlier ones, so that it stores only what their line misses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from specmargin.decisions.setting import Setting
from specmargin.site.coding import quantised
from specmargin.step import BoolArray, FloatArray, IntArray

#: Every fourth of an octave, in the order in which they are stored: octaves, their halves, their quarters.
CONTEXTS = tuple(
    round(512 * 2 ** (quarter / 4))
    for start, distance in ((0, 4), (2, 4), (1, 2))
    for quarter in range(start, 33, distance)
)
OCTAVES = CONTEXTS[:9]
_BATCHES = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
_BEYOND = (768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


def knots(largest: float, setting: Setting) -> FloatArray:
    """Batches up to `largest`, with the last that has a CUDA graph at each depth and the one after it."""
    limit = setting.graph_limit
    edges = [] if limit is None else [limit // (depth + 1) for depth in range(setting.max_depth + 1)]
    after = [edge + 1 for edge in edges[:2]]  # deeper steps without a graph are not stored
    found = {float(batch) for batch in (*_BATCHES, *_BEYOND, *edges, *after) if 1 <= batch <= max(largest, 1.0)}
    return np.array(sorted(found | {largest}))


def corrections(
    priced: Mapping[float, FloatArray], contexts: Sequence[float], between: Sequence[float], kept: BoolArray
) -> Iterator[IntArray]:
    """By context of `between` and column. `priced`: at each context, by knot and column, in units of storage."""
    exact = {tokens: priced[tokens] for tokens in contexts}
    known = {tokens: np.zeros(kept.shape) for tokens in contexts}
    for tokens in between:
        predicted = interpolated(known, tokens)
        stored = quantised(priced[tokens] - interpolated(exact, tokens) - predicted, 1.0)
        known[tokens] = predicted + stored
        for column in range(kept.shape[1]):  # depths bend alike
            yield (stored[:, column] - (stored[:, column - 1] if column else 0))[kept[:, column]]


def interpolated(known: Mapping[float, FloatArray], tokens: float) -> FloatArray:
    """Linear in the context, beyond the ends too."""
    contexts = sorted(known)
    if len(contexts) == 1:
        return known[contexts[0]]
    after = int(np.clip(np.searchsorted(contexts, tokens), 1, len(contexts) - 1))
    low, high = contexts[after - 1], contexts[after]
    share = (tokens - low) / (high - low)
    return (1.0 - share) * known[low] + share * known[high]
