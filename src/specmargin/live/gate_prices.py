"""The budget of a step by a policy's prices, for a gate in the workers. NumPy and compiled code only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specmargin.errors import EngineError
from specmargin.live.gate_messages import GateOrder
from specmargin.live.policy_schema import PolicyFile
from specmargin.policies.kernel.budget import (
    LEAST_SURVIVAL,
    Handle,
    Priced,
    StepShape,
    best_budget,
    held,
    rounds_for,
    token_weights,
)
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.tuning import Tuning
from specmargin.policies.rules import conditional_of
from specmargin.step import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDrafts:
    """The drafts of one step, by sequence."""

    confidence: FloatArray  # (rounds, sequences, depth): conditional acceptance in recent rounds
    drafted: IntArray
    other_tokens: IntArray  # 1 where a sequence decodes, more where it reads its prompt
    sampling: int  # sequences that get a token
    most: int  # draft tokens that can be verified

    @property
    def total(self) -> int:
        return min(int(self.drafted.sum()), self.most)


@dataclass(kw_only=True)
class GatePrices:
    """Prices of the steps of one engine."""

    table: PriceTable
    depths: int  # draft tokens of the engine
    prior: FloatArray  # by depth: conditional acceptance of a sequence about which nothing is known
    tuning: Tuning = field(default_factory=Tuning)
    weights: FloatArray = field(init=False)  # (batch, depth): ranking by survival over marginal price
    _handle: Handle = field(init=False)

    def __post_init__(self) -> None:
        if self.prior.shape != (self.depths,):
            raise EngineError(f"the gate needs the acceptance of {self.depths} depths, not of {self.prior.size}")
        self.weights = token_weights(self.table, self.depths)
        self.set_graphs(())

    def set_graphs(self, sizes: Sequence[int]) -> None:
        """Positions of the captured graphs, to which steps are padded."""
        if sizes:
            self.table = self.table.with_graphs(max(sizes))
        self._handle = held(Priced.of(self.table, self.tuning.as_rows(), np.array(sorted(sizes), dtype=np.int64)))

    def rounds_for(self, batch: int) -> int:
        """How many of its recent rounds `budget` takes for a batch."""
        return rounds_for(self.tuning.as_rows()[0], batch)

    def budget(self, drafts: StepDrafts, order: GateOrder) -> int | None:
        """Draft tokens to verify; None if the step is outside the prices."""
        total = drafts.total
        if not order.gated or total == 0:
            return total
        chosen = self._best(drafts, order)
        if chosen is not None and not 0 <= chosen <= total:
            raise EngineError(f"the gate's budget of {chosen} is not in 0..{total}")
        return chosen

    def _best(self, drafts: StepDrafts, order: GateOrder) -> int | None:
        decodes = drafts.other_tokens == 1
        batch, table = int(decodes.sum()), self.table
        if not 0 < batch <= table.max_batch:
            return None
        drafted = np.ascontiguousarray(drafts.drafted[decodes], dtype=np.int64)
        depth = int(drafted.max()) if order.depth < 0 else order.depth
        seconds = float(table.draft_seconds[batch, min(depth, table.max_depth), 0])
        shape = StepShape(
            sampling=int(drafts.sampling),
            prompt_tokens=int(drafts.other_tokens[~decodes].sum()),
            draft_seconds=seconds * order.draft_factor,
            most=drafts.total,
        )
        survival = self._survival(drafts.confidence[:, decodes])
        return int(best_budget(self._handle, survival, drafted, shape, self._factors(order))[0])

    def warm_up(self) -> None:
        """Compile the code of `budget`."""
        one = np.ones(1, dtype=np.int64)
        self.budget(
            StepDrafts(
                confidence=np.full((1, 1, self.depths), 0.5),
                drafted=one,
                other_tokens=one,
                sampling=1,
                most=self.depths,
            ),
            GateOrder(),
        )

    def _survival(self, confidence: FloatArray) -> FloatArray:
        """As deep as the prices; what is not a probability counts as rejected."""
        clean = np.clip(np.nan_to_num(confidence.astype(np.float64), nan=0.0), 0.0, 1.0)
        survival = np.zeros((*clean.shape[:2], self.table.max_depth))
        shared = min(clean.shape[2], self.table.max_depth)
        np.cumprod(clean[..., :shared], axis=2, out=survival[..., :shared])
        return np.maximum(survival, LEAST_SURVIVAL)

    def _factors(self, order: GateOrder) -> FloatArray:
        factors = np.ones(self.table.max_depth + 1)
        given = np.array(order.verify_factors[: factors.size], dtype=np.float64)
        factors[: given.size] = given
        factors[given.size :] = given[-1] if given.size else 1.0
        if not (np.isfinite(factors).all() and (factors > 0.0).all() and 0.0 < order.draft_factor < np.inf):
            raise EngineError("learned times must be positive numbers")
        return factors

    def cost_tables(self, batch: int, sequences: int, tokens: int) -> tuple[FloatArray, FloatArray]:
        """For vLLM's own gate at this batch: milliseconds of drafting by sequences and of verifying by positions, both
        from 0 and up to these limits."""
        table = self.table
        batch = min(max(batch, 1), table.max_batch)
        drafting = table.draft_seconds[:, -1, 0] * 1e3
        draft = np.interp(np.arange(sequences + 1), np.arange(drafting.size), drafting)
        verifying, positions = table.equal_seconds(batch) * 1e3, np.arange(tokens + 1.0)
        verify = np.interp(positions, batch * np.arange(1.0, verifying.size + 1.0), verifying)
        beyond = np.maximum(positions - batch * verifying.size, 0.0) * (verifying[-1] - verifying[-2]) / batch
        return draft, np.maximum(verify + np.maximum(beyond, 0.0), 1e-6)


def gate_prices(file: PolicyFile, depths: int, tuning: Tuning | None = None) -> GatePrices:
    """`depths`: draft tokens of the engine. Compiled here, before the first step."""
    table = file.table.table.with_graphs(None)
    prior = conditional_of(np.array(file.survival), depths)
    prices = GatePrices(table=table, depths=depths, prior=prior, tuning=tuning or Tuning())
    prices.warm_up()
    return prices
