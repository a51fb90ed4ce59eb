"""The CUDA graph that a step runs in: vLLM pads steps to captured sizes, and a table of depths misses some full graphs.

Padded rows are routed like tokens, so they touch experts of their own. vLLM 0.32's second model runner rounds every
size up to a multiple of each depth's positions, and looks for a step's graph only among those of the next size that any
depth has (`CudaGraphManager._init_candidates`). Where the step's own depth has none there, piecewise graphs run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from specmargin.step import BoolArray, IntArray


class Graphs(NamedTuple):
    """By sequences and depth. Steps beyond the largest graph are not padded."""

    positions: IntArray
    full: BoolArray


def vllm_sizes(largest: int) -> list[int]:
    """What vLLM captures by default up to the largest size."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return [size for size in sizes if size <= largest]


def exact_graphs(max_batch: int, max_depth: int) -> Graphs:
    """A full graph of its own for every step."""
    positions = np.outer(np.arange(max_batch + 1), np.arange(1, max_depth + 2))
    return Graphs(positions=positions, full=np.ones(positions.shape, dtype=np.bool_))


def captured_graphs(sizes: Sequence[int], depths: Iterable[int], max_batch: int, max_depth: int) -> Graphs:
    """Of an engine that drafts `depths`; others have graphs as if they were the only one."""
    found, sizes, together = exact_graphs(max_batch, max_depth), sorted(sizes), sorted(set(depths))
    for depth in range(max_depth + 1):
        captured = _captured(sizes, together if depth in together else [depth], max_batch)
        by_size: dict[int, set[int]] = {}
        for size, of in captured:
            by_size.setdefault(size, set()).add(of)
        ends = np.array(sorted(by_size), dtype=np.int64)
        for batch in range(1, max_batch + 1):
            positions = batch * (depth + 1)
            if positions > sizes[-1]:
                break
            index = int(np.searchsorted(ends, positions))
            full = index < ends.size and depth in by_size[int(ends[index])]
            padded = int(ends[index]) if full else sizes[int(np.searchsorted(sizes, positions))]
            found.positions[batch, depth], found.full[batch, depth] = padded, full
    return found


def _captured(sizes: Sequence[int], depths: Iterable[int], max_batch: int) -> list[tuple[int, int]]:
    """Positions and depth of every full graph."""
    rounded = [(-(-size // (depth + 1)) * (depth + 1), depth) for size in sizes for depth in depths]
    return [(size, depth) for size, depth in rounded if size <= sizes[-1] and size // (depth + 1) <= max_batch]
