"""Routing with popularity and locality, by layer: some experts are popular, and neighbouring positions share experts.

A run of q positions touches expert e with probability h_e(q); sequences are independent, so a step touches it with
1 − Π_i (1 − h_e(q_i)). It is stored as the *log miss* −ln(1 − h_e(q)), which adds up over sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from specmargin.architecture.types import ExpertPool
from specmargin.errors import RoutingError
from specmargin.sources import Source
from specmargin.step import FloatArray, IntArray, Step

_CERTAIN = 40.0  # log miss of an expert that every run touches: missed with probability 4e-18
_NEARLY_CERTAIN = 5.0
_STRIPS, _PER_STRIP = 32, 6  # bins of similar experts, which represent all experts in a grid of steps
_SMALL = 1024  # (layer, expert) pairs up to which nothing is binned

REPULSION_BATCHES = (1, 2, 4, 8, 16, 32)
_BATCH_INDEX = np.arange(len(REPULSION_BATCHES), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class LocalRouting:
    """Arrays are (runs, layers, experts) for runs of 1, 2, … positions; longer runs are extrapolated.

    `identified`: experts are the model's own, by id. Profiles from ranked popularity have a distribution without ids:
    they count experts, but cannot be mixed over categories or placed on ranks.
    """

    name: str
    source: Source
    pool: ExpertPool
    popularity_by_layer_expert: FloatArray  # probability that a position routes there; sums to k per layer
    log_miss_by_run_layer_expert: FloatArray
    measured_repulsion: FloatArray | None = None  # κ by run and batch; None: as of independent positions
    neighbour_overlap_by_layer: FloatArray  # experts that a position shares with the one before it
    identified: bool
    captured_run: int  # the longest measured run; longer ones are extrapolated

    def __post_init__(self) -> None:
        shape = self.log_miss_by_run_layer_expert.shape
        if len(shape) != 3 or shape[2] != self.pool.experts:
            raise RoutingError(
                f"routing profile {self.name}: {shape} is not (runs, layers, {self.pool.experts} experts)"
            )
        if self.popularity_by_layer_expert.shape != shape[1:]:
            raise RoutingError(f"routing profile {self.name}: popularity must be (layers, experts)")
        kappa = self.measured_repulsion
        if kappa is not None and kappa.shape != (shape[0], len(REPULSION_BATCHES)):
            raise RoutingError(f"routing profile {self.name}: repulsion must be (runs, {len(REPULSION_BATCHES)})")
        self.log_miss_by_run_layer_expert.flags.writeable = False

    @property
    def layers(self) -> int:
        return int(self.log_miss_by_run_layer_expert.shape[1])

    @property
    def longest_run(self) -> int:
        return int(self.log_miss_by_run_layer_expert.shape[0])

    # --- distinct experts of a step ---

    def mean(self, pool: ExpertPool, step: Step) -> FloatArray:
        """Distinct experts, averaged over layers, counted on bins of similar experts (within 0.1%)."""
        self.check(pool)
        bins = self._bins
        missed = np.exp(-_summed(bins.log_miss, step, self._tail_exponent))
        return np.asarray(pool.experts - missed @ bins.weight)

    def mean_by_layer(self, step: Step) -> FloatArray:
        """Exact, for one step: distinct experts of each layer."""
        return np.asarray((1.0 - self.missed_by_layer_expert(step)).sum(axis=-1))

    def missed_by_layer_expert(self, step: Step) -> FloatArray:
        """Probability that a single step leaves an expert untouched."""
        return np.exp(-self._log_miss(step))

    def _log_miss(self, step: Step) -> FloatArray:
        pairs = self.log_miss_by_run_layer_expert.reshape(self.longest_run, -1)
        return _summed(pairs, step, self._tail_exponent).reshape(self.layers, self.pool.experts)

    def variance(self, pool: ExpertPool, step: Step) -> FloatArray:
        """Variance of the distinct experts of a layer, averaged over layers.

        Experts of one run repel each other (a position has exactly k of them) or attract each other (topics). Two
        experts of a run covary as −κ v_e v_f, v = h (1 − h); over several runs to first order in κ. κ is measured at a
        few batch sizes, so that batches of equal runs have the measured variance.
        """
        self.check(pool)
        bins = self._bins
        missed = np.exp(-_summed(bins.log_miss, step, self._tail_exponent))
        own = (missed * (1.0 - missed)) @ bins.weight
        hit_by_class = -np.expm1(-_at_runs(bins.log_miss, step.run_by_class, self._tail_exponent))
        pairs = _pair_sum(missed[..., np.newaxis, :] * hit_by_class, bins.weight)
        kappa = self._repulsion(step)
        return np.asarray(np.maximum(own - (step.count_by_class * kappa * pairs).sum(axis=-1), 0.0))

    def variance_by_layer(self, step: Step) -> FloatArray:
        """Exact sums, for one step: variance of the distinct experts of each layer."""
        missed = self.missed_by_layer_expert(step)
        own = (missed * (1.0 - missed)).sum(axis=1)
        log_miss_by_run = self.log_miss_by_run_layer_expert.reshape(self.longest_run, -1)
        variance = own
        for run, count, kappa in zip(step.run_by_class, step.count_by_class, self._repulsion(step), strict=True):
            hit = -np.expm1(-_at_runs(log_miss_by_run, np.asarray(run), self._tail_exponent))
            touching = missed * hit.reshape(missed.shape)
            variance = variance - count * kappa * (touching.sum(axis=1) ** 2 - (touching**2).sum(axis=1))
        return np.asarray(np.maximum(variance, 0.0))

    def _repulsion(self, step: Step) -> FloatArray:
        """κ of every class of sequences, interpolated between the measured runs and batches."""
        column = np.interp(np.log(np.maximum(step.sequences, 1.0)), np.log(REPULSION_BATCHES), _BATCH_INDEX)[
            ..., np.newaxis
        ]
        low = np.minimum(column.astype(np.int64), len(REPULSION_BATCHES) - 2)
        fraction = column - low
        run = np.clip(np.round(step.run_by_class), 1, self.longest_run).astype(np.int64) - 1
        kappa = self.repulsion_by_run_batch
        return np.asarray((1.0 - fraction) * kappa[run, low] + fraction * kappa[run, low + 1])

    @cached_property
    def repulsion_by_run_batch(self) -> FloatArray:
        """κ of runs in batches of REPULSION_BATCHES. Only experts on several ranks need it."""
        if self.measured_repulsion is not None:
            return self.measured_repulsion
        return _independent_repulsion(self.popularity_by_layer_expert, self.log_miss_by_run_layer_expert)

    # --- curves ---

    def depth_curve_by_layer(self, runs: IntArray) -> FloatArray:
        """Distinct experts of one run: (runs, layers)."""
        return np.array([self.mean_by_layer(Step.uniform(batch=1, depth=run - 1)) for run in runs])

    def width_curve_by_layer(self, sequences: IntArray) -> FloatArray:
        """Distinct experts of that many independent sequences, one position each: (sequences, layers)."""
        return np.array([self.mean_by_layer(Step.uniform(batch=count)) for count in sequences])

    def effective_positions(self, runs: FloatArray) -> FloatArray:
        """m(q): independent positions that touch as many experts as a run of q, over the mean layer."""
        widths = np.geomspace(1.0, max(float(np.max(runs)), 2.0), 200)
        by_width = self.mean(self.pool, Step.uniform(batch=widths))
        by_run = self.mean(self.pool, Step.uniform(batch=1, depth=runs - 1.0))
        return np.asarray(np.exp(np.interp(by_run, by_width, np.log(widths))))

    def check(self, pool: ExpertPool) -> None:
        if (pool.experts, pool.experts_per_token) != (self.pool.experts, self.pool.experts_per_token):
            raise RoutingError(
                f"routing profile {self.name} is of a model with {self.pool.experts} experts, "
                f"{self.pool.experts_per_token} per token; this one has {pool.experts}, "
                f"{pool.experts_per_token} per token"
            )

    @cached_property
    def _tail_exponent(self) -> float:
        """Exponent with which log misses grow beyond the longest run, from the last doubling of the run length."""
        last = self.longest_run
        if last < 2:
            return 1.0
        before = max(last // 2, 1)
        pairs = self.log_miss_by_run_layer_expert.reshape(last, -1)
        uncertain = pairs[-1] < _NEARLY_CERTAIN  # experts that every run touches do not show growth
        curve = pairs[:, uncertain].mean(axis=1) if uncertain.any() else pairs.mean(axis=1)
        return float(np.clip(np.log(curve[last - 1] / curve[before - 1]) / np.log(last / before), 0.0, 1.0))

    @cached_property
    def _bins(self) -> _Bins:
        return _binned(self.log_miss_by_run_layer_expert)


@dataclass(frozen=True, slots=True)
class _Bins:
    """Bins of similar experts over all layers: log miss (runs, bins), and experts per layer in each bin."""

    log_miss: FloatArray
    weight: FloatArray


def _binned(log_miss_by_run_layer_expert: FloatArray) -> _Bins:
    """Strips of similar popularity, and inside a strip bins of similar locality."""
    runs, layers, _ = log_miss_by_run_layer_expert.shape
    pairs = log_miss_by_run_layer_expert.reshape(runs, -1)
    if pairs.shape[1] <= _SMALL:
        return _Bins(pairs, np.full(pairs.shape[1], 1.0 / layers))
    order = np.argsort(pairs[0], kind="stable")
    parts = [
        part
        for strip in np.array_split(order, _STRIPS)
        for part in np.array_split(strip[np.argsort(pairs[-1, strip], kind="stable")], _PER_STRIP)
        if part.size
    ]
    # Averaged as probabilities, so that one run touches exactly as many experts as without bins.
    return _Bins(
        np.stack([-np.log(np.exp(-pairs[:, part]).mean(axis=1)) for part in parts], axis=1),
        np.array([part.size / layers for part in parts]),
    )


def _at_runs(log_miss_by_run: FloatArray, runs: FloatArray, tail: float) -> FloatArray:
    """Log miss at any run length: (…, columns). Linear between whole lengths, a power beyond the last."""
    return np.asarray(_weights(runs[..., np.newaxis], np.ones(()), log_miss_by_run.shape[0], tail) @ log_miss_by_run)


def _summed(log_miss_by_run: FloatArray, step: Step, tail: float) -> FloatArray:
    """Σ over the sequences of a step: (*grid, columns)."""
    weights = _weights(step.run_by_class, step.count_by_class, log_miss_by_run.shape[0], tail)
    return np.asarray(weights @ log_miss_by_run)


def _weights(runs: FloatArray, counts: FloatArray, last: int, tail: float) -> FloatArray:
    """Weight of each whole run length, summed over classes: (*grid, last)."""
    inside = np.clip(runs, 1.0, last)
    low = np.minimum(inside.astype(np.int64), max(last - 1, 1)) - 1
    fraction = inside - 1.0 - low
    amount = counts * np.maximum(runs / last, 1.0) ** tail
    points = int(np.prod(runs.shape[:-1]))
    row = np.repeat(np.arange(points), runs.shape[-1]) * last
    flat = np.bincount(row + low.ravel(), weights=(amount * (1.0 - fraction)).ravel(), minlength=points * last)
    if fraction.any():
        above = np.minimum(low + 1, last - 1).ravel()
        flat = flat + np.bincount(row + above, weights=(amount * fraction).ravel(), minlength=points * last)
    return np.asarray(flat.reshape(*runs.shape[:-1], last))


def _pair_sum(touching: FloatArray, weight: FloatArray) -> FloatArray:
    """Σ over pairs of different experts, in the mean layer."""
    return np.asarray((touching @ weight) ** 2 - (touching**2) @ weight)


# --- building profiles ---


def repulsion(log_miss_by_layer_expert: FloatArray, variance: float, batch: int) -> float:
    """κ at which `batch` equal runs have this variance of distinct experts, in the mean layer."""
    pairs = log_miss_by_layer_expert.reshape(-1)
    weight = np.full(pairs.size, 1.0 / log_miss_by_layer_expert.shape[0])
    missed = np.exp(-batch * pairs)
    own = float((missed * (1.0 - missed)) @ weight)
    spread = float(_pair_sum(missed * -np.expm1(-pairs), weight))
    return (own - variance) / max(batch * spread, 1e-12)


def log_miss(probability: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(-np.log1p(-np.clip(probability, 0.0, 1.0)), _CERTAIN))


def from_curves(
    *,
    name: str,
    source: Source,
    pool: ExpertPool,
    popularity_by_layer_expert: FloatArray,
    effective_by_run_layer: FloatArray,
    captured_run: int,
    identified: bool = False,
) -> LocalRouting:
    """From popularity and the effective number of positions m(q) alone: h_e(q) = 1 − (1 − p_e)^m(q).

    Curves do not give the variance of a run; that of m(q) independent positions is assumed.
    """
    p = popularity_by_layer_expert
    if not np.allclose(p.sum(axis=1), pool.experts_per_token, rtol=1e-3):
        raise RoutingError(f"routing profile {name}: popularity must add up to {pool.experts_per_token} in every layer")
    misses = effective_by_run_layer[:, :, np.newaxis] * log_miss(p)
    return LocalRouting(
        name=name,
        source=source,
        pool=pool,
        popularity_by_layer_expert=p,
        log_miss_by_run_layer_expert=misses,
        neighbour_overlap_by_layer=2.0 * pool.experts_per_token + np.expm1(-misses[1]).sum(axis=-1),
        identified=identified,
        captured_run=captured_run,
    )


def _independent_repulsion(p: FloatArray, misses: FloatArray) -> FloatArray:
    """κ of runs of m(q) independent positions with k experts each, m(1) = 1: no variance at one position."""
    effective_by_run = (misses.sum(axis=2) / misses[0].sum(axis=1)).mean(axis=1)
    weight = np.full(p.size, 1.0 / p.shape[0])
    flat = p.reshape(-1)
    one = repulsion(log_miss(p), 0.0, 1)
    runs = np.unique(np.geomspace(1, misses.shape[0], 6).round().astype(np.int64)) - 1  # interpolated in between
    kappa = np.empty((runs.size, len(REPULSION_BATCHES)))
    for row, run in enumerate(runs):
        pairs = misses[run].reshape(-1)
        for column, batch in enumerate(REPULSION_BATCHES):
            missed = np.exp(-batch * pairs)
            own = float((missed * (1.0 - missed)) @ weight)
            lost = effective_by_run[run] * batch * one * float(_pair_sum(missed * flat, weight))
            kappa[row, column] = repulsion(misses[run], max(own - lost, 0.0), batch)
    return np.stack([np.interp(np.arange(misses.shape[0]), runs, column) for column in kappa.T], axis=1)


def mixed(
    parts: Mapping[str, LocalRouting], weights: Mapping[str, float], *, name: str, source: Source
) -> LocalRouting:
    """A mix of categories: each sequence belongs to one of them, with its weight, independently of the others."""
    chosen = [(parts[category], weight) for category, weight in weights.items() if weight > 0]
    if not chosen:
        raise RoutingError(f"routing profile {name}: no category has a weight")
    first = chosen[0][0]
    if len(chosen) > 1 and not all(part.identified for part, _ in chosen):
        raise RoutingError(
            f"routing profile {name} has popularity by rank only, without expert ids: "
            "its categories cannot be mixed; choose one"
        )
    total = sum(weight for _, weight in chosen)
    runs = min(part.longest_run for part, _ in chosen)
    hit = sum(w / total * -np.expm1(-part.log_miss_by_run_layer_expert[:runs]) for part, w in chosen)
    kappa = sum(w / total * part.repulsion_by_run_batch[:runs] for part, w in chosen)
    return replace(
        first,
        name=name,
        source=source,
        popularity_by_layer_expert=np.asarray(sum(w / total * part.popularity_by_layer_expert for part, w in chosen)),
        log_miss_by_run_layer_expert=log_miss(np.asarray(hit)),
        measured_repulsion=np.asarray(kappa) - _attraction(chosen, total, np.asarray(hit)),
        neighbour_overlap_by_layer=np.asarray(sum(w / total * part.neighbour_overlap_by_layer for part, w in chosen)),
        captured_run=min(part.captured_run for part, _ in chosen),
    )


def _attraction(chosen: list[tuple[LocalRouting, float]], total: float, hit: FloatArray) -> FloatArray:
    """What mixing adds: experts of one category occur together. Σ_{e≠f} Σ_c w (h_c − h)_e (h_c − h)_f, over v v."""
    apart = [(w / total, -np.expm1(-part.log_miss_by_run_layer_expert[: hit.shape[0]]) - hit) for part, w in chosen]
    together = sum(w * (a.sum(axis=2) ** 2 - (a**2).sum(axis=2)) for w, a in apart)
    v = hit * (1.0 - hit)
    pairs = v.sum(axis=2) ** 2 - (v**2).sum(axis=2)
    return np.asarray(np.mean(together / np.maximum(pairs, 1e-12), axis=1))[:, np.newaxis]
