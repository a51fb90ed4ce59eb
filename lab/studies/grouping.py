"""Batching by co-activation: experts saved by choosing which sequences share a step.

    python -m lab.studies.grouping lab/data/reference-bank --experts 64

Waiting sequences are grouped greedily by the experts of their last round: each next sequence is the one that would have
added the fewest. The groups are scored by the experts of their next round. Random groups are the baseline; an oracle
that groups by the next round itself is the upper bound.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.errors import RoutingError
from specmargin.routing.capture import Capture, ExpertIds, Piece, open_captures
from specmargin.routing.counts import check_experts
from specmargin.step import BoolArray, FloatArray, IntArray

BATCHES = (2, 4, 8, 16)
_WAITING = 64
_TRIALS = 40
_MOST_RUNS = 20_000  # enough for the estimate, and bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingLine:
    """Distinct experts of the mean layer in batches of `batch`, and the fraction that grouping saves."""

    batch: int
    random: float
    grouped: float
    oracle: float
    saving: float
    saving_standard_error: float
    oracle_saving: float


def grouping_savings(
    captures: Sequence[Capture], *, experts: int, batches: Sequence[int] = BATCHES, seed: int = 0
) -> list[GroupingLine]:
    """Estimated from consecutive rounds of the same request."""
    generator = np.random.default_rng(seed)
    rounds = _pairs(captures, experts)
    waiting = min(_WAITING, len(rounds.by_request))
    if waiting < 2 * min(batches):
        raise RoutingError(f"grouping needs at least {2 * min(batches)} requests with two rounds each, not {waiting}")
    lines = []
    for batch in (size for size in batches if 2 * size <= waiting):
        distinct = np.array([_trial(generator, rounds, waiting, batch, experts) for _ in range(_TRIALS)])
        random, grouped, oracle = distinct.mean(axis=0)
        savings = 1.0 - distinct[:, 1] / distinct[:, 0]
        lines.append(
            GroupingLine(
                batch=batch,
                random=float(random),
                grouped=float(grouped),
                oracle=float(oracle),
                saving=float(1.0 - grouped / random),
                saving_standard_error=float(savings.std(ddof=1) / np.sqrt(_TRIALS)),
                oracle_saving=float(1.0 - oracle / random),
            )
        )
    return lines


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Rounds, the rounds after them, and the indices of each request's rounds."""

    last: ExpertIds
    following: ExpertIds
    by_request: list[IntArray]


def _pairs(captures: Sequence[Capture], experts: int) -> _Rounds:
    """Runs of at least the median length of their piece, all cut to the shortest of these lengths."""
    last, following, request = [], [], []
    seen = 0
    for number, capture in enumerate(captures):
        for piece in capture.pieces():
            length = int(np.median(piece.length_by_run))
            check_experts(piece, experts, capture)
            first, second = _consecutive(piece, length)
            if first.size == 0:
                continue
            last.append(_runs(piece, first, length))
            following.append(_runs(piece, second, length))
            request.append(piece.request_by_run[first] + number * (1 << 40))
            seen += first.size
            if seen >= _MOST_RUNS:
                break
    if not last:
        return _Rounds(np.zeros((0, 1, 1, 1), np.uint8), np.zeros((0, 1, 1, 1), np.uint8), [])
    shortest = min(part.shape[1] for part in last)
    cut = [[part[:, :shortest] for part in parts] for parts in (last, following)]
    request_by_round = np.concatenate(request)
    order = np.argsort(request_by_round, kind="stable")
    by_request = np.split(order, np.flatnonzero(np.diff(request_by_round[order])) + 1)
    return _Rounds(np.concatenate(cut[0]), np.concatenate(cut[1]), by_request)


def _consecutive(piece: Piece, length: int) -> tuple[IntArray, IntArray]:
    """Runs of at least that length, and the next runs of their requests; requests may be interleaved."""
    order = np.argsort(piece.request_by_run, kind="stable")
    is_long, request = piece.length_by_run[order] >= length, piece.request_by_run[order]
    first = np.flatnonzero((request[:-1] == request[1:]) & is_long[:-1] & is_long[1:])
    return order[first], order[first + 1]


def _runs(piece: Piece, index: IntArray, length: int) -> ExpertIds:
    return np.asarray(piece.experts[piece.start_by_run[index][:, np.newaxis] + np.arange(length)])


def _trial(
    generator: np.random.Generator, rounds: _Rounds, waiting: int, batch: int, experts: int
) -> tuple[float, float, float]:
    """Distinct experts of the next step: random groups, groups by the last round, groups by the next round."""
    requests = generator.choice(len(rounds.by_request), size=waiting, replace=False)
    rows = np.array([generator.choice(rounds.by_request[request]) for request in requests])
    before, after = _touched(rounds.last[rows], experts), _touched(rounds.following[rows], experts)
    layers = rounds.last.shape[2]

    def cost(groups: list[IntArray]) -> float:
        return float(np.mean([after[group].any(axis=0).sum() / layers for group in groups]))

    order = generator.permutation(waiting)
    random = [order[i : i + batch] for i in range(0, waiting - batch + 1, batch)]
    return cost(random), cost(_greedy(before, batch, order)), cost(_greedy(after, batch, order))


def _touched(runs: ExpertIds, experts: int) -> BoolArray:
    """(sequences, layers × experts)."""
    count, _, layers, _ = runs.shape
    touched = np.zeros((count, layers, experts), dtype=bool)
    sequence, layer = np.ogrid[:count, :layers]
    for position in range(runs.shape[1]):
        for choice in range(runs.shape[3]):
            touched[sequence, layer, runs[:, position, :, choice]] = True
    return touched.reshape(count, -1)


def _greedy(touched: BoolArray, batch: int, order: IntArray) -> list[IntArray]:
    """Each group starts with the longest-waiting sequence and adds the one with the fewest new experts."""
    sets = touched.astype(np.float32)
    left = list(order)
    groups = []
    while len(left) >= batch:
        group = [left.pop(0)]
        union = touched[group[0]].copy()
        while len(group) < batch:
            added: FloatArray = sets[left] @ (~union).astype(np.float32)
            group.append(left.pop(int(added.argmin())))
            union |= touched[group[-1]]
        groups.append(np.array(group))
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", help="a bank's folder, or expert ids that an engine returned")
    parser.add_argument("--experts", type=int, required=True)
    given = parser.parse_args()
    print("batch  random  grouped  saved          oracle  saved")
    for line in grouping_savings(open_captures([given.capture]), experts=given.experts):
        saved = f"{line.saving:.1%} ± {line.saving_standard_error:.1%}"
        print(
            f"{line.batch:5}  {line.random:6.2f}  {line.grouped:7.2f}  {saved:13}  {line.oracle:6.2f}  "
            f"{line.oracle_saving:.1%}"
        )


if __name__ == "__main__":
    main()
