"""Unverified decoding, an upper bound: every draft token is committed, and the target never verifies one.

A round is one plain step of the target (one position per sequence) and the drafting; it commits the draft and one token
more. The output is then no longer the target's, so this is not a way to serve: it shows what verification costs. It
leaves out that the target needs the KV of the tokens it did not compute. Computing it takes the positions of the verify
step, all but their logits, so that a real system without verification gains little of the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from specmargin.decisions.plan import Plan
from specmargin.errors import ScenarioError
from specmargin.prices.drafters import Drafter
from specmargin.step import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedRound:
    """A round at one batch and depth, verified and not."""

    depth: int
    drafted: float  # tokens per draft: the depth, or less where drafts stop early
    plain_seconds: float  # a step of an engine without speculation
    round_seconds: float  # as it is: drafting and verification
    unverified_seconds: float  # drafting and a plain step

    @property
    def speedup(self) -> float:
        """Over no speculation, with every draft token committed."""
        return (self.drafted + 1.0) * self.plain_seconds / self.unverified_seconds

    @property
    def verification_seconds(self) -> float:
        """What verification adds to a round: the verify step beyond a plain one."""
        return self.round_seconds - self.unverified_seconds

    @property
    def verification_share(self) -> float:
        """The same as a share of the round."""
        return self.verification_seconds / self.round_seconds

    def values(self) -> dict[str, Any]:
        return {
            "depth": self.depth,
            "drafted": self.drafted,
            "speedup": self.speedup,
            "round_seconds": self.unverified_seconds,
            "verification_seconds": self.verification_seconds,
            "verification_share": self.verification_share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedRow:
    batch: int
    planned_depth: int
    planned_speedup: float
    free_speedup: float  # if verification took no time and accepted as many tokens as it does
    bound: UnverifiedRound  # at the planned depth, or at depth 1 where none is planned

    def values(self) -> dict[str, Any]:
        planned = {"planned_depth": self.planned_depth, "planned_speedup": self.planned_speedup}
        return {"batch": self.batch, **planned, "free_verification_speedup": self.free_speedup, **self.bound.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """The bound beside a plan."""

    rows: tuple[UnverifiedRow, ...]


def unverified_seconds(drafter: Drafter, plain: FloatArray, draft: FloatArray) -> FloatArray:
    """Seconds of a round without verification. Overlapped drafting never has to be repeated: nothing is rejected."""
    return plain + draft if drafter.hit_rate is None else np.maximum(plain, draft)


def unverified(plan: Plan) -> Unverified:
    """The bound at every batch of a plan."""
    if plan.setting.max_depth == 0:
        raise ScenarioError("--compare unverified needs drafts: --depth 1 or more")
    grid = plan.pricer.grid([row.batch for row in plan.rows], plan.setting.max_depth)
    plain, stop = grid.no_spec_seconds, plan.scenario.early_stop
    bound = unverified_seconds(plan.scenario.drafter, plain[:, np.newaxis], grid.draft_seconds)
    rows = (
        UnverifiedRow(
            batch=row.batch,
            planned_depth=row.depth,
            planned_speedup=row.speedup,
            free_speedup=float(grid.committed[depth] * plain[i] / bound[i, depth]),
            bound=UnverifiedRound(
                depth=depth,
                drafted=float(depth) if stop is None else stop.mean_drafted(depth),
                plain_seconds=float(plain[i]),
                round_seconds=float(grid.round_seconds[i, depth]),
                unverified_seconds=float(bound[i, depth]),
            ),
        )
        for i, (row, depth) in enumerate((row, max(row.depth, 1)) for row in plan.rows)
    )
    return Unverified(rows=tuple(rows))
