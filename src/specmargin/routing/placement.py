"""Placement of experts on ranks, and the distinct experts that the busiest rank reads.

Given the number D of experts that a layer touches, their identities follow their own hit probabilities (conditional
Poisson sampling); P(max over ranks ≤ x, D = d) is then a coefficient of a product of polynomials, one per rank, and is
computed exactly. D itself has the mean and the variance of the profile. This is within 2% of brute force on a real
capture (tests/published/test_reference_routing.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from specmargin.errors import RoutingError
from specmargin.modes import Placement
from specmargin.routing.local import LocalRouting
from specmargin.step import FloatArray, IntArray, Step

ComplexArray = npt.NDArray[np.complex128]

_SAMPLED_LAYERS = 8
_RUNS = (1, 2, 4, 8, 16)
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)


def rank_by_layer_expert(profile: LocalRouting, placement: Placement, ranks: int) -> IntArray:
    experts, layers = profile.pool.experts, profile.layers
    if experts % ranks:
        raise RoutingError(f"{experts} experts do not divide over {ranks} ranks")
    if not profile.identified:
        raise RoutingError(
            f"routing profile {profile.name} has popularity by rank only, without expert ids: "
            "its experts cannot be placed"
        )
    expert = np.arange(experts)
    match placement:
        case Placement.CONTIGUOUS:
            return np.tile(expert // (experts // ranks), (layers, 1))
        case Placement.ROUND_ROBIN:
            return np.tile(expert % ranks, (layers, 1))
        case Placement.BALANCED:
            return np.array([_balanced(popularity, ranks) for popularity in profile.popularity_by_layer_expert])


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Experts of one layer with copies: each slot has an expert, and a share of its positions."""

    expert_by_slot: IntArray
    copies_by_slot: IntArray
    rank_by_slot: IntArray

    @classmethod
    def of(cls, popularity_by_expert: FloatArray, ranks: int, redundant: int) -> Slots:
        """As a load balancer fills them: each copy to the expert with most positions per copy, then balanced."""
        copies = np.ones(popularity_by_expert.size, dtype=np.int64)
        for _ in range(redundant):
            copies[int((popularity_by_expert / copies).argmax())] += 1
        expert = np.repeat(np.arange(copies.size), copies)
        load = (popularity_by_expert / copies)[expert]
        return cls(expert_by_slot=expert, copies_by_slot=copies[expert], rank_by_slot=_balanced(load, ranks))


