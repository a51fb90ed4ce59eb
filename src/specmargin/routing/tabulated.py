"""Distinct experts by number of positions: of independent sequences, of one run, by popularity alone, and uniform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.errors import ScenarioError
from specmargin.routing import coverage as maths
from specmargin.routing.local import LocalRouting
from specmargin.routing.profile import RoutingProfile
from specmargin.step import FloatArray, Step


def coverage_rows(
    pool: ExpertPool, profile: RoutingProfile, positions: Sequence[int], layer: int | None = None
) -> list[dict[str, Any]]:
    """One row per number of positions, for the mean layer or for one layer."""
    counts = np.asarray(positions)
    local = profile.local(pool)
    if layer is not None and local is not None and layer >= local.layers:
        raise ScenarioError(f"--layer {layer}: the routing profile {profile.name} has {local.layers} layers")
    width, depth = (
        _curve(profile, local, pool, steps, layer)
        for steps in (
            [Step.uniform(batch=count) for count in counts],
            [Step.uniform(batch=1, depth=count - 1) for count in counts],
        )
    )
    skew = width if local is None else _skew(local, counts, layer)
    uniform, stdev = maths.uniform_mean(pool, counts), np.sqrt(maths.uniform_variance(pool, counts))
    return [
        {
            "positions": int(count),
            "width": float(width[i]),
            "depth": float(depth[i]),
            "skew": float(skew[i]),
            "uniform": float(uniform[i]),
            "uniform_stdev": float(stdev[i]),
            "extrapolated": local is not None and bool(count > local.captured_run),
        }
        for i, count in enumerate(counts)
    ]


def _curve(
    profile: RoutingProfile, local: LocalRouting | None, pool: ExpertPool, steps: list[Step], layer: int | None
) -> FloatArray:
    if local is None or layer is None:
        return np.array([float(profile.mean(pool, step)) for step in steps])
    return np.array([local.mean_by_layer(step)[layer] for step in steps])


def _skew(local: LocalRouting, counts: FloatArray, layer: int | None) -> FloatArray:
    """Popularity alone: all positions independent."""
    p = local.popularity_by_layer_expert if layer is None else local.popularity_by_layer_expert[layer : layer + 1]
    return np.array([maths.skewed_mean(p, count).mean() for count in counts])
