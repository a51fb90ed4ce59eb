"""A scenario: a model on GPUs, with a drafter, a load and prices. Everything a decision is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture
from specmargin.errors import ScenarioError
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.modes import Placement
from specmargin.prices import memory
from specmargin.prices.drafters import (
    Drafter,
    DraftPricing,
    DraftTime,
    drafter_sequence_bytes,
    drafter_weight_bytes,
    round_seconds,
)
from specmargin.prices.model import EngineTime, PriceModel, StepPrice, ledger
from specmargin.prices.work import EVERYTHING, Component, Scope, Work, target_work
from specmargin.routing.profile import UNIFORM, RoutingProfile, expert_counter, remembering
from specmargin.sources import Source
from specmargin.step import ArrayLike, ExpertCounter, FloatArray, Step

_GridSeconds = tuple[FloatArray, FloatArray, FloatArray]  # verify and draft by (batch, depth), a plain step by batch
# By batch and context, to some depth: a step without its launches, and drafting.
_Rows = dict[tuple[float, float], tuple[FloatArray, FloatArray]]
_MOST_KEPT = 20_000  # batches and contexts of one scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Prices over (batch, depth); depth runs from 0 to the deepest. Speculation off is depth 0."""

    batches: FloatArray
    depths: FloatArray
    verify_seconds: FloatArray
    draft_seconds: FloatArray
    round_seconds: FloatArray
    committed: FloatArray  # tokens a sequence commits in a round, by depth
    no_spec_seconds: FloatArray  # by batch: an engine without speculation configured
    sequence_ranks: int = 1  # GPUs that the sequences are spread over

    @property
    def positions_per_rank(self) -> FloatArray:
        """Positions that one engine process sees in a step: what its captured graphs must hold."""
        return np.asarray(np.ceil(self.batches / self.sequence_ranks)[:, np.newaxis] * (self.depths + 1.0))

    @property
    def goodput(self) -> FloatArray:
        """Committed tokens a second, by batch and depth."""
        return self.batches[:, np.newaxis] * self.committed / self.round_seconds

    @property
    def no_spec_goodput(self) -> FloatArray:
        return self.batches / self.no_spec_seconds

    @property
    def tpot_seconds(self) -> FloatArray:
        """Seconds between tokens of one sequence, by batch and depth."""
        return self.round_seconds / self.committed


@dataclass(slots=True, kw_only=True)
class _Priced:
    """What a scenario has priced so far. None of it depends on acceptance or on which steps have a graph."""

    rows: _Rows = field(default_factory=dict)
    sources_by_context: dict[float, dict[str, Source]] = field(default_factory=dict)  # by component of a plain step
    uniform: Scenario | None = None  # the one under uniform routing


