"""vLLM's adaptive verification (0.31 and 0.32), for comparison: its estimator, its cost curve and its budget.

Read in vLLM's source and compared with its own classes (`tests/live/test_peer_vllm.py`):

- The estimator predicts the acceptance of a token, given those before it, by a logistic curve over the log-odds of the
  drafter's confidence: one slope, and an intercept by position. It is refitted every 100 steps by one damped Newton
  step on what was verified.
- The budget of a step is the number of draft tokens with the best (sequences + Σ survival) / (drafting + verifying).
  Survival there is one round old: its newest predictions have not reached the host. New sequences count as certain.
- Verifying is priced by a curve over positions, profiled at startup with padding tokens, which no expert is read for,
  and every position as a request of its own with 8,192 tokens of context, as many as `max_num_seqs`.
- The budget goes to the tokens with the highest survival by the newest predictions. Drafts always have full depth.

Padding to the sizes of CUDA graphs is left out on both sides: in its curve, and in the prices that time its steps.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from specmargin.acceptance.bank import Rounds
from specmargin.compiler import entry
from specmargin.policies.kernel.prices import FIRST_CONTEXT, PriceTable, ragged_parts
from specmargin.policies.policy import Decision, Outcome, WholeDrafts
from specmargin.step import FloatArray, IntArray

_MAX_LOG_ODDS = 40.0
_REFIT_STEPS = 100
_DAMPING_OBSERVATIONS = 50.0
_RIDGE = 1e-3
_FIT_BATCH, _FIT_PASSES = 16, 4  # a server that has run for a while


@dataclass(kw_only=True)
class OnlineEstimator:
    """Acceptance of draft tokens, learned from those that were verified."""

    depths: int
    slope: float = 0.5
    intercepts: FloatArray = field(default_factory=lambda: np.zeros(0))
    _information: FloatArray = field(init=False)  # (depth, 3): of the slope, of both, of the intercept
    _gradient: FloatArray = field(init=False)  # (depth, 2)
    _counts: FloatArray = field(init=False)
    _steps: int = 0

    def __post_init__(self) -> None:
        if self.intercepts.size == 0:
            self.intercepts = np.full(self.depths, -0.2)
        self._clear()

    def _clear(self) -> None:
        self._information, self._gradient = np.zeros((self.depths, 3)), np.zeros((self.depths, 2))
        self._counts = np.zeros(self.depths)

    @classmethod
    def fitted(cls, rounds: Rounds, confidence_survival: FloatArray, depths: int) -> OnlineEstimator:
        """After these rounds, verified whole, in batches and in their order."""
        made = cls(depths=depths)
        width = min(depths, confidence_survival.shape[1])
        odds = log_odds(confidence_survival[:, :width])
        drafted = np.minimum(rounds.drafted_by_round, width)
        accepted = np.minimum(rounds.accepted_by_round, drafted)
        for _ in range(_FIT_PASSES):
            for first in range(0, odds.shape[0], _FIT_BATCH):
                rows = slice(first, first + _FIT_BATCH)
                made.grade(odds[rows], made.predict(odds[rows]), drafted[rows], accepted[rows])
        return made

    def predict(self, odds: FloatArray) -> FloatArray:
        """(sequences, depth): acceptance, given that the tokens before are accepted."""
        return np.asarray(1.0 / (1.0 + np.exp(-(self.slope * odds + self.intercepts[: odds.shape[1]]))))

    def grade(self, odds: FloatArray, predicted: FloatArray, verified: IntArray, accepted: IntArray) -> None:
        """A step: accepted tokens and the first rejected one are observed."""
        depth = np.arange(odds.shape[1])
        taken, sent = accepted[:, np.newaxis], verified[:, np.newaxis]
        observed = (depth <= taken) & (depth < sent)
        weight = predicted * (1.0 - predicted) * observed
        residual = ((depth < taken) - predicted) * observed
        weighted = weight * odds
        width = depth.size
        self._information[:width] += np.stack([weighted * odds, weighted, weight]).sum(axis=1).T
        self._gradient[:width] += np.stack([residual * odds, residual]).sum(axis=1).T
        self._counts[:width] += observed.sum(axis=0)
        self._steps += 1
        if self._steps % _REFIT_STEPS == 0:
            self._refit()

    def _refit(self) -> None:
        """One Newton step, damped by the number of observations; one that is no number, or that would make the slope
        negative, is not taken."""
        both, own = self._information[:, 1], self._information[:, 2] + _RIDGE
        total = self._information[:, 0].sum() + _RIDGE - (both**2 / own).sum()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            change = (self._gradient[:, 0].sum() - (both * self._gradient[:, 1] / own).sum()) / total
        change *= self._counts.sum() / (self._counts.sum() + _DAMPING_OBSERVATIONS)
        if math.isnan(change) or self.slope + change < 0.0:
            change = 0.0
        moves = (self._gradient[:, 1] - both * change) / own * self._counts / (self._counts + _DAMPING_OBSERVATIONS)
        self.slope += float(change)
        self.intercepts = self.intercepts + np.where(np.isnan(moves), 0.0, moves)
        self._clear()


@dataclass(kw_only=True)
class VllmAdaptive(WholeDrafts):
    """Sequences are told apart by their place in the batch; it changes when one before it ends."""

    verify_seconds: FloatArray  # by positions from 0, as vLLM profiles them
    draft_seconds: FloatArray  # by sequences from 0: drafting to full depth
    depth: int
    estimator: OnlineEstimator
    name: str = "vLLM adaptive verification"
    _stale: FloatArray = field(default_factory=lambda: np.ones((0, 0)))
    _ungraded: deque[tuple[IntArray, FloatArray, FloatArray]] = field(default_factory=lambda: deque(maxlen=16))

    def draft(self, batch: int) -> Decision:  # noqa: ARG002
        return Decision(self.depth, gated=True)

    def verify(self, decision: Decision, survival: FloatArray, drafted: IntArray) -> Decision:
        """`survival`: the running product of the drafter's confidences."""
        width = int(drafted.max(initial=0))
        odds = log_odds(survival[:, :width])
        predicted = self.estimator.predict(odds)
        budget = self._budget(self._stale_of(*predicted.shape), drafted)
        depths = split(predicted, drafted, budget)
        self._stale = predicted
        self._ungraded.append((depths, odds, predicted))
        return decision._replace(verify_depths=depths)

    def recall(self, odds: FloatArray) -> None:
        """What the host knows of the next step's sequences: the log-odds of the confidences of their round before."""
        self._stale = self.estimator.predict(odds[:, : self.depth])

    def _stale_of(self, batch: int, width: int) -> FloatArray:
        """Predictions of the round before, by place; sequences without one are certain."""
        stale = np.ones((batch, width))
        rows, columns = min(batch, self._stale.shape[0]), min(width, self._stale.shape[1])
        stale[:rows, :columns] = self._stale[:rows, :columns]
        return stale

    def _budget(self, predicted: FloatArray, drafted: IntArray) -> int:
        batch = drafted.size
        survival = np.cumprod(predicted, axis=1)
        scores = np.sort(survival[np.arange(predicted.shape[1]) < drafted[:, np.newaxis]])[::-1]
        tokens = batch + np.concatenate([[0.0], np.cumsum(scores)])
        positions = np.minimum(batch + np.arange(tokens.size), self.verify_seconds.size - 1)
        return int((tokens / (self.draft_seconds[batch] + self.verify_seconds[positions])).argmax())

    def observe(self, outcome: Outcome) -> bool:
        """Steps from which a sequence was left out are not graded: which one is not known here."""
        while self._ungraded:
            depths, odds, predicted = self._ungraded.popleft()
            if depths is outcome.decision.verify_depths:
                if depths.size == outcome.accepted.size:
                    self.estimator.grade(odds, predicted, outcome.verified, outcome.accepted)
                break
        return True


