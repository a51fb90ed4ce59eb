"""Counting a capture: one pass, compiled, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specmargin.compiler import counting
from specmargin.errors import RoutingError
from specmargin.routing.capture import Capture, ExpertIds, Piece
from specmargin.step import FloatArray, IntArray

_OVERLAP_EVERY = 64  # rounds: overlaps are counted in every 64th one, beyond _MANY rounds
_MANY = 4_000
_REQUESTS = 1 << 40  # more than any one capture holds
_BLOCK = 32  # runs
_SAMPLED = 4096  # full-length runs per category, from which batches are drawn


@dataclass(kw_only=True)
class CategoryCounts:
    """Counts of one category. Axes: run length (index 0 is one position), layer, expert, lag."""

    runs_by_length: FloatArray  # runs of at least that many positions
    hits_by_layer_expert_length: IntArray  # of those, the ones that touch the expert within that length
    positions: int = 0
    chosen_by_layer_expert: IntArray
    distinct_by_length_layer: FloatArray  # sums of distinct experts, and of their squares
    distinct_squared_by_length_layer: FloatArray
    shared_by_lag_layer: FloatArray  # experts that two positions of a run have in common
    pairs_by_lag: FloatArray
    sums_by_request: dict[int, FloatArray] = field(default_factory=dict)  # (lengths, [runs, distinct of mean layer])
    reservoir: ExpertIds | None = None  # (runs, longest, layers, k): a uniform sample of the full-length runs
    full_length_runs: int = 0

    @property
    def sampled_runs(self) -> ExpertIds:
        if self.reservoir is None:
            raise RoutingError("no run has the full length")
        return self.reservoir[: min(self.full_length_runs, _SAMPLED)]

    @property
    def rounds(self) -> int:
        return int(self.runs_by_length[0])


def empty_counts(run: int, layers: int, experts: int) -> CategoryCounts:
    return CategoryCounts(
        runs_by_length=np.zeros(run),
        hits_by_layer_expert_length=np.zeros((layers, experts, run + 1), dtype=np.int64),
        chosen_by_layer_expert=np.zeros((layers, experts), dtype=np.int64),
        distinct_by_length_layer=np.zeros((run, layers)),
        distinct_squared_by_length_layer=np.zeros((run, layers)),
        shared_by_lag_layer=np.zeros((run, layers)),
        pairs_by_lag=np.zeros(run),
    )


def count(
    captures: Sequence[Capture],
    *,
    experts: int,
    longest_run: int,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, CategoryCounts]:
    """Every category of every capture, to a run length that all of them have. `advance` gets the positions done."""
    longest_run = min(longest_run, max(capture.longest_run for capture in captures))
    if longest_run < 2:
        raise RoutingError(f"{captures[0].path}: has no runs of two positions or more, so locality cannot be measured")
    by_category: dict[str, CategoryCounts] = {}
    for number, capture in enumerate(captures):
        for piece in capture.pieces():
            check_experts(piece, experts, capture)
            layers, _ = capture.shape
            counts = by_category.setdefault(piece.category, empty_counts(longest_run, layers, experts))
            _add(counts, piece, number)
            advance(piece.experts.shape[0])
    shared = min(int(np.flatnonzero(counts.runs_by_length)[-1]) + 1 for counts in by_category.values())
    if shared < longest_run:  # an engine whose depth varies may not reach the same depth in every category
        return count(captures, experts=experts, longest_run=shared)
    for counts in by_category.values():
        counts.hits_by_layer_expert_length = np.cumsum(counts.hits_by_layer_expert_length, axis=2)[..., :longest_run]
    return by_category


def check_experts(piece: Piece, experts: int, capture: Capture) -> None:
    highest = int(piece.experts.max())
    if highest >= experts:
        raise RoutingError(
            f"{capture.path}: expert id {highest} is out of range: the model has {experts} experts (0 to {experts - 1})"
        )


def _add(counts: CategoryCounts, piece: Piece, number: int) -> None:
    whole = _count_runs(
        piece.experts,
        piece.start_by_run,
        piece.length_by_run,
        counts.hits_by_layer_expert_length,
        counts.chosen_by_layer_expert,
        counts.distinct_by_length_layer,
        counts.distinct_squared_by_length_layer,
    )
    every = _OVERLAP_EVERY if counts.rounds + piece.start_by_run.size > _MANY else 1
    runs = (piece.start_by_run, piece.length_by_run)
    _count_overlaps(piece.experts, *runs, counts.shared_by_lag_layer, counts.pairs_by_lag, every)
    longest = counts.runs_by_length.size
    lengths = np.minimum(piece.length_by_run, longest)
    counts.runs_by_length += (lengths[:, np.newaxis] > np.arange(longest)).sum(axis=0)
    counts.positions += int(lengths.sum())
    _sample_runs(counts, piece)
    _by_request(counts, piece, lengths, whole / piece.experts.shape[1], number)


def _sample_runs(counts: CategoryCounts, piece: Piece) -> None:
    """Reservoir sampling: every full-length run so far is in the sample with the same probability."""
    longest = counts.runs_by_length.size
    starts = piece.start_by_run[piece.length_by_run >= longest]
    if starts.size == 0:
        return
    if counts.reservoir is None:
        counts.reservoir = np.zeros((_SAMPLED, longest, *piece.experts.shape[1:]), dtype=piece.experts.dtype)
    number = counts.full_length_runs + np.arange(starts.size)
    slot = np.random.default_rng(counts.full_length_runs).integers(0, number + 1)
    slot = np.where(number < _SAMPLED, number, slot)
    chosen = slot < _SAMPLED
    counts.reservoir[slot[chosen]] = piece.experts[starts[chosen][:, np.newaxis] + np.arange(longest)]
    counts.full_length_runs += starts.size


def _by_request(counts: CategoryCounts, piece: Piece, lengths: IntArray, distinct: FloatArray, number: int) -> None:
    """Sums per request, for standard errors: rounds of one request are correlated, requests are independent."""
    longest = counts.runs_by_length.size
    reached = lengths[:, np.newaxis] > np.arange(longest)
    requests, request_index = np.unique(piece.request_by_run, return_inverse=True)
    runs, total = np.zeros((2, requests.size, longest))
    np.add.at(runs, request_index, reached)
    np.add.at(total, request_index, np.where(reached, distinct, 0.0))
    for index, request in enumerate(requests):
        sums = counts.sums_by_request.setdefault(number * _REQUESTS + int(request), np.zeros((2, longest)))
        sums += (runs[index], total[index])


@counting
def _count_runs(  # type: ignore[no-untyped-def]  # Numba reads the types from the arguments
    experts, starts, lengths, hits, chosen, distinct, squared
):  # pragma: no cover (compiled)
    """Distinct experts of every run and length, summed over layers; the rest is added to its arrays."""
    runs, (longest, layers) = starts.size, distinct.shape
    k = experts.shape[2]
    stamp = np.full(chosen.shape[1], -1, dtype=np.int32)
    whole = np.zeros((runs, longest), dtype=np.int32)
    touched = np.zeros(hits.shape, dtype=np.int32)  # 32 bits, so that a layer fits into the L1 cache
    taken = np.zeros(chosen.shape, dtype=np.int32)
    mark = np.int32(0)
    for block in range(0, runs, _BLOCK):  # a layer's counts stay in the cache over a block of runs
        for layer in range(layers):
            for run in range(block, min(block + _BLOCK, runs)):
                start, length = starts[run], min(lengths[run], longest)
                mark += np.int32(1)
                seen = np.int32(0)
                for position in range(length):
                    for choice in range(k):
                        expert = experts[start + position, layer, choice]
                        new = np.int32(stamp[expert] != mark)  # added, not branched on: the branch is unpredictable
                        stamp[expert] = mark
                        seen += new
                        taken[layer, expert] += np.int32(1)
                        touched[layer, expert, position] += new
                        if length < longest:
                            touched[layer, expert, length] -= new
                    distinct[position, layer] += seen
                    squared[position, layer] += seen * seen
                    whole[run, position] += seen
    hits += touched
    chosen += taken
    return whole


@counting
def _count_overlaps(experts, starts, lengths, shared, pairs, every):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Experts that two positions of a run have in common, by lag, in every `every`-th run."""
    longest, layers = shared.shape
    k = experts.shape[2]
    for run in range(0, starts.size, every):
        start, length = starts[run], min(lengths[run], longest)
        for lag in range(1, length):
            pairs[lag] += length - lag
            for layer in range(layers):
                common = 0
                for position in range(start, start + length - lag):
                    for one in range(k):
                        for other in range(k):
                            common += experts[position, layer, one] == experts[position + lag, layer, other]
                shared[lag, layer] += common


def draw_distinct(
    runs: ExpertIds, *, batch: int, run: int, draws: int, experts: int, generator: np.random.Generator
) -> FloatArray:
    """Distinct experts of random batches of `batch` sampled runs, cut to `run` positions: (draws, layers)."""
    picked = generator.integers(0, runs.shape[0], size=(draws, batch))
    return np.asarray(_distinct(runs, picked, run, experts))


@counting
def _distinct(runs, picked, length, experts):  # type: ignore[no-untyped-def]  # pragma: no cover (compiled)
    draws, batch = picked.shape
    layers, k = runs.shape[2], runs.shape[3]
    stamp = np.full(experts, -1, dtype=np.int64)
    distinct = np.zeros((draws, layers))
    for draw in range(draws):
        for layer in range(layers):
            mark = draw * layers + layer
            seen = 0
            for i in range(batch):
                for position in range(length):
                    for choice in range(k):
                        expert = runs[picked[draw, i], position, layer, choice]
                        seen += stamp[expert] != mark
                        stamp[expert] = mark
            distinct[draw, layer] = seen
    return distinct
