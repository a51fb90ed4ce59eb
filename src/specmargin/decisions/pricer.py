"""Prices of a scenario's steps and grids, the batches that fit in memory, and the source of each price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from specmargin.acceptance.early_stop import EarlyStop
from specmargin.acceptance.survival import Survival
from specmargin.decisions.early_stop import stopped
from specmargin.decisions.grid import Grid
from specmargin.decisions.memo import Memo, Point, Row
from specmargin.decisions.scenario import Scenario
from specmargin.errors import ParallelismError
from specmargin.prices import memory
from specmargin.prices.drafters import drafter_sequence_bytes, drafter_weight_bytes, round_seconds
from specmargin.prices.hosting import keeps_layers
from specmargin.prices.model import StepPrice, fixed_line, ledger
from specmargin.prices.ranks import rank_step
from specmargin.prices.work import Component, Work, pipeline_work, target_work
from specmargin.routing.profile import UNIFORM
from specmargin.sources import Source
from specmargin.step import ArrayLike, ExpertCounter, FloatArray, Step

_ENGINE_TIME_COMPONENTS = (Component.LAYERS, Component.ENGINE, Component.LAUNCHES)


class Pricer:
    """Prices one scenario and caches the results. The pricers that its methods return share what stays valid."""

    __slots__ = ("_memo", "scenario")

    def __init__(self, scenario: Scenario, *, _memo: Memo | None = None) -> None:
        self.scenario: Final = scenario
        self._memo: Final = Memo.of(scenario) if _memo is None else _memo

    # --- pricers of a changed scenario ---

    def with_survival(self, survival: Survival, early_stop: EarlyStop | None = None) -> Pricer:
        """With another acceptance, and its early stop. No cached price depends on them."""
        return self._sharing(replace(self.scenario, survival=survival, early_stop=early_stop))

    def with_context(self, context: float) -> Pricer:
        """With another context. Prices are cached by context, and the number of experts does not depend on it."""
        return self._sharing(replace(self.scenario, context=context))

    def with_graph_limit(self, graph_limit: int | None) -> Pricer:
        """With other CUDA graphs. Prices are cached without launches."""
        engine_time = replace(self.scenario.engine_time, graph_limit=graph_limit)
        return self._sharing(replace(self.scenario, engine_time=engine_time))

    def with_every_graph(self) -> Pricer:
        """With a CUDA graph for every step."""
        return self.with_graph_limit(None)

    def without_launches(self) -> Pricer:
        """With a CUDA graph for every step, and no step that waits for the host's launches; drafting as it is."""
        engine_time = replace(
            self.scenario.engine_time, graph_limit=None, floor_layer_seconds=0.0, kernel_launch_seconds=0.0
        )
        return self._sharing(replace(self.scenario, engine_time=engine_time))

    def under_uniform_routing(self) -> Pricer:
        """With uniform routing, for comparison. Its prices differ, so they have a memo of their own."""
        scenario, memo = replace(self.scenario, routing=UNIFORM), self._memo
        if memo.under_uniform_routing is None:
            memo.under_uniform_routing = Memo.of(scenario)
        return Pricer(scenario, _memo=memo.under_uniform_routing)

    def _sharing(self, scenario: Scenario) -> Pricer:
        """For a scenario whose kernels cost the same."""
        return Pricer(scenario, _memo=self._memo)

    # --- memory ---

    @property
    def memory(self) -> memory.MemoryBudget:
        """Raises ParallelismError where the weights do not fit."""
        if self._memo.budget is None:
            scenario = self.scenario
            self._memo.budget = memory.budget(
                scenario.architecture,
                scenario.device,
                scenario.layout,
                drafter_bytes=drafter_weight_bytes(scenario.drafter, scenario.layout),
                utilization=scenario.memory_utilization,
                drafter=scenario.drafter.name,
                offload=scenario.offload,
                advice=self._offload_advice(),
            )
        return self._memo.budget

    def _offload_advice(self) -> str:
        """What makes the model fit in an engine that keeps experts of some layers in main memory; "" if nothing."""
        scenario = self.scenario
        if not keeps_layers(scenario.engine) or scenario.device.is_unified:
            return ""
        other = drafter_weight_bytes(scenario.drafter, scenario.layout) + self.sequence_bytes(0)
        usable = scenario.device.usable_bytes(scenario.memory_utilization) * scenario.layout.memories
        layers = memory.fewest_offloaded(scenario.architecture, scenario.layout, usable - other)
        return f"keep experts in main memory: --n-cpu-moe {layers} (with --cpu, --host-memory)" if layers else ""

    def check_memory(self) -> None:
        """Refuse a model whose weights do not fit."""
        _ = self.memory

    @property
    def has_memory(self) -> bool:
        """Whether the weights of target and drafter fit."""
        try:
            return self.memory.free_bytes > 0
        except ParallelismError:
            return False

    def prompt_bytes(self, tokens: float, *, speculating: bool) -> float:
        """KV and states of a prompt on one GPU, the drafter's included: what a decode instance gets of it."""
        return self.sequence_bytes(0 if speculating else None, tokens - 1.0) / self.scenario.layout.stages

    def sequence_bytes(self, depth: int | None, context: float | None = None) -> float:
        """KV and states of one sequence on one GPU, with space for `depth` draft tokens and with the drafter's KV.

        None: in an engine without speculation.
        """
        scenario = self.scenario
        tokens, layout, kv = scenario.context if context is None else context, scenario.layout, scenario.kv_precision
        target = memory.sequence_bytes(scenario.architecture.groups, tokens, layout=layout, kv=kv, depth=depth or 0)
        # Over stages: of a sequence of each batch that is on its way, on the longest stage.
        target = target * layout.stage_factor(scenario.architecture.layers)
        if depth is None:
            return float(target)
        # The last stage holds the drafter's KV of all batches.
        own = drafter_sequence_bytes(scenario.drafter, tokens, layout=layout.stage, kv=kv, depth=depth)
        return float(target + own * layout.stages)

    def largest_batch(self, depth: int) -> int:
        """Sequences that fit when the engine reserves memory for `depth` draft tokens of each."""
        return memory.largest_batch(self.memory, self.sequence_bytes(depth), self.scenario.layout)

    @property
    def no_spec_largest_batch(self) -> int:
        """Sequences that fit in an engine without speculation: no drafter, no memory for drafts."""
        budget = replace(self.memory, drafter_bytes=0.0)
        return memory.largest_batch(budget, self.sequence_bytes(None), self.scenario.layout)

    # --- steps ---

    @property
    def count_experts(self) -> ExpertCounter:
        return self._memo.count_experts

    def distinct_experts(self, step: Step) -> FloatArray | None:
        """Distinct experts, mean over the MoE layers; None for a dense model."""
        groups = self.scenario.architecture.expert_groups
        if not groups:
            return None
        whole = rank_step(step, self.scenario.layout).whole
        load = self.count_experts(self.scenario.architecture.pools, whole)
        layers = sum(group.count for group, _ in groups)
        total = np.zeros_like(step.positions)
        for (group, _), distinct in zip(groups, load.distinct_by_group, strict=True):
            total = total + group.count * distinct
        return np.asarray(total / layers)

    def works(self, step: Step, local: Step | None = None) -> list[Work]:
        """The work of a step of the target: bytes and FLOPs by component, not priced yet."""
        scenario, layout = self.scenario, self.scenario.layout
        whole, local = rank_step(step, layout, local)
        works = target_work(
            scenario.architecture,
            whole,
            self.count_experts(scenario.architecture.pools, whole),
            layout=layout.stage,
            kv=scenario.kv_precision,
            scope=scenario.scope,
            local=local,
            offload=scenario.offload,
        )
        return pipeline_work(scenario.architecture, works, local, layout)

    def verify(self, step: Step, local: Step | None = None) -> StepPrice:
        """The ledger of one step of the target; `local` is the busiest rank's part of it, derived if None."""
        scenario = self.scenario
        local = rank_step(step, scenario.layout, local).local
        works, counts = self.works(step, local), scenario.layer_counts
        return ledger(scenario.prices, works, step=local, engine=scenario.engine_time, counts=counts)

    def marginal(self, step: Step) -> tuple[StepPrice, StepPrice]:
        """The step, and the same step with one more position of one sequence; both in a CUDA graph, or neither.

        Ranks with sequences of their own run in lockstep, so each of them adds one: `sequence_ranks` positions more.
        """
        ranks, graph_limit = self.scenario.layout.sequence_ranks, self.scenario.engine_time.graph_limit
        roomier = self.with_graph_limit(None if graph_limit is None else graph_limit + 1)
        more, more_local = step.one_position_more(ranks), step.divided(ranks).one_position_more()
        return self.verify(step), roomier.verify(more, more_local)

    def draft_seconds(self, batch: ArrayLike, depth: ArrayLike, context: ArrayLike) -> FloatArray:
        """Seconds of drafting `depth` tokens for each of `batch` sequences."""
        sizes, depths, tokens = (np.asarray(values, dtype=np.float64) for values in (batch, depth, context))
        drafted, turns = self._drafted(sizes)
        kernels = self._memo.drafting.seconds(self.scenario.drafter, batch=drafted, depth=depths, context=tokens)
        return turns * (kernels + self._draft_waits(kernels, sizes, depths, tokens))

    def _drafted(self, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sequences that are drafted for at the same time, and how often a round waits for that.

        Only the last pipeline stage drafts. With a batch on every stage, the others wait meanwhile: each batch adds its
        drafting to the round of all. With fewer batches than stages, drafting fits in where a stage would idle.
        """
        stages = self.scenario.layout.stages
        return np.ceil(batch / stages) if stages > 1 else batch, np.where(batch >= stages, float(stages), 1.0)

    def _draft_waits(
        self, kernels: FloatArray, batch: FloatArray, depth: FloatArray, context: FloatArray
    ) -> FloatArray:
        if not np.any(self._memo.drafting.launch_seconds(self.scenario.drafter, depth)):
            return np.zeros(())
        step = Step.uniform(batch=batch, depth=depth, context=context)
        return self.draft_waits(kernels, self.without_launches().verify(step).total_seconds, depth)

    def draft_waits(
        self, kernels: FloatArray, verify: FloatArray, depth: FloatArray, *, launch_factor: float = 1.0
    ) -> FloatArray:
        """How long drafting waits for its launches, if they take so many times as long.

        The host goes on launching while the GPU verifies. `kernels` and `verify`: seconds without launches.
        """
        engine = self._memo.drafting.engine_time
        launched = launch_factor * self._memo.drafting.launch_seconds(self.scenario.drafter, depth)
        if not np.any(launched):
            return np.zeros(())
        before = launch_factor * engine.floor_seconds(engine.verify_graph, self.scenario.layer_counts)
        return np.asarray(np.maximum(before + launched - np.maximum(verify, before) - kernels, 0.0))

    def draft_launch_seconds(self, depth: int) -> float:
        """What the host takes to launch the draft passes of a round, hidden or not."""
        return float(self._memo.drafting.launch_seconds(self.scenario.drafter, np.asarray(float(depth))))

    def draft_ledger(self, batch: ArrayLike, depth: ArrayLike, context: ArrayLike | None = None) -> StepPrice | None:
        """The components of drafting, at depths from 1 on; None where drafting costs nothing."""
        at = (batch, depth, self.scenario.context if context is None else context)
        sizes, depths, tokens = np.broadcast_arrays(*(np.asarray(values, dtype=np.float64) for values in at))
        drafted, turns = self._drafted(sizes)
        one = self._memo.drafting.ledger(self.scenario.drafter, batch=drafted, depth=depths, context=tokens)
        if one is None:
            return None
        several = self.scenario.layout.stages > 1
        kernels = (
            StepPrice(components=tuple(line.plus(line, turns - 1.0) for line in one.components)) if several else one
        )
        waits = self._draft_waits(kernels.total_seconds, sizes, depths, tokens)
        if not np.any(waits):
            return kernels
        launches = fixed_line(Component.LAUNCHES, waits, self.scenario.engine_time.launched)
        return StepPrice(components=(*kernels.components, launches))

    def prefill_seconds(self, tokens: int, *, speculating: bool = False) -> float:
        """Seconds of one prompt, and of the drafter reading it. Ranks with sequences of their own read one each."""
        seconds = float(self.verify(Step.prompts(tokens=tokens)).total_seconds)
        if speculating:
            seconds += self.drafter_prefill_seconds(tokens)
        return seconds / self.scenario.layout.sequence_ranks

    def drafter_prefill_seconds(self, tokens: int) -> float:
        """Seconds of the drafter reading one prompt."""
        return self._memo.drafting.prefill_seconds(self.scenario.drafter, tokens)

    def off_seconds(self, batch: FloatArray, context: ArrayLike, no_spec_seconds: FloatArray) -> FloatArray:
        """Seconds that speculation adds per step while configured but off, to steps of an engine without it."""
        step = Step.uniform(batch=batch, depth=0, context=context).divided(self.scenario.layout.sequence_ranks)
        return self.scenario.engine_time.off_seconds(step, self.scenario.architecture.layers, no_spec_seconds)

    # --- sources ---

    @property
    def sources(self) -> dict[str, Source]:
        """Where each input comes from, and the price of each component of a step without drafts."""
        return self.scenario.input_sources | self._price_sources()

    @property
    def step_sources(self) -> dict[str, Source]:
        """All but acceptance, on which the price of a step does not depend."""
        return {name: source for name, source in self.sources.items() if name != "acceptance"}

    def _price_sources(self) -> dict[str, Source]:
        context, by_context = self.scenario.context, self._memo.price_sources_by_context
        if context not in by_context:
            price = self.verify(Step.uniform(batch=1, depth=0, context=context))
            lines = [line for line in price.components if line.component not in _ENGINE_TIME_COMPONENTS]
            by_context[context] = {str(line.component): line.source for line in lines}
        return by_context[context]

    # --- grids ---

    def grid(self, batches: ArrayLike, max_depth: int, context: ArrayLike | None = None) -> Grid:
        """Prices of every batch (at the scenario's context, or at one of its own) at every depth to `max_depth`."""
        scenario = self.scenario
        batch = np.atleast_1d(np.asarray(batches, dtype=np.float64))
        contexts = np.broadcast_to(
            np.asarray(scenario.context if context is None else context, np.float64), batch.shape
        )
        points = list(zip(batch.tolist(), contexts.tolist(), strict=True))
        rows = self._memo.rows(points, max_depth, lambda missing: self._price(missing, max_depth))
        rest, draft = (np.array([rows[point][part][: max_depth + 1] for point in points]) for part in (0, 1))
        depths = np.arange(max_depth + 1.0)
        local = Step.uniform(batch=batch[:, np.newaxis], depth=depths).divided(scenario.layout.sequence_ranks)
        verify = rest + scenario.engine_time.launch_seconds(local, scenario.layer_counts, rest)
        no_spec = verify[:, 0].copy()
        verify[:, 0] += self.off_seconds(batch, contexts, no_spec)
        whole = round_seconds(scenario.drafter, verify, draft)
        grid = Grid(
            batches=batch,
            depths=depths,
            verify_seconds=verify,
            draft_seconds=draft,
            round_seconds=whole,
            full_round_seconds=whole,
            committed=1.0 + scenario.survival.accepted_by_depth(max_depth),
            no_spec_seconds=no_spec,
            sequence_ranks=scenario.layout.sequence_ranks,
        )
        if scenario.early_stop is None:
            return grid
        tokens = contexts[:, np.newaxis]
        drafting = partial(self.draft_seconds, context=tokens)
        return stopped(grid, scenario.early_stop, scenario.drafter, drafting)

    def _price(self, points: Sequence[Point], max_depth: int) -> dict[Point, Row]:
        batch, context = (np.array(values)[:, np.newaxis] for values in zip(*points, strict=True))
        depth = np.arange(max_depth + 1.0)
        rest = self.without_launches().verify(Step.uniform(batch=batch, depth=depth, context=context)).total_seconds
        draft = self.draft_seconds(batch, depth, context)
        return {point: (rest[i], draft[i]) for i, point in enumerate(points)}
