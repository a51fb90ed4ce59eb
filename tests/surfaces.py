"""An engine to replay policies on: seconds by batch and depth, noise, and one step between drafting and verifying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import NOT_DECIDED, Outcome, Policy
from specmargin.step import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What an engine takes: `verify_seconds` and `draft_seconds` by depth, at one batch."""

    batch: int
    verify_seconds: FloatArray
    draft_seconds: FloatArray

    @classmethod
    def of(cls, table: PriceTable, batch: int) -> Surface:
        """An engine that takes exactly what the table says."""
        verify = table.equal_seconds(batch)
        return cls(batch=batch, verify_seconds=verify, draft_seconds=table.round_seconds(batch) - verify)

    @property
    def round_seconds(self) -> FloatArray:
        return np.asarray(self.verify_seconds + self.draft_seconds)

    def slower(self, *, verify: float = 1.0, draft: float = 1.0, fixed_seconds: float = 0.0) -> Surface:
        return Surface(
            batch=self.batch,
            verify_seconds=self.verify_seconds * verify + fixed_seconds,
            draft_seconds=self.draft_seconds * draft,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """So many steps at one load and one acceptance of each token that is reached."""

    surface: Surface
    acceptance: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Steps in order: the depth that each drafted, its tokens and its seconds."""

    depths: FloatArray
    tokens: FloatArray
    seconds: FloatArray

    def goodput(self, first: int, last: int) -> float:
        return float(self.tokens[first:last].sum() / self.seconds[first:last].sum())


def replay(policy: Policy, phases: list[Phase], *, seed: int, noise: float = 0.03, learn_every: int = 1) -> Replayed:
    """Tokens are expected ones, so that two policies differ by their depths and not by luck; what the policy sees is
    drawn. `learn_every`: outcomes arrive that many steps at a time, as in a live engine."""
    generator = np.random.default_rng(seed)
    rows, unlearned, held, decision = [], [], 0, NOT_DECIDED
    for phase in phases:
        surface, batch = phase.surface, phase.surface.batch
        committed = np.cumsum(phase.acceptance ** np.arange(surface.round_seconds.size))
        for _ in range(phase.steps):
            before, verified = decision, held
            decision = policy.draft(batch)
            held = int(decision.depth)
            seconds = surface.verify_seconds[verified] + surface.draft_seconds[held]
            rows.append((held, batch * committed[verified], seconds))
            unlearned.append(
                Outcome(
                    decision=before,
                    drafted=np.full(batch, held),
                    verified=np.full(batch, verified),
                    accepted=np.minimum(generator.geometric(1.0 - phase.acceptance, batch) - 1, verified),
                    seconds=float(seconds * np.exp(generator.normal(0.0, noise))),
                )
            )
            if len(unlearned) >= learn_every:
                for outcome in unlearned:
                    policy.observe(outcome)
                unlearned.clear()
    depths, tokens, seconds = np.array(rows).T
    return Replayed(depths=depths, tokens=tokens, seconds=seconds)


def best_goodput(phase: Phase, allowed: Callable[[int], bool] = lambda _: True) -> float:
    """Of one depth, held all the time."""
    surface = phase.surface
    goodput = surface.batch * np.cumsum(phase.acceptance ** np.arange(surface.round_seconds.size))
    return max(float(goodput[d] / surface.round_seconds[d]) for d in range(goodput.size) if allowed(d))
