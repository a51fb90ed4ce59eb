"""The ladder: every policy on the same batches of a bank, by concurrency. Fitted on one half of the requests, replayed
on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from specmargin.acceptance.bank import Rounds
from specmargin.acceptance.calibration import Logistic, Raw, survival_of, tokens_of
from specmargin.acceptance.estimate import product_limit
from specmargin.errors import AcceptanceError
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.types import LookAhead
from specmargin.policies.peer_vllm import OnlineEstimator, VllmAdaptive, log_odds, profiled_by
from specmargin.policies.peers import Cascade, SglangLadder, TurboSpec, by_token_count
from specmargin.policies.policy import OneWidthGate, Oracle, Policy, RaggedGate, ScheduledDepth
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.study.replay import draw_batches, replay
from specmargin.step import FloatArray, IntArray

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
OURS = "ours"
VLLM = "vLLM adaptive verification"
_SEQUENCES = 6000  # replayed per concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    concurrency: int
    policy: str
    goodput_tokens_per_second: float
    gain: float  # over the best fixed depth in hindsight


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A bank split by request, with the signals of both halves: raw and calibrated."""

    learned: Rounds
    played: Rounds
    calibrated_sample: FloatArray
    raw_sample: FloatArray
    calibrated: FloatArray
    raw: FloatArray

    @classmethod
    def of(cls, rounds: Rounds, *, seed: int) -> Contest:
        requests = np.unique(rounds.prompt_by_round)
        if requests.size < 2 or not rounds.has_confidence:
            raise AcceptanceError(f"{rounds.source}: policies are compared on a bank with confidences and two requests")
        half = np.random.default_rng(seed).permutation(requests)[: requests.size // 2]
        in_half = np.isin(rounds.prompt_by_round, half)
        learned, played = rounds.chosen(in_half), rounds.chosen(~in_half)
        calibrator = Logistic.fit(tokens_of(learned), depths=rounds.depth)
        return cls(
            learned=learned,
            played=played,
            calibrated_sample=survival_of(learned, calibrator),
            raw_sample=survival_of(learned, Raw()),
            calibrated=survival_of(played, calibrator),
            raw=survival_of(played, Raw()),
        )

    @property
    def outcome(self) -> FloatArray:
        depth = self.calibrated.shape[1]
        return (np.arange(depth) < self.played.accepted_by_round[:, np.newaxis]).astype(np.float64)


def ladder(
    contest: Contest,
    table: PriceTable,
    *,
    profiled: FloatArray | None = None,
    concurrencies: Sequence[int] = CONCURRENCIES,
    sequences: int = _SEQUENCES,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[LadderRow]:
    """`profiled`: verify seconds by positions as vLLM profiles them; None: by the table, at its own context."""
    ahead, raw_ahead = look_ahead(table, contest.calibrated_sample), look_ahead(table, contest.raw_sample)
    vllm = _vllm(contest, table, profiled)
    for concurrency in concurrencies:
        batches = draw_batches(contest.played.count, concurrency, sequences=sequences, seed=seed)
        accepted = contest.played.accepted_by_round
        fixed = fixed_goodput(table, accepted[np.stack(batches)])
        best = float(fixed.max())
        yield _row(concurrency, "none", float(fixed[0]), best)
        yield _row(concurrency, "best fixed", best, best)
        for name, policy, signal in _contestants(contest, table, (ahead, raw_ahead), deepcopy(vllm)):
            played = replay(policy, table, signal, accepted, batches, before_step=_recall(contest, policy))
            yield _row(concurrency, name, played.goodput, best)
        advance()


def _vllm(contest: Contest, table: PriceTable, profiled: FloatArray | None) -> VllmAdaptive:
    """With an estimator that has learned from one half of the requests, and goes on to learn from the other."""
    return VllmAdaptive(
        verify_seconds=profiled_by(table) if profiled is None else profiled,
        draft_seconds=table.draft_seconds[:, table.max_depth, 0],
        depth=table.max_depth,
        estimator=OnlineEstimator.fitted(contest.learned, contest.raw_sample, table.max_depth),
    )


def _contestants(
    contest: Contest, table: PriceTable, look_aheads: tuple[LookAhead, LookAhead], vllm: VllmAdaptive
) -> Iterator[tuple[str, Policy, FloatArray]]:
    ahead, raw_ahead = look_aheads
    mean = np.pad(product_limit(contest.learned), (0, table.max_depth))[: table.max_depth]
    counted = by_token_count(table)
    yield "homogeneous", ScheduledDepth.homogeneous(table, mean), contest.calibrated
    yield "one-width gate", OneWidthGate(table=table, look_ahead=ahead), contest.calibrated
    yield "ragged gate, raw", RaggedGate(table=table, look_ahead=raw_ahead), contest.raw
    yield OURS, RaggedGate(table=table, look_ahead=ahead), contest.calibrated
    yield "oracle", Oracle(gate=RaggedGate(table=table, look_ahead=ahead)), contest.outcome
    yield VLLM, vllm, contest.raw
    yield "SGLang ladder", SglangLadder(max_depth=table.max_depth), contest.raw
    yield "TurboSpec", TurboSpec(table=counted), contest.raw
    yield "Cascade", Cascade(max_depth=table.max_depth), contest.raw


def _recall(contest: Contest, policy: Policy) -> Callable[[IntArray], None] | None:
    """vLLM decides its budget by the confidences of the round before, which batches drawn at random do not have."""
    if not isinstance(policy, VllmAdaptive):
        return None
    before = previous_rounds(contest.played)
    earlier = log_odds(np.where(before[:, np.newaxis] >= 0, contest.raw[before], 1.0))  # 1.0: the first of a request
    return lambda rows: policy.recall(earlier[rows])


def previous_rounds(rounds: Rounds) -> IntArray:
    """By round: the one before of the same request; −1 where there is none."""
    order = np.lexsort((rounds.round_index, rounds.prompt_by_round))
    prompt, index = rounds.prompt_by_round[order], rounds.round_index[order]
    follows = (prompt[1:] == prompt[:-1]) & (index[1:] == index[:-1] + 1)
    before = np.full(rounds.count, -1)
    before[order[1:][follows]] = order[:-1][follows]
    return before


def fixed_goodput(table: PriceTable, accepted: IntArray) -> FloatArray:
    """By depth: what replaying a fixed depth would give. `accepted`: (steps, batch); all steps take the same time."""
    steps, batch = accepted.shape
    goodput = np.empty(table.max_depth + 1)
    for depth in range(goodput.size):
        drafted = np.full(batch, depth)
        seconds = table.drafting_seconds(drafted) + table.verify_seconds(drafted)
        goodput[depth] = (accepted.size + np.minimum(accepted, depth).sum()) / (steps * seconds)
    return goodput


def _row(concurrency: int, policy: str, goodput: float, best: float) -> LadderRow:
    return LadderRow(
        concurrency=concurrency, policy=policy, goodput_tokens_per_second=goodput, gain=goodput / best - 1.0
    )
