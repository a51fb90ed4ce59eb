"""Policies replayed on a bank, timed by prices. All policies get the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import Outcome, Policy
from specmargin.policies.tables import to_depth
from specmargin.step import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Tokens committed and seconds, by step."""

    committed: FloatArray
    seconds: FloatArray

    @property
    def goodput(self) -> float:
        return float(self.committed.sum() / self.seconds.sum())


def draw_batches(rounds: int, batch: int, *, sequences: int, seed: int) -> list[IntArray]:
    """Indices of rounds, step by step."""
    generator = np.random.default_rng([seed, batch])
    return [generator.integers(0, rounds, batch) for _ in range(max(sequences // batch, 40))]


def replay(
    policy: Policy,
    table: PriceTable,
    survival: FloatArray,
    accepted: IntArray,
    batches: Sequence[IntArray],
    *,
    before_step: Callable[[IntArray], None] | None = None,
) -> Replay:
    """`survival`: (rounds, depth), as this policy's signal has it; `accepted`: what the target would accept.
    `before_step` is called with the rounds of each step."""
    survival = to_depth(survival, table.max_depth)
    steps = []
    for rows in batches:
        if before_step is not None:
            before_step(rows)
        steps.append(_step(policy, table, survival[rows], accepted[rows]))
    committed, seconds = np.array(steps).T
    return Replay(committed=committed, seconds=seconds)


def _step(policy: Policy, table: PriceTable, survival: FloatArray, accepted: IntArray) -> tuple[float, float]:
    batch = accepted.size
    decision = policy.draft(batch)
    drafted = policy.draft_lengths(decision, survival)
    decision = policy.verify(decision, survival, drafted)
    verified = drafted if decision.verify_depths is None else decision.verify_depths
    taken = np.minimum(accepted, verified)
    seconds = table.drafting_seconds(drafted) + table.verify_seconds(verified)
    policy.observe(Outcome(decision=decision, drafted=drafted, verified=verified, accepted=taken, seconds=seconds))
    return float(batch + taken.sum()), seconds
