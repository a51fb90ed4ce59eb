"""Building the file of a routing profile from the counts of a capture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.routing.counts import CategoryCounts, draw_distinct
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
        categories={name: _category(category, pool, longest, knots, seed) for name, category in counts.items()},
    )


def _longest_run(counts: Mapping[str, CategoryCounts]) -> int:
    """The longest run length that at least 1% of the runs of every category reach."""
    shares = [category.runs_by_length / category.runs_by_length[0] for category in counts.values()]
    return int(min(np.flatnonzero(share >= 0.01)[-1] for share in shares)) + 1


def _category(counts: CategoryCounts, pool: ExpertPool, longest: int, knots: list[int], seed: int) -> CategoryFile:
    runs = counts.runs_by_length[:longest, np.newaxis]
    hit = np.moveaxis(counts.hits_by_layer_expert_length, 2, 0)[:longest] / runs[:, :, np.newaxis]
    mean = counts.distinct_by_length_layer[:longest] / runs
    variance = counts.distinct_squared_by_length_layer[:longest] / runs - mean**2
    generator = np.random.default_rng(seed)
    pairs = np.maximum(counts.pairs_by_lag[1:longest, np.newaxis], 1.0)
    popularity = counts.chosen_by_layer_expert / counts.positions
    return CategoryFile(
        rounds=counts.rounds,
        positions=counts.positions,
        requests=len(counts.sums_by_request),
        popularity=encoded(popularity, "u2"),
        hit_of_one=encoded(hit[0], "u2"),
        hit_of_runs=encoded(hit[np.array(knots[1:], dtype=np.int64) - 1], "u1"),
        repulsion=_rounded(_repulsions(counts, hit, variance.mean(axis=1), generator)),
        overlap_by_lag=_rounded(counts.shared_by_lag_layer[1:longest] / pairs),
        depth=_depth(counts, mean, longest),
        width=_width(counts, pool, generator),
        decay_by_layer=_decays(popularity),
    )


def _depth(counts: CategoryCounts, mean: FloatArray, longest: int) -> CurveFile:
    """Standard errors over requests: the rounds of one request are correlated."""
    sums = np.array(list(counts.sums_by_request.values()))[:, :, :longest]
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


def _width(counts: CategoryCounts, pool: ExpertPool, generator: np.random.Generator) -> CurveFile:
    """Independent positions: the first ones of runs drawn at random."""
    runs = counts.sampled_runs
    drawn = [
        draw_distinct(runs, batch=width, run=1, draws=_DRAWS, experts=pool.experts, generator=generator).mean(axis=1)
        for width in _WIDTHS
    ]
    return CurveFile(
        positions=list(_WIDTHS),
        mean=[round(float(distinct.mean()), 4) for distinct in drawn],
        standard_error=[round(float(distinct.std(ddof=1) / np.sqrt(_DRAWS)), 5) for distinct in drawn],
    )


def _repulsions(
    counts: CategoryCounts, hit: FloatArray, variance_by_run: FloatArray, generator: np.random.Generator
) -> FloatArray:
    """κ by run and batch: one run from the counts, larger batches from draws; run lengths in between interpolated."""
    longest, experts = hit.shape[0], hit.shape[2]
    sampled = counts.sampled_runs
    misses = log_miss(hit)
    runs = [run for run in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if run < longest] + [longest]
    kappa = np.empty((len(runs), len(REPULSION_BATCHES)))
    for row, run in enumerate(runs):
        for column, batch in enumerate(REPULSION_BATCHES):
            if batch == 1:
                variance = float(variance_by_run[run - 1])
            else:
                draws = max(_VARIANCE_DRAWS // batch, 200)
                drawn = draw_distinct(sampled, batch=batch, run=run, draws=draws, experts=experts, generator=generator)
                variance = float(drawn.var(axis=0, ddof=1).mean())
            kappa[row, column] = repulsion(misses[run - 1], variance, batch)
    lengths = np.arange(1, longest + 1)
    return np.stack([np.interp(lengths, runs, column) for column in kappa.T], axis=1)


def _decays(popularity_by_layer_expert: FloatArray) -> list[float]:
    """Exponential fit of share against rank, per layer: the rate whose distribution has the same mean rank."""
    ranked = -np.sort(-popularity_by_layer_expert, axis=1)
    experts = ranked.shape[1]
    rank_fraction = (np.arange(experts) + 0.5) / experts
    mean = (ranked * rank_fraction).sum(axis=1) / ranked.sum(axis=1)
    rates = np.concatenate([[1e-6], np.geomspace(1e-3, 200.0, 400)])
    means = np.array(
        [(np.exp(-rate * rank_fraction) * rank_fraction).sum() / np.exp(-rate * rank_fraction).sum() for rate in rates]
    )
    return [round(float(np.interp(-value, -means, rates)), 4) for value in mean]


def _rounded(values: FloatArray) -> list[list[float]]:
    return [[float(f"{value:.5g}") for value in row] for row in values]
