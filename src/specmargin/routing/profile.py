"""Routing profiles: how positions choose experts. Uniform routing is one of them, never a hidden default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.errors import InputError, nearest_names
from specmargin.routing import coverage
from specmargin.sources import Source, assumed
from specmargin.step import ExpertCounter, ExpertLoad, FloatArray, Step


class RoutingProfile(Protocol):
    """Distinct experts of one MoE layer in a step: mean and variance, each of the step's grid shape."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> Source: ...

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray: ...

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class UniformRouting:
    """Every expert equally likely, every position independent. Real routing touches fewer experts."""

    name: str = "uniform"
    source: Source = assumed("uniform routing: every expert equally likely, neighbours independent (an upper bound)")  # noqa: RUF009

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray:
        return coverage.uniform_mean(pool, step.positions)

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray:
        return coverage.uniform_variance(pool, step.positions)


@dataclass(frozen=True, slots=True)
class UniformWithReplacement:
    """Experts drawn with replacement: only to reproduce published grids that assume it."""

    name: str = "uniform-with-replacement"
    source: Source = assumed("experts drawn with replacement, as some published grids do")  # noqa: RUF009

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray:
        return coverage.with_replacement_mean(pool, step.positions)

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray:
        return coverage.uniform_variance(pool, step.positions)


@dataclass(frozen=True, slots=True)
class PopularityRouting:
    """Popularity without locality: expert e is chosen with probability p_e, positions are independent."""

    hit_probability_by_expert: FloatArray
    name: str
    source: Source

    def __post_init__(self) -> None:
        p = self.hit_probability_by_expert
        if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
            raise InputError(f"routing profile {self.name}: popularity must be probabilities, one an expert")

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray:
        return coverage.skewed_mean(self._checked(pool), step.positions)

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray:
        """Indicators of different experts are negatively correlated, so their sum of variances is an upper bound."""
        hit = -np.expm1(step.positions[..., np.newaxis] * np.log1p(-np.minimum(self._checked(pool), 1 - 1e-12)))
        return np.asarray((hit * (1.0 - hit)).sum(axis=-1))

    def _checked(self, pool: ExpertPool) -> FloatArray:
        p = self.hit_probability_by_expert
        if p.size != pool.experts or not np.isclose(p.sum(), pool.experts_per_token, rtol=1e-3):
            raise InputError(
                f"routing profile {self.name} is for {p.size} experts, {p.sum():.2f} a token; "
                f"this model has {pool.experts}, {pool.experts_per_token} a token"
            )
        return p


UNIFORM = UniformRouting()
_PROFILES: dict[str, RoutingProfile] = {profile.name: profile for profile in (UNIFORM, UniformWithReplacement())}


def find_routing(spec: str) -> RoutingProfile:
    try:
        return _PROFILES[spec.lower()]
    except KeyError:
        hint = nearest_names(spec, _PROFILES)
        raise InputError(f"unknown routing profile {spec!r}{hint}; known: {', '.join(_PROFILES)}") from None


def expert_counter(profile: RoutingProfile, ranks: int = 1) -> ExpertCounter:
    """Count the experts of a step on the busiest of `ranks` expert-parallel ranks, experts placed evenly."""

    def load(pool: ExpertPool, step: Step) -> tuple[FloatArray, FloatArray]:
        mean = profile.mean(pool, step)
        if ranks == 1:
            return mean, step.positions * pool.experts_per_token
        busiest = coverage.busiest_rank_mean(pool, ranks, mean, profile.variance(pool, step))
        return busiest, coverage.busiest_rank_pairs(pool, ranks, step.positions, busiest)

    def count(pools: tuple[ExpertPool, ...], step: Step) -> ExpertLoad:
        by_pool = {pool: load(pool, step) for pool in dict.fromkeys(pools)}  # most models have one pool for all layers
        return ExpertLoad(
            distinct_by_group=tuple(by_pool[pool][0] for pool in pools),
            pairs_by_group=tuple(by_pool[pool][1] for pool in pools),
        )

    return count
