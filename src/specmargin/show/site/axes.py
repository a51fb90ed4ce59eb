"""The contexts and batches at which a cell is priced.

Every batch to 512 is there at three contexts, since a schedule is decided batch by batch; beyond, as many as keep
interpolation exact enough. Other contexts have a few batches, which correct the interpolation between the three:
attention bends where it turns from memory-bound to compute-bound, at windows, and at the knots of measured tables.
"""

from __future__ import annotations

import numpy as np

from specmargin.decisions.plan import HORIZON
from specmargin.decisions.schedule import ONE_BY_ONE, spread
from specmargin.decisions.setting import Setting
from specmargin.show.site import codes
from specmargin.step import FloatArray

CONTEXTS = (1024, 8192, 65_536)  # with every batch
#: Every fourth of an octave, in the order in which they are stored: octaves, their halves, their quarters.
COARSE_CONTEXTS = tuple(
    round(512 * 2 ** (quarter / 4))
    for start, distance in ((0, 4), (2, 4), (1, 2))
    for quarter in range(start, 33, distance)
)
OCTAVES = COARSE_CONTEXTS[:9]
SAMPLED = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192.0])
_KNOTS = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
_MORE_KNOTS = (768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


def _beyond() -> FloatArray:
    """Batches above 512: those that a schedule up to the horizon looks at, and one between any two of them."""
    looked_at = spread(HORIZON)[ONE_BY_ONE - 1 :].astype(np.float64)
    return np.union1d(looked_at, ((looked_at[1:] + looked_at[:-1]) / 2.0).round())[1:]


BEYOND = _beyond()


def batches_up_to(most: int) -> FloatArray:
    """Every batch to 512, and those beyond it of which the last holds `most`."""
    count = int(np.searchsorted(BEYOND, min(most, HORIZON))) + 1 if most > ONE_BY_ONE else 0
    return np.concatenate([np.arange(1.0, ONE_BY_ONE + 1.0), BEYOND[:count]])


def knots(largest: float, setting: Setting) -> FloatArray:
    """A few batches up to `largest`, with the last that has a CUDA graph at each depth and the one after it."""
    limit = setting.graph_limit
    edges = [] if limit is None else [limit // (depth + 1) for depth in range(setting.max_depth + 1)]
    after = [edge + 1 for edge in edges[:2]]  # deeper steps without a graph are not stored
    found = {float(batch) for batch in (*_KNOTS, *_MORE_KNOTS, *edges, *after) if 1 <= batch <= max(largest, 1.0)}
    return np.array(sorted(found | {largest}))


def shared() -> dict[str, object]:
    """What all cells have in common, for `static/cell.js`."""
    return {
        "one_by_one": ONE_BY_ONE,
        "beyond": BEYOND.astype(int).tolist(),
        "sampled": SAMPLED.astype(int).tolist(),
        "coarse": COARSE_CONTEXTS,
        "octaves": OCTAVES,
        "quanta": {
            "seconds": codes.QUANTUM,
            "corrections": codes.COARSE,
            "experts": codes.EXPERTS,
            "bytes": codes.BYTES,
            "moved": codes.MOVED,
        },
    }
