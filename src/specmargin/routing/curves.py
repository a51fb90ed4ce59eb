"""Routing by four numbers per layer: how popularity falls with rank, and how runs grow. Fits any pool of experts.

    share of the expert at rank fraction u:   ∝ exp(−rate · u^shape)
    effective positions of a run of q:        m(1) = 1, m(q) = second · (q / 2)^growth for q ≥ 2

Experts have no ids, so such a profile counts experts but cannot be mixed or placed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.routing.local import LocalRouting, from_curves
from specmargin.sources import Source
from specmargin.step import FloatArray, Step

LONGEST_RUN = 32


@dataclass(frozen=True, kw_only=True)
class CurveRouting:
    """A routing profile for any model: the curves of one model, scaled to the experts of another."""

    name: str
    source: Source
    rate_by_layer: FloatArray
    shape_by_layer: FloatArray
    second_by_layer: FloatArray  # m(2)
    growth_by_layer: FloatArray
    captured_run: int
    _by_pool: dict[ExpertPool, LocalRouting] = field(default_factory=dict, compare=False)

    def local(self, pool: ExpertPool) -> LocalRouting:
        if pool not in self._by_pool:
            self._by_pool[pool] = from_curves(
                name=self.name,
                source=self.source,
                pool=pool,
                popularity_by_layer_expert=popularity(self.rate_by_layer, self.shape_by_layer, pool),
                effective_by_run_layer=effective_positions(self.second_by_layer, self.growth_by_layer),
                captured_run=self.captured_run,
            )
        return self._by_pool[pool]

    def towards_uniform(self, weight: float, *, name: str, source: Source) -> CurveRouting:
        """Between these curves (0) and uniform routing (1), in popularity and in locality.

        Uniform routing has rate 0, and a run of q counts as q independent positions: m(2) = 2, growth 1.
        """
        return replace(
            self,
            name=name,
            source=source,
            rate_by_layer=(1.0 - weight) * self.rate_by_layer,
            second_by_layer=self.second_by_layer ** (1.0 - weight) * 2.0**weight,
            growth_by_layer=(1.0 - weight) * self.growth_by_layer + weight,
            _by_pool={},
        )

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray:
        return self.local(pool).mean(pool, step)

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray:
        return self.local(pool).variance(pool, step)


def popularity(rate_by_layer: FloatArray, shape_by_layer: FloatArray, pool: ExpertPool) -> FloatArray:
    """Probability that a position routes to each expert, most popular first: (layers, experts), k in every layer."""
    u = (np.arange(pool.experts) + 0.5) / pool.experts
    share = np.exp(-rate_by_layer[:, np.newaxis] * u ** shape_by_layer[:, np.newaxis])
    share /= share.sum(axis=1, keepdims=True)
    return capped(share * pool.experts_per_token)


def capped(p: FloatArray) -> FloatArray:
    """Probabilities of at most one; the excess goes to the others in proportion, so every layer keeps its sum."""
    total = p.sum(axis=1, keepdims=True)
    for _ in range(p.shape[1]):
        over = p > 1.0
        if not over.any():
            return p
        fixed = np.minimum(p, 1.0)
        free = np.where(p >= 1.0, 0.0, p)
        missing = total - np.where(p >= 1.0, 1.0, 0.0).sum(axis=1, keepdims=True)
        p = np.where(p >= 1.0, fixed, free * missing / np.maximum(free.sum(axis=1, keepdims=True), 1e-300))
    return np.minimum(p, 1.0)


def effective_positions(second_by_layer: FloatArray, growth_by_layer: FloatArray) -> FloatArray:
    """m(q) for runs of 1 to LONGEST_RUN: (runs, layers)."""
    run = np.arange(1, LONGEST_RUN + 1)[:, np.newaxis]
    return np.where(run == 1, 1.0, second_by_layer * (run / 2.0) ** growth_by_layer)
