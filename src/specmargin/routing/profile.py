"""Routing profiles: how positions choose experts. Uniform routing is one of them, never a hidden default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Protocol

import numpy as np

from specmargin.architecture.types import Architecture, ExpertPool
from specmargin.caches import IdentityCache
from specmargin.errors import RoutingError
from specmargin.modes import Placement
from specmargin.routing import coverage
from specmargin.routing.curves import CurveRouting
from specmargin.routing.kept import kept_shares
from specmargin.routing.local import LocalRouting
from specmargin.routing.placement import PlacedRouting
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

    def local(self, pool: ExpertPool) -> LocalRouting | None:
        """The profile by layer and expert; None where all layers and experts are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformRouting:
    """Every expert equally likely, every position independent. Real routing touches fewer experts."""

    name: str
    source: Source
    distinct: Callable[[ExpertPool, FloatArray], FloatArray]  # mean by positions

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray:
        return self.distinct(pool, step.positions)

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray:
        return coverage.uniform_variance(pool, step.positions)

    def local(self, pool: ExpertPool) -> LocalRouting | None:  # noqa: ARG002
        return None


UNIFORM = UniformRouting(
    name="uniform",
    source=assumed("uniform routing: every expert equally likely, neighbours independent (an upper bound)"),
    distinct=coverage.uniform_mean,
)
# To reproduce published grids that assume it.
WITH_REPLACEMENT = UniformRouting(
    name="uniform-with-replacement",
    source=assumed("experts drawn with replacement, as some published grids do"),
    distinct=coverage.with_replacement_mean,
)


@dataclass(frozen=True, kw_only=True)
class ModelRouting:
    """The profile of one model, and curves for any other pool (a drafter with experts of its own)."""

    own: LocalRouting
    others: CurveRouting

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def source(self) -> Source:
        return self.own.source

    def local(self, pool: ExpertPool) -> LocalRouting:
        same = (pool.experts, pool.experts_per_token) == (self.own.pool.experts, self.own.pool.experts_per_token)
        return self.own if same else self.others.local(pool)

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray:
        return self.local(pool).mean(pool, step)

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray:
        return self.local(pool).variance(pool, step)


_CACHED_STEPS = 96  # grids of some thousand steps: some megabytes
_counters: IdentityCache[ExpertCounter] = IdentityCache(maxsize=4)
_lock = Lock()


def check_model(profile: LocalRouting, architecture: Architecture) -> None:
    """Refuse the profile of another model: experts, experts per token and MoE layers must agree."""
    routed = sum(group.count for group, _ in architecture.expert_groups)
    for pool in architecture.pools:
        profile.check(pool)
    if architecture.pools and routed != profile.layers:
        raise RoutingError(
            f"routing profile {profile.name} has {profile.layers} layers; {architecture.name} routes in {routed}"
        )


def expert_counter(
    profile: RoutingProfile,
    ranks: int = 1,
    placement: Placement = Placement.CONTIGUOUS,
    redundant: int = 0,
    kept: int = 0,
) -> ExpertCounter:
    """Count the experts of a step on the busiest of `ranks` expert-parallel ranks, copies of `redundant` among them.

    Where a profile identifies the experts, they are placed on ranks by `placement`; where it does not, placement is
    random and the touched experts are a random subset. `kept`: the most popular experts per layer, which a GPU keeps
    while the others are in main memory.
    """
    placed: dict[ExpertPool, PlacedRouting] = {}
    share_kept = kept_shares(profile.local, kept)

    def spread(pool: ExpertPool, step: Step) -> tuple[FloatArray, FloatArray]:
        mean = profile.mean(pool, step)
        local = profile.local(pool)
        slots = replace(pool, experts=pool.experts + redundant) if redundant else pool
        if local is None or not local.identified:
            filled = coverage.filled_slots(mean, pool.experts, slots.experts)
            busiest = coverage.busiest_rank_mean(slots, ranks, filled, profile.variance(pool, step))
            return busiest, coverage.busiest_rank_pairs(slots, ranks, step.positions, busiest)
        if pool not in placed:
            placed[pool] = PlacedRouting(profile=local, placement=placement, ranks=ranks, redundant=redundant)
        busiest = mean * placed[pool].busiest_share(step)
        even = coverage.busiest_rank_pairs(slots, ranks, step.positions, busiest)
        share = placed[pool].busiest_pair_share()
        return busiest, np.maximum(even, step.positions * pool.experts_per_token * share)

    def load(pool: ExpertPool, step: Step) -> tuple[FloatArray, FloatArray]:
        if ranks == 1:
            return profile.mean(pool, step), step.positions * pool.experts_per_token
        return spread(pool, step)

    def count(pools: tuple[ExpertPool, ...], step: Step) -> ExpertLoad:
        by_pool = {pool: load(pool, step) for pool in dict.fromkeys(pools)}  # most models have one pool for all layers
        shares = {pool: share_kept(pool, step) for pool in by_pool} if kept else {}
        return ExpertLoad(
            distinct_by_group=tuple(by_pool[pool][0] for pool in pools),
            pairs_by_group=tuple(by_pool[pool][1] for pool in pools),
            kept_distinct_by_group=tuple(by_pool[pool][0] * shares[pool][0] for pool in pools if kept),
            kept_pairs_by_group=tuple(by_pool[pool][1] * shares[pool][1] for pool in pools if kept),
        )

    return count


def shared_counter(
    profile: RoutingProfile, ranks: int, placement: Placement, redundant: int = 0, kept: int = 0
) -> ExpertCounter:
    """`expert_counter` with a cache of recent steps, shared by all scenarios of one profile: other drafters, engines,
    prices and models with the same experts are counted once."""
    with _lock:
        return _counters.get(
            (id(profile), ranks, placement, redundant, kept),
            profile,
            lambda: remembering(expert_counter(profile, ranks, placement, redundant, kept)),
        )


def remembering(count: ExpertCounter) -> ExpertCounter:
    """The same counter with a cache of recent steps. Experts do not depend on context, so a grid is counted once for
    all contexts."""
    cache: dict[tuple[object, ...], ExpertLoad] = {}

    def cached_count(pools: tuple[ExpertPool, ...], step: Step) -> ExpertLoad:
        key = (pools, step.run_by_class.shape, step.run_by_class.tobytes(), step.count_by_class.tobytes())
        load = cache.get(key)  # read once: the explorer calls from several threads, and another may clear the cache
        if load is None:
            load = count(pools, step)
            if len(cache) >= _CACHED_STEPS:
                cache.clear()
            cache[key] = load
        return load

    return cached_count
