"""From the counts of a capture to a profile."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.routing.counting import CategoryCounts, draw_distinct
from specmargin.routing.local import REPULSION_BATCHES, log_miss, repulsion
from specmargin.routing.schema import CategoryFile, CurveFile, RoutingFile, encoded, knots_up_to
from specmargin.step import FloatArray

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_DRAWS = 1000
_VARIANCE_DRAWS = 4000  # over the batch


def build_profile(
    counts: Mapping[str, CategoryCounts], *, name: str, pool: ExpertPool, provenance: str, seed: int = 0
) -> RoutingFile:
    first = next(iter(counts.values()))
    longest = _longest_run(counts)
    knots = knots_up_to(longest)
    return RoutingFile(
        schema="specmargin.routing/1",
        name=name,
        experts=pool.experts,
        experts_per_token=pool.experts_per_token,
        layers=first.chosen_by_layer_expert.shape[0],
        longest_run=longest,
        knots=knots,
        provenance=provenance,
        categories={name: _category(found, pool, longest, knots, seed) for name, found in counts.items()},
    )


def _longest_run(counts: Mapping[str, CategoryCounts]) -> int:
    """The longest run that at least one in a hundred runs of every category has."""
    shares = [found.runs_by_length / found.runs_by_length[0] for found in counts.values()]
    return int(min(np.flatnonzero(share >= 0.01)[-1] for share in shares)) + 1


def _category(found: CategoryCounts, pool: ExpertPool, longest: int, knots: list[int], seed: int) -> CategoryFile:
    runs = found.runs_by_length[:longest, np.newaxis]
    hit = np.moveaxis(found.hits_by_layer_expert_length, 2, 0)[:longest] / runs[:, :, np.newaxis]
    mean = found.distinct_by_length_layer[:longest] / runs
    variance = found.distinct_squared_by_length_layer[:longest] / runs - mean**2
    generator = np.random.default_rng(seed)
    pairs = np.maximum(found.pairs_by_lag[1:longest, np.newaxis], 1.0)
    popularity = found.chosen_by_layer_expert / found.positions
    return CategoryFile(
        rounds=found.rounds,
        positions=found.positions,
        requests=len(found.sums_by_request),
        popularity=encoded(popularity, "u2"),
        hit_of_one=encoded(hit[0], "u2"),
        hit_of_runs=encoded(hit[np.array(knots[1:], dtype=np.int64) - 1], "u1"),
        repulsion=_rounded(_repulsions(found, hit, variance.mean(axis=1), generator)),
        overlap_by_lag=_rounded(found.shared_by_lag_layer[1:longest] / pairs),
        depth=_depth(found, mean, longest),
        width=_width(found, pool, generator),
        decay_by_layer=_decays(popularity),
    )


def _depth(found: CategoryCounts, mean: FloatArray, longest: int) -> CurveFile:
    """Standard errors over requests: the rounds of one request are alike."""
    sums = np.array(list(found.sums_by_request.values()))[:, :, :longest]
    runs, total = sums[:, 0], sums[:, 1]
    whole = total.sum(axis=0) / runs.sum(axis=0)
    requests = (runs > 0).sum(axis=0)
    spread = ((total - whole * runs) ** 2).sum(axis=0) / runs.sum(axis=0) ** 2
    error = np.sqrt(spread * requests / np.maximum(requests - 1, 1))
    return CurveFile(
        positions=list(range(1, longest + 1)),
        mean=[round(float(value), 4) for value in mean.mean(axis=1)],
        standard_error=[round(float(value), 5) for value in error],
    )


def _width(found: CategoryCounts, pool: ExpertPool, generator: np.random.Generator) -> CurveFile:
    """Strangers: first positions of runs drawn at random."""
    kept = found.kept
    drawn = [
        draw_distinct(kept, batch=width, run=1, draws=_DRAWS, experts=pool.experts, generator=generator).mean(axis=1)
        for width in _WIDTHS
    ]
    return CurveFile(
        positions=list(_WIDTHS),
        mean=[round(float(found.mean()), 4) for found in drawn],
        standard_error=[round(float(found.std(ddof=1) / np.sqrt(_DRAWS)), 5) for found in drawn],
    )


def _repulsions(
    found: CategoryCounts, hit: FloatArray, variance_by_run: FloatArray, generator: np.random.Generator
) -> FloatArray:
    """κ by run and batch: from the counts for one run, from drawn batches for more; runs in between interpolated."""
    longest, experts = hit.shape[0], hit.shape[2]
    kept = found.kept
    misses = log_miss(hit)
    runs = [run for run in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if run < longest] + [longest]
    kappa = np.empty((len(runs), len(REPULSION_BATCHES)))
    for row, run in enumerate(runs):
        for column, batch in enumerate(REPULSION_BATCHES):
            if batch == 1:
                variance = float(variance_by_run[run - 1])
            else:
                draws = max(_VARIANCE_DRAWS // batch, 200)
                drawn = draw_distinct(kept, batch=batch, run=run, draws=draws, experts=experts, generator=generator)
                variance = float(drawn.var(axis=0, ddof=1).mean())
            kappa[row, column] = repulsion(misses[run - 1], variance, batch)
    at = np.arange(1, longest + 1)
    return np.stack([np.interp(at, runs, column) for column in kappa.T], axis=1)


def _decays(popularity_by_layer_expert: FloatArray) -> list[float]:
    """Exponential fit of share against rank, a layer: the rate whose distribution has the same mean rank."""
    ranked = -np.sort(-popularity_by_layer_expert, axis=1)
    experts = ranked.shape[1]
    place = (np.arange(experts) + 0.5) / experts
    mean = (ranked * place).sum(axis=1) / ranked.sum(axis=1)
    rates = np.concatenate([[1e-6], np.geomspace(1e-3, 200.0, 400)])
    means = np.array([(np.exp(-rate * place) * place).sum() / np.exp(-rate * place).sum() for rate in rates])
    return [round(float(np.interp(-value, -means, rates)), 4) for value in mean]


def _rounded(values: FloatArray) -> list[list[float]]:
    return [[float(f"{value:.5g}") for value in row] for row in values]