def _balanced(popularity_by_expert: FloatArray, ranks: int) -> IntArray:
    """Most popular first, each to the least loaded rank that still has room."""
    room = np.full(ranks, popularity_by_expert.size // ranks)
    load = np.zeros(ranks)
    rank_of = np.empty(popularity_by_expert.size, dtype=np.int64)
    for expert in np.argsort(-popularity_by_expert, kind="stable"):
        rank = int(np.where(room > 0, load, np.inf).argmin())
        rank_of[expert] = rank
        room[rank] -= 1
        load[rank] += popularity_by_expert[expert]
    return rank_of


def busiest_by_layer(
    profile: LocalRouting, rank_of: IntArray, step: Step, layers: IntArray | None = None
) -> FloatArray:
    """E[max over ranks of the distinct experts on that rank], for one step, by layer (all, or `layers`)."""
    chosen = np.arange(profile.layers) if layers is None else layers
    hit = 1.0 - profile.missed_by_layer_expert(step)
    variance = profile.variance_by_layer(step)
    return np.array([_expected_maximum(hit[layer], rank_of[layer], float(variance[layer])) for layer in chosen])


def _busiest_slots(missed_by_expert: FloatArray, slots: Slots, variance: float) -> float:
    """The same for experts with copies, each of which has its share of the expert's positions."""
    hit = 1.0 - missed_by_expert[slots.expert_by_slot] ** (1.0 / slots.copies_by_slot)
    return _expected_maximum(hit, slots.rank_by_slot, variance)


def _expected_maximum(hit_by_expert: FloatArray, rank_of_expert: IntArray, variance: float) -> float:
    by_total = _maximum_given_total(hit_by_expert, rank_of_expert)
    total = np.arange(hit_by_expert.size + 1.0)
    mean = float(hit_by_expert.sum())
    spread = max(np.sqrt(variance), 0.3)
    weight = np.exp(-0.5 * ((total - mean) / spread) ** 2)
    return float(by_total @ weight / weight.sum())


def _maximum_given_total(hit_by_expert: FloatArray, rank_of_expert: IntArray) -> FloatArray:
    """E[max | D = d] for d = 0..n, by polynomials evaluated at the roots of unity."""
    experts = hit_by_expert.size
    ranks = int(rank_of_expert.max()) + 1
    by_rank = hit_by_expert[np.argsort(rank_of_expert, kind="stable")].reshape(ranks, -1)
    size = by_rank.shape[1]
    pmf = np.zeros((ranks, size + 1))  # of the distinct experts on a rank: Poisson binomial
    pmf[:, 0] = 1.0
    for expert in range(size):
        p = by_rank[:, expert : expert + 1]
        pmf[:, 1:] = pmf[:, 1:] * (1.0 - p) + pmf[:, :-1] * p
        pmf[:, :1] = pmf[:, :1] * (1.0 - p)
    powers = _powers(experts, size)
    at_most = np.ones(powers.shape, dtype=np.complex128)
    for rank in range(ranks):
        at_most *= np.cumsum(pmf[rank][:, np.newaxis] * powers, axis=0)
    joint = np.fft.irfft(at_most, n=experts + 1, axis=1)  # P(max ≤ x, D = d)
    total_pmf = joint[-1]
    is_likely = total_pmf > 1e-11  # below that, rounding dominates
    share = np.clip(joint[:, is_likely] / total_pmf[is_likely], 0.0, 1.0)
    expected = np.interp(np.arange(experts + 1), np.flatnonzero(is_likely), (1.0 - share).sum(axis=0))
    return np.asarray(expected)


@lru_cache(maxsize=8)
def _powers(experts: int, size: int) -> ComplexArray:
    """Powers 0 to `size` of half of the roots of unity: coefficients are real, so the others are their conjugates."""
    half = np.arange((experts + 1) // 2 + 1)
    return np.asarray(np.exp(-2j * np.pi / (experts + 1) * np.outer(np.arange(size + 1), half)))


@dataclass(frozen=True, kw_only=True)
class PlacedRouting:
    """A profile with its experts on ranks: the busiest rank of any grid of steps, from a table over runs and batches.

    The busiest rank's share is estimated on a few layers; the mean of a whole layer is exact (see `LocalRouting.mean`).
    """

    profile: LocalRouting
    placement: Placement
    ranks: int
    redundant: int = 0  # copies of popular experts, which are then placed by popularity whatever `placement` is

    @cached_property
    def _slots(self) -> list[Slots]:
        """By layer."""
        return [Slots.of(p, self.ranks, self.redundant) for p in self.profile.popularity_by_layer_expert]

    @cached_property
    def _rank_of(self) -> IntArray:
        return rank_by_layer_expert(self.profile, self.placement, self.ranks)

    def busiest_share(self, step: Step) -> FloatArray:
        """Distinct experts on the busiest rank, as a fraction of the layer's."""
        distinct, share = self._table
        mean = self.profile.mean(self.profile.pool, step)
        run = np.maximum(step.positions / np.maximum(step.sequences, 1e-9), 1.0)  # no sequences: a run of 1
        row = np.interp(np.log(run), np.log(_RUNS), np.arange(len(_RUNS)))
        low = np.minimum(row.astype(np.int64), len(_RUNS) - 2)
        fraction = row - low
        by_row = np.stack([np.interp(mean, distinct[i], share[i]) for i in range(len(_RUNS))])
        lower, upper = (np.take_along_axis(by_row, (low + offset)[np.newaxis], axis=0)[0] for offset in (0, 1))
        return np.asarray((1.0 - fraction) * lower + fraction * upper)

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray]:
        """Mean distinct experts, and the busiest rank's share of them: (runs, batches)."""
        layers = np.unique(np.linspace(0, self.profile.layers - 1, _SAMPLED_LAYERS).round().astype(np.int64))
        distinct, share = np.empty((2, len(_RUNS), len(_BATCHES)))
        for row, run in enumerate(_RUNS):
            for column, batch in enumerate(_BATCHES):
                step = Step.ragged(depths=np.array([run - 1.0]), contexts=0.0).times(batch)
                whole = self.profile.mean_by_layer(step)[layers]
                busiest = self._busiest(step, layers)
                distinct[row, column] = float(self.profile.mean(self.profile.pool, step))
                share[row, column] = float(busiest.mean() / whole.mean())
        return distinct, share

    def _busiest(self, step: Step, layers: IntArray) -> FloatArray:
        if not self.redundant:
            return busiest_by_layer(self.profile, self._rank_of, step, layers)
        missed, variance = self.profile.missed_by_layer_expert(step), self.profile.variance_by_layer(step)
        return np.array([_busiest_slots(missed[i], self._slots[i], float(variance[i])) for i in layers])

    def busiest_pair_share(self) -> float:
        """The most popular rank's share of all (position, expert) pairs, over the mean layer."""
        p = self.profile.popularity_by_layer_expert
        if self.redundant:
            shares = [p[layer, slots.expert_by_slot] / slots.copies_by_slot for layer, slots in enumerate(self._slots)]
            by_rank = [np.bincount(slots.rank_by_slot, share) for slots, share in zip(self._slots, shares, strict=True)]
            return float(np.mean([loads.max() / loads.sum() for loads in by_rank]))
        loads = np.stack([np.where(self._rank_of == rank, p, 0.0).sum(axis=1) for rank in range(self.ranks)])
        return float((loads.max(axis=0) / loads.sum(axis=0)).mean())
