"""What a policy knows of prices: lookup tables, filled beforehand, so that the hot path only looks up.

A verify step of B sequences with T positions takes `rest(B, T) + experts(M)`, M = Σ m(q_i) the strangers whose experts
the runs touch: a longer run of a sequence whose experts are already loaded costs less than a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError
from specmargin.policies.kernel.gate import BatchPrices
from specmargin.prices.drafters import HeadDrafter
from specmargin.prices.work import Component
from specmargin.step import FloatArray, Step

_NOISE = 0.01  # of measured prices


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """Seconds of drafting: once for a block head, each pass for an autoregressive one."""

    pass_by_batch: FloatArray  # of one pass (or block) for 0, 1, … sequences
    by_pass: bool

    @classmethod
    def line(cls, *, fixed_seconds: float, sequence_seconds: float, by_pass: bool, max_batch: int) -> DraftCost:
        sequences = np.arange(max_batch + 1.0)
        return cls(
            pass_by_batch=np.where(sequences > 0, fixed_seconds + sequence_seconds * sequences, 0.0), by_pass=by_pass
        )

    def by_depth(self, batch: int, deepest: int) -> FloatArray:
        """All sequences draft to depth 0, 1, …"""
        passes = np.arange(deepest + 1.0)
        passes = passes if self.by_pass else np.minimum(passes, 1.0)
        return np.asarray(passes * self.pass_by_batch[batch])

    def seconds(self, drafting_by_pass: FloatArray) -> float:
        """`drafting_by_pass`: sequences that draft in each pass; a block head has one pass for all."""
        active = drafting_by_pass[drafting_by_pass > 0].astype(np.int64)
        return float(self.pass_by_batch[active if self.by_pass else active[:1]].sum())

    def tangent(self) -> FloatArray:
        """(batches, 2): what a pass takes beside its sequences and what each of them adds, around that many."""
        batch = np.arange(self.pass_by_batch.size)
        half = np.maximum(batch // 2, np.minimum(batch, 1))
        slope = (self.pass_by_batch[batch] - self.pass_by_batch[half]) / np.maximum(batch - half, 1)
        slope = np.maximum(slope, 0.0)
        if slope.size > 2:
            slope[1] = min(slope[2], self.pass_by_batch[1])
        return np.stack([np.maximum(self.pass_by_batch - slope * batch, 0.0), slope], axis=1)


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    rest_by_batch_depth: FloatArray  # (batches + 1, depths + 1): all but routed experts, equal runs
    expert_seconds: FloatArray  # over M, evenly spaced from 0
    expert_step: float  # of M between two entries
    effective_by_depth: FloatArray  # m(γ + 1) for γ = 0..
    draft: DraftCost

    def __post_init__(self) -> None:
        if self.draft.pass_by_batch.size != self.rest_by_batch_depth.shape[0]:
            raise ScenarioError("a price table needs the seconds of a draft pass at every batch size")
        for array in (self.rest_by_batch_depth, self.expert_seconds, self.effective_by_depth, self.draft.pass_by_batch):
            if not np.isfinite(array).all():
                raise ScenarioError("a price table must be made of finite numbers")
            array.flags.writeable = False

    @property
    def max_batch(self) -> int:
        return int(self.rest_by_batch_depth.shape[0]) - 1

    @property
    def max_depth(self) -> int:
        return int(self.effective_by_depth.size) - 1

    def of_batch(self, batch: int) -> BatchPrices:
        return self._by_batch[batch]

    @cached_property
    def _by_batch(self) -> tuple[BatchPrices, ...]:
        prices = (self.expert_seconds, self.expert_step, self.effective_by_depth)
        draft = self.draft.tangent()
        return tuple(
            (rest, *prices, line, self.draft.by_pass)
            for rest, line in zip(self.rest_by_batch_depth, draft, strict=True)
        )

    def equal_seconds(self, batch: int) -> FloatArray:
        """Verify steps of equal depths 0, 1, …"""
        return np.asarray(self.rest_by_batch_depth[batch] + self.experts_at(batch * self.effective_by_depth))

    def round_seconds(self, batch: int) -> FloatArray:
        """The same with the drafting before them."""
        return np.asarray(self.equal_seconds(batch) + self.draft.by_depth(batch, self.max_depth))

    @property
    def sensible_depths(self) -> tuple[int, ...]:
        """All but those that take longer than a deeper one at most batch sizes: kernels have favourite sizes."""
        seconds = np.stack([self.round_seconds(batch) for batch in range(1, self.max_batch + 1)])
        cheapest_deeper = np.minimum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1]
        dominated = (seconds > cheapest_deeper * (1.0 + _NOISE)).mean(axis=0) > 0.5
        return tuple(int(depth) for depth in range(self.max_depth + 1) if not dominated[depth])

    def verify_seconds(self, depths: FloatArray) -> float:
        """One step of sequences with these depths."""
        batch = depths.size
        mean = float(depths.mean())
        low = min(int(mean), self.max_depth - 1)
        rest = self.rest_by_batch_depth[batch]
        base = rest[low] + (mean - low) * (rest[low + 1] - rest[low])
        strangers = float(self.effective_by_depth[depths.astype(np.int64)].sum())
        return float(base + self.experts_at(np.array(strangers)))

    def experts_at(self, strangers: FloatArray) -> FloatArray:
        return np.asarray(
            np.interp(strangers / self.expert_step, np.arange(self.expert_seconds.size), self.expert_seconds)
        )


def to_depth(survival: FloatArray, depth: int) -> FloatArray:
    """(rounds, depth): cut, or filled up with tokens that never survive. What the compiled core takes."""
    if survival.shape[1] == depth:
        return survival
    filled = np.zeros((survival.shape[0], depth))
    width = min(depth, survival.shape[1])
    filled[:, :width] = survival[:, :width]
    return filled


def study_table(*, by_pass: bool, max_batch: int = 512, max_depth: int = 8) -> PriceTable:
    """The prices at which policies are compared: 48 layers, 128 experts, 8 a token, a slow host (see docs)."""
    batch, depth = np.arange(max_batch + 1.0)[:, np.newaxis], np.arange(max_depth + 1.0)
    rest = 2.4e-3 + 0.05e-3 * batch + 48 * 20e-6 + 2.0e-3 + 0.01e-3 * batch * (depth + 1.0)
    effective = (depth + 1.0) ** 0.8
    largest = max_batch * effective[-1]
    strangers = np.linspace(0.0, largest, 4096)
    distinct = 128.0 * (1.0 - (1.0 - 8.0 / 128.0) ** strangers)
    draft = (
        DraftCost.line(fixed_seconds=0.35e-3, sequence_seconds=0.002e-3, by_pass=True, max_batch=max_batch)
        if by_pass
        else DraftCost.line(fixed_seconds=0.6e-3, sequence_seconds=0.004e-3, by_pass=False, max_batch=max_batch)
    )
    return PriceTable(
        rest_by_batch_depth=rest,
        expert_seconds=48 * 2.2e-6 * distinct,
        expert_step=float(strangers[1]),
        effective_by_depth=effective,
        draft=draft,
    )


def scenario_table(scenario: Scenario, *, max_batch: int, max_depth: int) -> PriceTable:
    """A scenario's own prices; contexts are taken to be alike. Depth 0 is speculation that is off: not none."""
    batch = np.unique(np.concatenate([np.arange(1, 17), np.geomspace(16, max_batch, 40).round(), [max_batch]]))
    depth = np.arange(max_depth + 1.0)
    step = Step.uniform(batch=batch[:, np.newaxis], depth=depth, context=scenario.context)
    total = np.array(scenario.verify(step).total_seconds)
    total[:, 0] += scenario.off_seconds(batch, scenario.context, total[:, 0])
    effective = effective_positions(scenario, depth)
    # One entry a stranger: experts take a fixed time, and a coarser table is 10% off for a sequence alone.
    strangers = np.arange(np.ceil(max_batch * float(effective[-1])) + 2.0)
    experts = expert_seconds(scenario, strangers)
    # Whatever is not the experts of strangers is the rest, so that equal depths are priced exactly in every form.
    rest = total - np.interp(batch[:, np.newaxis] * effective, strangers, experts)
    every = np.arange(max_batch + 1.0)
    return PriceTable(
        rest_by_batch_depth=np.stack([np.interp(every, batch, column) for column in rest.T], axis=1),
        expert_seconds=experts,
        expert_step=1.0,
        effective_by_depth=effective,
        draft=_draft_cost(scenario, batch, max_batch, max_depth),
    )