def split(predicted: FloatArray, drafted: IntArray, budget: int) -> IntArray:
    """Verify depths: the `budget` tokens that most probably survive."""
    batch, width = predicted.shape
    survival = np.where(np.arange(width) < drafted[:, np.newaxis], np.cumprod(predicted, axis=1), -np.inf)
    best = np.argsort(-survival, axis=None, kind="stable")[:budget]
    return np.bincount(best // max(width, 1), minlength=batch).astype(np.int64)


def log_odds(survival: FloatArray) -> FloatArray:
    """Of each token's confidence, from the running product of confidences."""
    before = np.concatenate([np.ones((survival.shape[0], 1)), survival[:, :-1]], axis=1)
    confidence = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0.0)
    with np.errstate(divide="ignore"):
        odds = np.log(confidence) - np.log1p(-np.minimum(confidence, 1.0))
    return np.asarray(np.clip(odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS))


def profiled_by(table: PriceTable) -> FloatArray:
    """Seconds of a verify step by positions, as vLLM would profile an engine with these prices: every position is a
    request, at the table's own context, and no experts are read. See `tables.profiled_seconds` for its 8,192 tokens."""
    seconds = np.empty(table.max_batch * (table.max_depth + 1) + 1)
    _fill_profiled(table, seconds)
    return np.maximum.accumulate(seconds)


@entry
def _fill_profiled(table: PriceTable, seconds: FloatArray) -> None:
    most = table.rest_seconds.shape[0] - 1
    seconds[0] = 0.0
    for positions in range(1, seconds.size):
        requests = min(positions, most)
        rest, _ = ragged_parts(table, requests, positions / requests - 1.0, 0.0, FIRST_CONTEXT)
        seconds[positions] = rest
