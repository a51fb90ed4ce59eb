"""A real, small mixture of experts (reference-moe): profiles against its own capture, by brute force."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from specmargin.architecture.types import ExpertPool
from specmargin.errors import RoutingError
from specmargin.modes import Placement
from specmargin.routing.capture import open_captures
from specmargin.routing.capture_profile import build_profile
from specmargin.routing.counts import count
from specmargin.routing.placement import busiest_by_layer, rank_by_layer_expert
from specmargin.routing.schema import RoutingFile, as_text, parse_routing
from specmargin.step import IntArray, Step
from tests.data import REFERENCE_BANK

POOL = ExpertPool(experts=64, experts_per_token=4)
RUN, LAYERS = 9, 6
CATEGORIES = ("cpp", "python", "prose")
Masks = npt.NDArray[np.uint64]  # one bit per expert
BITS = np.uint64(1) << np.arange(64, dtype=np.uint64)


@pytest.fixture(scope="module")
def file() -> RoutingFile:
    counts = count(open_captures([str(REFERENCE_BANK)]), experts=64, longest_run=16)
    profile_file = build_profile(counts, name="reference", pool=POOL, provenance="reference-moe")
    return parse_routing(as_text(profile_file), "reference")  # as users have it: written and read back


@pytest.fixture(scope="module")
def rounds() -> dict[str, Masks]:
    """(rounds, positions, layers) by category, straight from the array: the experts touched up to each position."""
    experts = np.load(REFERENCE_BANK / "routing.npy").reshape(-1, RUN, LAYERS, 4)
    picked = np.bitwise_or.reduce(BITS[experts], axis=-1)
    category = pl.read_parquet(REFERENCE_BANK / "routing_meta.parquet")["category"].to_numpy()[::RUN]
    return {name: np.bitwise_or.accumulate(picked[category == name], axis=1) for name in CATEGORIES}


def _touched(picked: Masks, lengths: IntArray) -> Masks:
    """(draws, layers) of batches: (draws, sequences, positions, layers), cut to a length per sequence."""
    return np.asarray(np.bitwise_or.reduce(picked[:, np.arange(lengths.size), lengths - 1], axis=1))


def _count(masks: Masks) -> IntArray:
    return np.asarray(np.unpackbits(masks[..., np.newaxis].view(np.uint8), axis=-1).sum(axis=-1, dtype=np.int64))


def test_ragged_coverage_agrees_with_resampling(file: RoutingFile, rounds: dict[str, Masks]) -> None:
    """Batches of 1 to 16, runs of 1 to 9 and ragged ones: |z| < 4 everywhere, mean z² near 1; variances too."""
    generator = np.random.default_rng(0)
    z, ratio = [], []
    for category in CATEGORIES:
        profile = file.category(category)
        for batch in (1, 2, 4, 8, 16):
            settings = [np.full(batch, run) for run in range(1, RUN + 1)] + [generator.integers(1, RUN + 1, batch)]
            for lengths in settings:
                picked = rounds[category][generator.integers(0, len(rounds[category]), (1500, batch))]
                distinct = _count(_touched(picked, lengths))
                step = Step.ragged(depths=lengths - 1, contexts=0)
                mean, error = profile.mean_by_layer(step).mean(), distinct.mean(axis=1).std(ddof=1) / np.sqrt(1500)
                if error < 1e-9:  # one position: k, always
                    assert mean == pytest.approx(4.0, abs=1e-3)
                    continue
                z.append((distinct.mean() - mean) / error)
                ratio.append(float(profile.variance(POOL, step)) / distinct.var(axis=0, ddof=1).mean())
    assert np.abs(z).max() < 4.0
    assert 0.7 < np.mean(np.square(z)) < 1.3
    assert np.median(ratio) == pytest.approx(1.0, abs=0.05)
    assert min(ratio) > 0.7
    assert max(ratio) < 1.4


@pytest.mark.parametrize("placement", list(Placement))
def test_the_busiest_rank_agrees_with_brute_force(
    file: RoutingFile, rounds: dict[str, Masks], placement: Placement
) -> None:
    """Within 2% (and three standard errors of the draws) for 2, 4 and 8 ranks."""
    generator = np.random.default_rng(1)
    for category in CATEGORIES:
        profile = file.category(category)
        for batch, run in ((1, 1), (1, 4), (1, 9), (4, 1), (4, 5), (8, 3), (16, 2), (16, 9)):
            picked = rounds[category][generator.integers(0, len(rounds[category]), (1500, batch))]
            touched = _touched(picked, np.full(batch, run))
            step = Step.ragged(depths=np.full(batch, run - 1), contexts=0)
            for ranks in (2, 4, 8):
                rank_of = rank_by_layer_expert(profile, placement, ranks)
                most = _busiest(touched, rank_of, ranks)
                slack = 3.0 * most.mean(axis=1).std() / np.sqrt(most.shape[0])
                expected = busiest_by_layer(profile, rank_of, step).mean()
                assert abs(expected - most.mean()) <= 0.02 * most.mean() + slack


def _busiest(touched: Masks, rank_of: IntArray, ranks: int) -> IntArray:
    held = [np.where(rank_of == rank, BITS, np.uint64(0)).sum(axis=1) for rank in range(ranks)]  # by layer
    return np.asarray(np.max([_count(touched & mask) for mask in held], axis=0))


def test_balanced_placement_is_better_than_contiguous(file: RoutingFile) -> None:
    profile = file.category("prose")
    step = Step.ragged(depths=np.full(8, 3), contexts=0)
    busiest = {p: busiest_by_layer(profile, rank_by_layer_expert(profile, p, 8), step).mean() for p in Placement}
    assert busiest[Placement.BALANCED] < busiest[Placement.CONTIGUOUS]


def test_categories_mix(file: RoutingFile, rounds: dict[str, Masks]) -> None:
    """Half code, half prose, each sequence by a coin: as drawn from both; more experts than either alone."""
    generator = np.random.default_rng(2)
    mixed = file.profile({"cpp": 1.0, "prose": 1.0})
    step = Step.ragged(depths=np.full(8, 3), contexts=0)
    drawn = []
    for _ in range(1500):
        names = generator.choice(["cpp", "prose"], size=8)
        drawn.append([rounds[name][generator.integers(0, len(rounds[name]))] for name in names])
    distinct = _count(_touched(np.array(drawn), np.full(8, 4))).mean(axis=1)
    error = distinct.std() / np.sqrt(distinct.size)
    mean = mixed.mean_by_layer(step).mean()
    assert abs(mean - distinct.mean()) < 4.0 * error
    alone = [file.category(name).mean_by_layer(step).mean() for name in ("cpp", "prose")]
    assert mean > max(alone)


def test_a_profile_is_small_and_keeps_its_uncertainty(file: RoutingFile) -> None:
    assert len(as_text(file)) < 40_000
    for category in file.categories.values():
        assert all(error > 0 for error in category.depth.standard_error[1:])
        assert category.depth.mean[0] == pytest.approx(4.0)
    with pytest.raises(RoutingError, match="no category 'rust'"):
        file.profile({"rust": 1.0})
