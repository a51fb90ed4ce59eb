"""The most popular experts of a layer, which a GPU keeps while the others are in main memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.routing.local import LocalRouting
from specmargin.step import FloatArray, Step

#: Shares of a step's distinct experts, and of its pairs of position and expert, that are among those kept.
KeptShares = Callable[[ExpertPool, Step], tuple[FloatArray, FloatArray]]


def kept_shares(local: Callable[[ExpertPool], LocalRouting | None], kept: int) -> KeptShares:
    """By the profile's popularity; without one every expert is alike, and both shares are `kept` / experts.

    Pairs: the popularity of those kept, which is their hit share. Distinct experts: as if positions chose one
    independently of another; popular experts are touched sooner, so the share falls towards `kept` / experts as
    positions are added. Runs of one sequence share experts, so it falls a little later than this.
    """

    @cache
    def popularity(pool: ExpertPool) -> FloatArray | None:
        profile = local(pool)
        if profile is None:
            return None
        return np.minimum(-np.sort(-profile.popularity_by_layer_expert, axis=1), 1.0)

    def shares(pool: ExpertPool, step: Step) -> tuple[FloatArray, FloatArray]:
        ranked = popularity(pool)
        if ranked is None:
            even = np.full(step.positions.shape, min(kept / pool.experts, 1.0))
            return even, even
        hits = float(ranked[:, :kept].sum() / ranked.sum())
        return _distinct_share(ranked, kept, step.positions), np.full(step.positions.shape, hits)

    return shares


def _distinct_share(ranked: FloatArray, kept: int, positions: FloatArray) -> FloatArray:
    """Of arrays (layers, experts), the most popular first."""
    flat, inverse = np.unique(np.maximum(positions, 1.0), return_inverse=True)
    with np.errstate(divide="ignore"):
        log_miss = np.maximum(np.log1p(-ranked), -700.0)  # of an expert that every position uses: e^-700
    touched = -np.expm1(flat[:, np.newaxis, np.newaxis] * log_miss).sum(axis=1)  # (positions, experts)
    share = touched[:, :kept].sum(axis=1) / touched.sum(axis=1)
    return np.asarray(share[inverse].reshape(positions.shape))