def effective_positions(scenario: Scenario, depth: FloatArray) -> FloatArray:
    pools = scenario.architecture.pools
    local = scenario.routing.local(pools[0]) if pools else None
    return depth + 1.0 if local is None else np.concatenate([[1.0], local.effective_positions(depth[1:] + 1.0)])


def expert_seconds(scenario: Scenario, strangers: FloatArray) -> FloatArray:
    """Routed experts of so many strangers, one position each."""
    step = Step.uniform(batch=np.maximum(strangers, 1.0), depth=0, context=scenario.context)
    for line in scenario.verify(step).components:
        if line.component is Component.ROUTED_EXPERTS:
            return np.asarray(line.seconds * np.minimum(strangers, 1.0))
    return np.zeros_like(strangers)


def _draft_cost(scenario: Scenario, batch: FloatArray, max_batch: int, max_depth: int) -> DraftCost:
    """One pass more (or the block) at every batch size: experts of a draft head are soon covered, so no line holds."""
    drafter = scenario.drafter
    by_pass = not (isinstance(drafter, HeadDrafter) and drafter.head.block is not None)
    shape = np.ones_like(batch)
    whole = scenario.drafting.seconds(drafter, batch=batch, depth=max_depth * shape, context=scenario.context * shape)
    each = np.interp(np.arange(max_batch + 1.0), batch, whole / max_depth if by_pass else whole)
    each[0] = 0.0
    return DraftCost(pass_by_batch=each, by_pass=by_pass)
