"""Step prices as tables for the compiled loop, filled once from a scenario's prices and routing.

A step of B decoding sequences and P prompt tokens takes the price of a ragged step (`policies/kernel/prices.py`) at the
mean context, plus `prefill(positions, P, attended)`. The loop adds launches, and the cost of speculation that is
configured but off. Prices are interpolated linearly between table points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.tables import effective_positions, expert_seconds
from specmargin.prices.launches import DRAFT_PROMPT, HOST_SEQUENCE, HOST_STEP, Graph
from specmargin.prices.model import StepPrice
from specmargin.prices.work import Component
from specmargin.routing.local import LocalRouting
from specmargin.routing.profile import RoutingProfile
from specmargin.step import FloatArray, Step

_DENSE_BATCHES = 24  # every batch size up to here is priced, then 60 in geometric steps
_SHORTEST = 64.0  # tokens: the first context above 0
_PROMPT_TOKENS = 2048  # of the prompt at which the drafter's reading is priced; others in proportion


class StepTables(NamedTuple):
    """Plain arrays and numbers, as compiled code takes them."""

    prices: PriceTable  # decoding and drafting by context; launches left out
    effective_by_category: FloatArray  # (category, depth): m(depth + 1)
    prefill: FloatArray  # (decode positions, prefill tokens, attended tokens): seconds that prefill adds
    prefill_positions: FloatArray
    prefill_tokens: FloatArray
    prefill_attended: FloatArray
    draft_prompt_token_seconds: float  # of the drafter reading prompts, with speculation configured: per token
    eager_seconds: float  # launches in a step without a CUDA graph, at least
    eager_floor_seconds: float  # shortest step without a CUDA graph
    eager_mixed_floor_seconds: float  # of those with prompts beside decoding sequences
    floor_seconds: float  # shortest plain step with a CUDA graph
    verify_floor_seconds: float  # of those with drafts
    prompt_floor_seconds: float  # of those with prompts
    mixed_floor_seconds: float  # of those with prompts beside decoding sequences
    piecewise_floor_seconds: float  # shortest step in piecewise graphs
    draft_prompt_floor_seconds: float  # more without a graph, if a drafter reads prompts too
    unaligned_position_seconds: (
        float  # more per position of a step with prompts and no graph, if not a multiple of four
    )
    graph_limit: float  # positions of the largest CUDA graph, over all ranks that share the tables
    off_step_seconds: float  # with speculation configured and nothing drafted: per step
    off_sequence_seconds: float  # and per sequence
    overlap: float  # hit rate of overlapped drafting; negative if drafting follows verification
    host_step_seconds: float  # of the host before it launches a step
    host_sequence_seconds: float
    launch_slowdown: FloatArray  # launch time over its mean, by span of time, repeated cyclically
    slowdown_seconds: float  # of a span


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """Extent of the tables; they extrapolate linearly beyond it."""

    sequences: int
    depth: int
    context: int
    prefill_tokens: int


def step_tables(
    pricer: Pricer, limits: TableLimits, category_routing: Sequence[RoutingProfile], *, ranks: int = 1
) -> StepTables:
    """`category_routing`: one profile per category. `ranks`: sequences and positions are those of each of so many
    data-parallel ranks, while the others have as many."""
    # The price jumps at the graph limit, and interpolation would smooth it: the loop adds launches instead.
    scenario, bare = pricer.scenario, pricer.without_launches()
    batches, depths, contexts = _batches(limits.sequences), np.arange(limits.depth + 1.0), context_axis(limits.context)
    shape = (ranks * batches[:, np.newaxis, np.newaxis], depths[:, np.newaxis], contexts)
    decode = bare.verify(Step.uniform(batch=shape[0], depth=shape[1], context=shape[2])).total_seconds
    draft = bare.draft_seconds(*shape)
    effective = effective_positions(scenario, depths)
    positions = np.arange(np.ceil(ranks * limits.sequences * float(effective[-1])) + 2.0)
    experts = expert_seconds(bare, positions)
    rest = decode - np.interp(shape[0] * effective[:, np.newaxis], positions, experts)
    axes = _prefill_axes(limits)
    engine, drafter = scenario.engine_time, scenario.drafter
    layers, sharing = scenario.architecture.layers, scenario.layout.sequence_ranks // ranks
    counts, pieces = scenario.layer_counts, engine.floor_layer_seconds * layers
    prices = PriceTable.of(
        rest_seconds=_every_batch(rest, batches, limits.sequences),
        draft_seconds=_every_batch(draft, batches, limits.sequences),
        contexts=contexts,
        expert_seconds=experts,
        expert_step=1.0 / ranks,
        effective_by_depth=effective,
    )
    return StepTables(
        prices=prices,
        effective_by_category=_by_category(scenario, category_routing, depths, effective),
        prefill=_prefill(bare, axes, ranks=ranks),
        prefill_positions=axes[0],
        prefill_tokens=axes[1],
        prefill_attended=axes[2],
        draft_prompt_token_seconds=pricer.drafter_prefill_seconds(_PROMPT_TOKENS) / _PROMPT_TOKENS,
        eager_seconds=engine.eager_layer_seconds * layers,
        eager_floor_seconds=engine.floor_seconds(Graph.COMPILED, counts),
        eager_mixed_floor_seconds=engine.floor_seconds(Graph.COMPILED, counts, mixed=True),
        floor_seconds=max(engine.floor_seconds(engine.plain_graph, counts), pieces),
        verify_floor_seconds=max(engine.floor_seconds(engine.verify_graph, counts), pieces),
        prompt_floor_seconds=max(engine.floor_seconds(engine.prompt_graph, counts), pieces),
        mixed_floor_seconds=max(engine.floor_seconds(engine.prompt_graph, counts, mixed=True), pieces),
        piecewise_floor_seconds=max(engine.floor_seconds(Graph.PIECEWISE, counts), pieces),
        draft_prompt_floor_seconds=engine.kernel_launch_seconds * DRAFT_PROMPT,
        unaligned_position_seconds=engine.unaligned_position_seconds,
        graph_limit=math.inf if engine.graph_limit is None else float(engine.graph_limit * sharing),
        off_step_seconds=engine.off_step_seconds,
        off_sequence_seconds=engine.off_sequence_seconds / sharing,
        overlap=-1.0 if drafter.hit_rate is None else drafter.hit_rate,
        host_step_seconds=engine.kernel_launch_seconds * HOST_STEP,
        host_sequence_seconds=engine.kernel_launch_seconds * HOST_SEQUENCE,
        launch_slowdown=np.ones(1),
        slowdown_seconds=1.0,
    )


def _batches(largest: int) -> FloatArray:
    sparse = np.geomspace(_DENSE_BATCHES, max(largest, _DENSE_BATCHES), 60).round()
    return np.unique(np.concatenate([np.arange(1.0, min(largest, _DENSE_BATCHES) + 1), sparse[sparse <= largest]]))


def context_axis(longest: int) -> FloatArray:
    doublings = int(np.ceil(np.log2(max(longest, 2 * _SHORTEST) / _SHORTEST)))
    return np.concatenate([[0.0], _SHORTEST * 2.0 ** np.arange(doublings + 1)])


def _every_batch(values: FloatArray, batches: FloatArray, largest: int) -> FloatArray:
    every = np.arange(1.0, largest + 1.0)
    flat = values.reshape(batches.size, -1)
    low = np.clip(np.searchsorted(batches, every, side="right") - 1, 0, max(batches.size - 2, 0))
    high = np.minimum(low + 1, batches.size - 1)
    width = np.maximum(batches[high] - batches[low], 1e-9)
    weight = ((every - batches[low]) / width)[:, np.newaxis]
    dense = (1.0 - weight) * flat[low] + weight * flat[high]
    empty_batch = np.zeros((1, flat.shape[1]))
    return np.ascontiguousarray(np.concatenate([empty_batch, dense]).reshape(largest + 1, *values.shape[1:]))


def _by_category(
    scenario: Scenario, routing: Sequence[RoutingProfile], depths: FloatArray, effective: FloatArray
) -> FloatArray:
    """Effective positions by category and depth: locality differs by category, expert popularity is that of the mix."""
    pools = scenario.architecture.pools
    mix = scenario.routing.local(pools[0]) if pools else None
    rows = [
        effective if mix is None else _effective_positions(mix, profile.local(pools[0]), depths, effective)
        for profile in routing
    ]
    return np.array(rows)


def _effective_positions(
    mix: LocalRouting, category: LocalRouting | None, depths: FloatArray, effective: FloatArray
) -> FloatArray:
    """Independent positions of the mix that touch as many experts as a run of this category."""
    if category is None or category is mix:
        return effective
    widths = np.geomspace(1.0, max(depths[-1] + 1.0, 2.0), 200)
    experts_by_width = mix.mean(mix.pool, Step.uniform(batch=widths))
    experts_by_depth = category.mean(category.pool, Step.uniform(batch=1, depth=depths))
    return np.asarray(np.exp(np.interp(experts_by_depth, experts_by_width, np.log(widths))))


_Axes = tuple[FloatArray, FloatArray, FloatArray]


def _prefill_axes(limits: TableLimits) -> _Axes:
    """Decoding positions, prompt tokens, and the tokens that each of these attends to."""
    max_positions = limits.sequences * (limits.depth + 1.0)
    positions = np.concatenate([[0.0], 2.0 ** np.arange(np.ceil(np.log2(max(max_positions, 2.0))) + 1)])
    tokens = np.unique(np.round(2.0 ** np.arange(0.0, np.log2(max(limits.prefill_tokens, 2)) + 0.5, 0.5)))
    return positions, tokens, np.concatenate([[1.0, 8.0], context_axis(limits.context)[1:]])


def _prefill(pricer: Pricer, axes: _Axes, *, ranks: int = 1, only: Component | None = None) -> FloatArray:
    """Seconds that prompt tokens add to a step, of one component or of all."""
    decoding, chunk, mean = np.meshgrid(*axes, indexing="ij")
    # One chunk of P tokens after a context, or several short prompts: whichever gives that mean.
    length = np.maximum(np.minimum(chunk, 2.0 * mean), 1.0)
    prompts = Step.prompts(count=ranks * chunk / length, tokens=length, context=np.maximum(mean - chunk / 2.0, 0.0))
    decode_step = Step.uniform(batch=ranks * decoding, depth=0, context=pricer.scenario.context)
    steps = (prompts, decode_step.joined(prompts), decode_step)
    alone, together, before = (_seconds(pricer.verify(step), only) for step in steps)
    seconds = np.where(decoding > 0, np.maximum(together - before, 0.0), alone)
    # A piece of a prompt is in one of the batches that fill the stages: it delays a round by its time on one stage.
    return np.ascontiguousarray(seconds / pricer.scenario.layout.stages)


def _seconds(price: StepPrice, only: Component | None) -> FloatArray:
    if only is None:
        return price.total_seconds
    return np.asarray(sum((line.seconds for line in price.components if line.component is only), start=np.zeros(())))


# --- data-parallel ranks ---


class RankTables(NamedTuple):
    """By the sequences and positions of one rank. Routed experts are read for those of all ranks, so their seconds
    are kept apart."""

    steps: StepTables  # its `prefill` without routed experts
    experts: StepTables  # its `prefill` of routed experts alone


def rank_tables(pricer: Pricer, limits: TableLimits, category_routing: Sequence[RoutingProfile]) -> RankTables:
    """`limits` are those of one rank."""
    ranks = pricer.scenario.layout.data_ranks
    tables, bare = step_tables(pricer, limits, category_routing, ranks=ranks), pricer.without_launches()
    experts = _prefill(bare, _prefill_axes(limits), ranks=ranks, only=Component.ROUTED_EXPERTS)
    return RankTables(
        steps=tables._replace(prefill=np.maximum(tables.prefill - experts, 0.0)),
        experts=tables._replace(prefill=experts),
    )
