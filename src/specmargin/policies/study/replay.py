"""Policies replayed on a bank, with prices as the clock: the same batches for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.policies.policy import Outcome, Policy
from specmargin.policies.tables import PriceTable, to_depth
from specmargin.step import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """By step: what was committed and how long it took."""

    committed: FloatArray
    seconds: FloatArray

    @property
    def goodput(self) -> float:
        return float(self.committed.sum() / self.seconds.sum())


def draw_batches(rounds: int, batch: int, *, sequences: int, seed: int) -> list[IntArray]:
    """Indices of rounds, step by step."""
    generator = np.random.default_rng([seed, batch])
    return [generator.integers(0, rounds, batch) for _ in range(max(sequences // batch, 40))]


def play(
    policy: Policy, table: PriceTable, survival: FloatArray, accepted: IntArray, batches: Sequence[IntArray]
) -> Played:
    """`survival`: (rounds, depth), as this policy's signal has it; `accepted`: what the target would accept."""
    survival = to_depth(survival, table.max_depth)
    steps = [_step(policy, table, survival[rows], accepted[rows]) for rows in batches]
    committed, seconds = np.array(steps).T
    return Played(committed=committed, seconds=seconds)


def _step(policy: Policy, table: PriceTable, survival: FloatArray, accepted: IntArray) -> tuple[float, float]:
    batch = accepted.size
    depth = policy.draft_depth(batch)
    drafted, drafting = _draft(policy, table, survival, depth)
    verified = policy.verify_depths(survival, drafted).copy()
    taken = np.minimum(accepted, verified)
    seconds = drafting + table.verify_seconds(verified.astype(np.float64))
    policy.observe(Outcome(drafted=drafted, verified=verified, accepted=taken, seconds=seconds))
    return float(batch + taken.sum()), seconds


def _draft(policy: Policy, table: PriceTable, survival: FloatArray, depth: int) -> tuple[IntArray, float]:
    batch = survival.shape[0]
    if depth == 0:
        return np.zeros(batch, dtype=np.int64), 0.0
    if not table.draft.by_pass:
        return np.full(batch, depth), table.draft.seconds(np.array([float(batch)]))
    drafted = np.zeros(batch, dtype=np.int64)
    passes = np.zeros(depth)
    so_far, going = np.ones(batch), np.ones(batch, dtype=bool)
    for at in range(depth):
        going = going & policy.keep_drafting(so_far, at)
        if not going.any():
            break
        passes[at] = going.sum()
        drafted[going] += 1
        so_far = np.where(going, survival[:, at], so_far)
    return drafted, table.draft.seconds(passes)