@dataclass(frozen=True, kw_only=True)
class Scenario:
    architecture: Architecture
    device: Device
    prices: PriceModel
    routing: RoutingProfile
    drafter: Drafter
    survival: Survival
    layout: Layout = field(default_factory=Layout)
    context: float = 1024.0
    engine_time: EngineTime = field(default_factory=EngineTime)
    kv: Precision | None = None
    scope: Scope = EVERYTHING
    memory_utilization: float = 0.9
    draft_time: DraftTime | None = None  # measured passes of this drafter, in place of priced ones
    placement: Placement = Placement.CONTIGUOUS  # of experts over ranks, where a profile knows which is which

    def __post_init__(self) -> None:
        self.layout.check(self.architecture)
        if not self.context >= 0:
            raise ScenarioError(f"context must not be negative, got {self.context:g}")
        limit = self.architecture.max_context
        if limit is not None and self.context > limit:
            raise ScenarioError(f"context {self.context:g} is beyond {self.architecture.name}'s {limit} tokens")
        if not 0.0 < self.memory_utilization <= 1.0:
            raise ScenarioError(f"memory utilization must lie in 0..1, got {self.memory_utilization:g}")

    @property
    def kv_precision(self) -> Precision:
        return self.kv or self.architecture.kv_precision

    @cached_property
    def count_experts(self) -> ExpertCounter:
        return remembering(expert_counter(self.routing, self.layout.expert_ranks, self.placement))

    @cached_property
    def drafting(self) -> DraftPricing:
        return DraftPricing(
            model=self.prices,
            layout=self.layout,
            kv=self.kv_precision,
            count_experts=self.count_experts,
            scope=self.scope,
            layer_seconds=self.engine_time.layer_seconds,
            measured=self.draft_time,
        )

    @cached_property
    def memory(self) -> memory.MemoryBudget:
        return memory.budget(
            self.architecture,
            self.device,
            self.layout,
            drafter_bytes=drafter_weight_bytes(self.drafter, self.layout),
            utilization=self.memory_utilization,
        )

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where each input, and each component's price in a plain step, comes from."""
        return self._input_sources | self._price_sources

    @property
    def _input_sources(self) -> dict[str, Source]:
        found = {
            "model": self.architecture.source,
            "device": self.device.source,
            "engine time": self.engine_time.source,
            "drafter": self.drafter.source,
            "acceptance": self.survival.source,
        }
        if self.architecture.is_moe:
            found["routing"] = self.routing.source
        return found

    @property
    def _price_sources(self) -> dict[str, Source]:
        known = self._priced.sources_by_context
        if self.context not in known:
            step = self.verify(Step.uniform(batch=1, depth=0, context=self.context))
            own = (Component.LAYERS, Component.ENGINE, Component.LAUNCHES)
            known[self.context] = {
                str(line.component): line.source for line in step.components if line.component not in own
            }
        return known[self.context]

    def sequence_bytes(self, depth: int) -> float:
        """KV and states of one sequence on one GPU, its drafter's KV included."""
        kv, layout = self.kv_precision, self.layout
        own = memory.sequence_bytes(self.architecture.groups, self.context, layout=layout, kv=kv, depth=depth)
        return float(own + drafter_sequence_bytes(self.drafter, self.context, layout=layout, kv=kv, depth=depth))

    def largest_batch(self, depth: int) -> int:
        """Sequences that fit when the engine holds room for `depth` draft tokens of each."""
        return memory.largest_batch(self.memory, self.sequence_bytes(depth), self.layout)

    def check_memory(self) -> None:
        """Refuse a model whose weights do not fit; the budget itself raises."""
        if self.memory.free_bytes <= 0:
            raise ScenarioError(f"{self.architecture.name} leaves no memory for sequences")

    @cached_property
    def no_spec_largest_batch(self) -> int:
        """Sequences that fit in an engine without speculation: no drafter, no room for drafts."""
        no_spec = replace(self.memory, drafter_bytes=0.0)
        own = memory.sequence_bytes(self.architecture.groups, self.context, layout=self.layout, kv=self.kv_precision)
        return memory.largest_batch(no_spec, float(own), self.layout)

    def verify(self, step: Step, local: Step | None = None) -> StepPrice:
        """The ledger of one step of the target; `local` is the busiest rank's part of it, worked out if not given."""
        local = step.divided(self.layout.sequence_ranks) if local is None else local
        works = self.works(step, local)
        return ledger(self.prices, works, step=local, engine=self.engine_time, layers=self.architecture.layers)

    def works(self, step: Step, local: Step | None = None) -> list[Work]:
        """What a step of the target has to do, before anybody prices it."""
        return target_work(
            self.architecture,
            step,
            self.count_experts(self.architecture.pools, step),
            layout=self.layout,
            kv=self.kv_precision,
            scope=self.scope,
            local=local,
        )

    def marginal(self, step: Step) -> tuple[StepPrice, StepPrice]:
        """The step, and the same step with one more position of one sequence; inside a graph both, or neither.

        Ranks with sequences of their own run in step, so each of them brings one: `sequence_ranks` positions more.
        """
        ranks = self.layout.sequence_ranks
        more_local = step.divided(ranks).one_position_more()
        captured = self.engine_time.graph_limit
        roomier = self.with_graphs_for(None if captured is None else captured + 1)
        return self.verify(step), roomier.verify(step.one_position_more(ranks), more_local)

    def with_graphs_for(self, positions: int | None) -> Scenario:
        """The same engine with other capture sizes; None: with a graph for every step."""
        other = replace(self, engine_time=replace(self.engine_time, graph_limit=positions))
        return self._sharing(other)

    def distinct_experts(self, step: Step) -> FloatArray | None:
        """Mean over the layers that route; None for a dense model."""
        groups = self.architecture.expert_groups
        if not groups:
            return None
        load = self.count_experts(self.architecture.pools, step)
        layers = sum(group.count for group, _ in groups)
        total = np.zeros_like(step.positions)
        for (group, _), distinct in zip(groups, load.distinct_by_group, strict=True):
            total = total + group.count * distinct
        return np.asarray(total / layers)

    def grid(self, batches: ArrayLike, max_depth: int, context: ArrayLike | None = None) -> Grid:
        """Prices of every batch (at the scenario's context, or at one of its own) at every depth to `max_depth`."""
        batch = np.atleast_1d(np.asarray(batches, dtype=np.float64))
        ctx = np.broadcast_to(np.asarray(self.context if context is None else context, np.float64), batch.shape)
        verify, draft, no_spec = self._seconds(batch, ctx, max_depth)
        return Grid(
            batches=batch,
            depths=np.arange(max_depth + 1, dtype=np.float64),
            verify_seconds=verify,
            draft_seconds=draft,
            round_seconds=round_seconds(self.drafter, verify, draft),
            committed=1.0 + self.survival.accepted_by_depth(max_depth),
            no_spec_seconds=no_spec,
            sequence_ranks=self.layout.sequence_ranks,
        )

    def with_survival(self, survival: Survival) -> Scenario:
        """The same with another acceptance. No price depends on it, so what was priced is not priced again."""
        return self._sharing(replace(self, survival=survival))

    def with_context(self, context: float) -> Scenario:
        """The same with another context. What was priced is known by its context, so it is kept."""
        return self._sharing(replace(self, context=context))

    @cached_property
    def under_uniform_routing(self) -> Scenario:
        """The same with experts drawn evenly, to compare with."""
        other = replace(self, routing=UNIFORM)
        if self._priced.uniform is not None:
            return self._priced.uniform._sharing(other)
        self._priced.uniform = other
        return other

    def _sharing(self, other: Scenario) -> Scenario:
        """Let another scenario, whose kernels cost the same, have what this one has worked out."""
        other.__dict__.update(count_experts=self.count_experts, drafting=self.drafting, _priced=self._priced)
        if "memory" in self.__dict__:  # not worked out for this: a model that does not fit raises there
            other.__dict__["memory"] = self.memory
        return other

    @cached_property
    def _priced(self) -> _Priced:
        return _Priced()

    def _seconds(self, batch: FloatArray, context: FloatArray, max_depth: int) -> _GridSeconds:
        pairs = list(zip(batch.tolist(), context.tolist(), strict=True))
        rows = self._rows_of(pairs, max_depth)
        rest, draft = (np.array([rows[pair][part][: max_depth + 1] for pair in pairs]) for part in (0, 1))
        step = Step.uniform(batch=batch[:, np.newaxis], depth=np.arange(max_depth + 1.0)).divided(
            self.layout.sequence_ranks
        )
        verify = rest + self.engine_time.launch_seconds(step, self.architecture.layers, rest)
        no_spec = verify[:, 0].copy()
        verify[:, 0] += self.off_seconds(batch, context, no_spec)
        return verify, draft, no_spec

    def off_seconds(self, batch: FloatArray, context: ArrayLike, no_spec_seconds: FloatArray) -> FloatArray:
        """Seconds that configured but disabled speculation adds to steps of an engine without it."""
        step = Step.uniform(batch=batch, depth=0, context=context).divided(self.layout.sequence_ranks)
        return self.engine_time.off_seconds(step, self.architecture.layers, no_spec_seconds)

    def _rows_of(self, pairs: Sequence[tuple[float, float]], max_depth: int) -> _Rows:
        """Known ones, and the others priced and kept. What is handed out stays whole, whoever else asks meanwhile."""
        kept = self._priced.rows
        found = {pair: row for pair in pairs if (row := kept.get(pair)) is not None and row[0].size > max_depth}
        priced = self._price_rows([pair for pair in dict.fromkeys(pairs) if pair not in found], max_depth)
        if len(kept) + len(priced) > _MOST_KEPT:
            kept.clear()
        kept.update(priced)
        return found | priced

    def _price_rows(self, pairs: Sequence[tuple[float, float]], max_depth: int) -> _Rows:
        if not pairs:
            return {}
        batch, context = (np.array(values)[:, np.newaxis] for values in zip(*pairs, strict=True))
        depth = np.arange(max_depth + 1, dtype=np.float64)
        calm = replace(self.engine_time, graph_limit=None, floor_layer_seconds=0.0)
        rest = (
            replace(self, engine_time=calm)
            .verify(Step.uniform(batch=batch, depth=depth, context=context))
            .total_seconds
        )
        draft = self.drafting.seconds(self.drafter, batch=batch, depth=depth, context=context)
        return {pair: (rest[i], draft[i]) for i, pair in enumerate(pairs)}
