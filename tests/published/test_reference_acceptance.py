"""The reference bank (reference-moe): calibration, and the ladder of policies at the study's prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from specmargin.acceptance.bank import Rounds, read_bank
from specmargin.acceptance.calibration import Tokens, held_out_quality
from specmargin.acceptance.estimate import product_limit, survival_estimate
from specmargin.policies.policy import RaggedGate
from specmargin.policies.study.ladder import OURS, Contest, LadderRow, ladder
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.study.replay import draw_batches, replay
from specmargin.policies.tables import study_table
from specmargin.step import FloatArray
from tests.conftest import ROOT
from tests.data import REFERENCE_BANK

HEADS = pytest.mark.parametrize("by_pass", [False, True], ids=["block", "passes"])
LEAST = {1: 0.15, 2: 0.15, 4: 0.15, 8: 0.08, 16: 0.01, 32: 0.01, 64: 0.06, 128: 0.12, 256: 0.17, 512: 0.17}


@pytest.fixture(scope="module")
def rounds() -> Rounds:
    return read_bank([REFERENCE_BANK])


@pytest.fixture(scope="module")
def contests(rounds: Rounds) -> list[Contest]:
    """By seed."""
    return [Contest.of(rounds, seed=seed) for seed in range(2)]


@pytest.fixture(scope="module", params=[False, True], ids=["block", "passes"])
def rows(contests: list[Contest], request: pytest.FixtureRequest) -> dict[tuple[int, str], LadderRow]:
    table = study_table(by_pass=request.param)
    return {(row.concurrency, row.policy): row for row in ladder(contests[0], table)}


def test_the_bank_as_it_is_described(rounds: Rounds) -> None:
    """16,864 rounds; mean accepted about 3.0, 1.6 and 1.1 to 1.3 of 8 for cpp, python and prose."""
    assert rounds.count == 16_864
    means = {name: rounds.of_category(name).accepted_by_round.mean() for name in rounds.categories}
    assert means["cpp"] == pytest.approx(3.0, abs=0.1)
    assert means["python"] == pytest.approx(1.6, abs=0.1)
    assert 1.0 < means["prose"] < 1.35


@dataclass(frozen=True, slots=True, kw_only=True)
class IsotonicByDepth:
    """The usual alternative: one non-decreasing function of confidence per depth."""

    confidence_by_depth: tuple[FloatArray, ...]
    probability_by_depth: tuple[FloatArray, ...]

    @classmethod
    def fit(cls, tokens: Tokens) -> IsotonicByDepth:
        confidences, probabilities = [], []
        for depth in range(int(tokens.depth.max()) + 1):
            own = tokens.depth == depth
            levels, level, count = np.unique(tokens.confidence[own], return_inverse=True, return_counts=True)
            share = np.bincount(level, weights=tokens.accepted[own]) / count  # equal confidences are one point
            rising = isotonic_regression(share, weights=count.astype(np.float64)).x
            confidences.append(levels)
            probabilities.append(np.clip(rising, 0.005, 0.995))
        return cls(confidence_by_depth=tuple(confidences), probability_by_depth=tuple(probabilities))

    def probability(self, tokens: Tokens) -> FloatArray:
        probability = np.empty(tokens.depth.size)
        for depth in np.unique(tokens.depth):
            own = tokens.depth == depth
            d = min(int(depth), len(self.confidence_by_depth) - 1)
            probability[own] = np.interp(
                tokens.confidence[own], self.confidence_by_depth[d], self.probability_by_depth[d]
            )
        return probability


def test_calibration(rounds: Rounds) -> None:
    """15 bins of equal mass, 20 splits by request: at most 0.02 at depth 1 and 0.03 at depth 4 (raw: about 0.09 and
    0.05); log loss below raw and below isotonic by depth, at every depth."""
    by_depth = held_out_quality(rounds, splits=20, others={"isotonic": IsotonicByDepth.fit})
    assert list(by_depth) == list(range(1, rounds.depth + 1))
    for depth, held_out in by_depth.items():
        print(depth, held_out)
        assert held_out["calibrated"].log_loss < held_out["raw"].log_loss
        assert held_out["calibrated"].log_loss < held_out["isotonic"].log_loss
    assert by_depth[1]["raw"].calibration_error > 0.07
    assert by_depth[1]["calibrated"].calibration_error <= 0.02
    assert by_depth[4]["calibrated"].calibration_error <= 0.03


def test_ladder(rows: dict[tuple[int, str], LadderRow]) -> None:
    """Ours over the best fixed depth in hindsight, by concurrency, as the study asks."""
    for concurrency, least in LEAST.items():
        assert rows[concurrency, OURS].gain >= least, concurrency
        assert abs(rows[concurrency, "homogeneous"].gain) <= 0.01
        goodput = rows[concurrency, OURS].goodput_tokens_per_second
        assert goodput > rows[concurrency, "none"].goodput_tokens_per_second
        assert goodput < rows[concurrency, "oracle"].goodput_tokens_per_second


def test_the_page_shows_what_is_played(rows: dict[tuple[int, str], LadderRow], request: pytest.FixtureRequest) -> None:
    head = "autoregressive" if "passes" in request.node.name else "block"
    gains = " | ".join(f"{rows[concurrency, OURS].gain:+.1%}" for concurrency in LEAST)
    assert f"| study prices, {head} head | {gains} |" in (ROOT / "docs" / "results" / "policies.md").read_text()


def test_no_peer_wins(rows: dict[tuple[int, str], LadderRow]) -> None:
    peers = ("vLLM adaptive verification", "SGLang ladder", "TurboSpec", "Cascade", "one-width gate")
    for concurrency in LEAST:
        best = max(rows[concurrency, peer].gain for peer in peers)
        assert rows[concurrency, OURS].gain > best - 0.001, concurrency


@HEADS
def test_calibrated_is_above_raw_on_the_same_batches(contests: list[Contest], by_pass: bool) -> None:
    """Paired over two splits; tokens less what the time would have earned. Where the batch is of the size at which
    gating matters least, one split alone may be 0.5% off either way."""
    table = study_table(by_pass=by_pass)
    gained: dict[int, list[float]] = {concurrency: [] for concurrency in list(LEAST)[::2]}
    for seed, contest in enumerate(contests):
        gate = RaggedGate(table=table, look_ahead=look_ahead(table, contest.calibrated_sample))
        raw = RaggedGate(table=table, look_ahead=look_ahead(table, contest.raw_sample))
        accepted = contest.played.accepted_by_round
        for concurrency, gains in gained.items():
            batches = draw_batches(contest.played.count, concurrency, sequences=6000, seed=seed)
            one = replay(gate, table, contest.calibrated, accepted, batches)
            other = replay(raw, table, contest.raw, accepted, batches)
            net = one.committed - other.committed - (one.seconds - other.seconds) * other.goodput
            gains.append(float(net.sum() / other.committed.sum()))
    assert np.mean(list(gained.values())) > 0.002  # 0.45% and 0.55%, of 20 contests at ten loads
    for concurrency, gains in gained.items():
        assert np.mean(gains) > -0.005, concurrency


def naive_survival(rounds: Rounds) -> FloatArray:
    """Rounds accepted that far over all rounds: right only where every round drafts to the same depth."""
    deepest = int(rounds.drafted_by_round.max())
    return np.array([float((rounds.accepted_by_round >= depth).mean()) for depth in range(1, deepest + 1)])


def test_rounds_cut_short_are_censored(rounds: Rounds) -> None:
    """Under a depth that varies the naive curve is far too low; the product-limit one is not."""
    generator = np.random.default_rng(0)
    depth = generator.choice([1, 2, 4, 8], rounds.count)
    cut = Rounds(
        category_by_round=rounds.category_by_round,
        prompt_by_round=rounds.prompt_by_round,
        round_index=rounds.round_index,
        drafted_by_round=depth,
        accepted_by_round=np.minimum(rounds.accepted_by_round, depth),
        confidence_by_round_depth=rounds.confidence_by_round_depth,
        speculator=rounds.speculator,
        source="cut",
    )
    whole = survival_estimate(rounds)
    slack = 4.0 * whole.standard_error + 0.02
    assert (np.abs(product_limit(cut) - whole.survival) < slack).all()
    assert (naive_survival(cut)[2:] < 0.6 * whole.survival[2:]).all()
