"""What every price model shares: the protocol, the ledger it fills, and the engine's own time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from specmargin.architecture.types import LayerCounts
from specmargin.errors import ScenarioError
from specmargin.prices.launches import Graph, launches
from specmargin.prices.work import Component, Work
from specmargin.sources import Source, assumed, weakest
from specmargin.step import FloatArray, Step


class Resource(StrEnum):
    """What limits a component."""

    BYTES = "bytes"
    FLOPS = "flops"
    FIXED = "fixed time"
    COLLECTIVES = "collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPrice:
    """Seconds of all `count` pieces of one work, and the parts they are made of; constant parts may be 0-dimensional.

    Memory and compute overlap, so `seconds` is not their sum.
    """

    seconds: FloatArray
    memory_seconds: FloatArray
    compute_seconds: FloatArray
    fixed_seconds: FloatArray
    source: Source
    parts_spread: FloatArray | None = None  # of several parts, each with a source of its own; None: the source's

    @property
    def spread(self) -> FloatArray:
        """The 80% range of `seconds`, as a logarithm on each side, beyond what prices of its kind err."""
        return np.asarray(self.source.spread) if self.parts_spread is None else self.parts_spread

    def scaled(self, factor: FloatArray) -> WorkPrice:
        parts: dict[str, Any] = {part: np.asarray(getattr(self, part) * factor) for part in _PARTS}
        return replace(self, **parts)


_PARTS = ("seconds", "memory_seconds", "compute_seconds", "fixed_seconds")


def fixed_price(seconds: FloatArray, source: Source) -> WorkPrice:
    """Time that is neither memory's nor compute's: no work of the GPU overlaps with it."""
    zero = np.zeros(())
    return WorkPrice(seconds=seconds, memory_seconds=zero, compute_seconds=zero, fixed_seconds=seconds, source=source)


def total_price(prices: Sequence[WorkPrice]) -> WorkPrice:
    """One after another."""
    if len(prices) == 1:
        return prices[0]
    source = weakest(price.source for price in prices)
    return WorkPrice(**_sums(prices), source=source, parts_spread=_mean_spread(prices))


def _mean_spread(prices: Sequence[WorkPrice]) -> FloatArray | None:
    """Weighted by time: parts of one price are alike, so they err alike. None where it is that of every source."""
    if not any(price.parts_spread is not None or price.source.spread for price in prices):
        return None
    seconds = _sum([price.seconds for price in prices])
    uncertain = _sum([price.spread * price.seconds for price in prices])
    return np.divide(uncertain, seconds, out=np.zeros(np.shape(uncertain)), where=seconds > 0.0)


def _sums(prices: Sequence[WorkPrice]) -> dict[str, FloatArray]:
    return {part: _sum([getattr(price, part) for price in prices]) for part in _PARTS}


class PriceModel(Protocol):
    """Prices works. The datasheet roofline is one; measured laws and tables are others."""

    @property
    def name(self) -> str: ...

    def price(self, works: Sequence[Work]) -> tuple[WorkPrice, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """Time that no priced kernel accounts for: scheduling, sampling, launches, and the small kernels of a layer.

    `verify_step_seconds`, `verify_sequence_seconds` and `verify_token_seconds` (per draft token) are the extra time of
    a step that verifies drafts (rejection sampling, metadata, host work). `draft_pass_seconds` is the engine's time per
    pass of the drafter, and `first_pass_seconds` what the first pass after a verify step takes beyond the others.
    `off_*` is what speculation that is configured but off (γ = 0) adds to an engine without it.

    The host launches what no CUDA graph holds, and no step or draft pass is shorter than its launches
    (`prices/launches.py`), each of which takes `kernel_launch_seconds`. Plain steps, verify steps, steps with prompts
    and draft passes (the first after a verify step, and the later ones) each have a `Graph`; `draft_launches` of a pass
    are outside it. The host goes on launching while the GPU runs. Steps of more than `graph_limit` positions run
    as compiled code without a graph.

    Measured on a machine of the user's instead: `eager_layer_seconds`, what a step without a graph takes more per
    layer; `floor_layer_seconds`, the shortest step with piecewise graphs per layer. An engine that captured full graphs
    only for steps with drafts runs piecewise while speculation is off: `off_floor_layer_seconds`.

    `unaligned_position_seconds` is what a step with prompts beyond the largest graph takes more per position, if its
    positions are not a multiple of four: vLLM's CUTLASS kernel for FP8 blocks then swaps its operands, which is made
    for few positions (vLLM pull request 44572). Only the simulator counts it, and only where it was measured.
    """

    step_seconds: float = 0.0
    sequence_seconds: float = 0.0
    position_seconds: float = 0.0
    layer_seconds: float = 0.0
    verify_step_seconds: float = 0.0
    verify_sequence_seconds: float = 0.0
    verify_token_seconds: float = 0.0
    first_pass_seconds: float = 0.0
    draft_pass_seconds: float = 0.0
    off_step_seconds: float = 0.0
    off_sequence_seconds: float = 0.0
    graph_limit: int | None = None  # positions of the largest CUDA graph; None: a graph for every step
    kernel_launch_seconds: float = 0.0
    plain_graph: Graph = Graph.FULL
    verify_graph: Graph = Graph.FULL
    prompt_graph: Graph = Graph.FULL
    first_draft_graph: Graph = Graph.FULL
    draft_graph: Graph = Graph.FULL
    draft_launches: float = 0.0
    eager_layer_seconds: float = 0.0
    floor_layer_seconds: float = 0.0
    off_floor_layer_seconds: float = 0.0
    unaligned_position_seconds: float = 0.0
    plain_ahead: bool = False  # steps without speculation are scheduled while the one before runs
    rounds_ahead: bool = False  # those with it
    catches_up_alone: bool = False  # the drafter reads the run just verified in a pass of its own, without logits
    launch_source: Source | None = None  # of the time per launch; None: that of the other times
    source: Source = assumed("no engine time: kernels alone")  # noqa: RUF009

    def __post_init__(self) -> None:
        for name in _TIMES:
            if not getattr(self, name) >= 0:
                raise ScenarioError(f"engine time: {name} must not be negative, got {getattr(self, name)}")

    def seconds(self, step: Step) -> FloatArray:
        plain = self.step_seconds + self.sequence_seconds * step.sequences + self.position_seconds * step.positions
        verified = step.verified_sequences
        per_sequence = self.verify_sequence_seconds * verified + self.verify_token_seconds * step.drafted_positions
        return plain + self.verify_step_seconds * (verified > 0.0) + per_sequence

    def schedules_ahead(self, *, speculating: bool) -> bool:
        """Whether a step is scheduled while the one before it runs, so that it sees no request that arrives then."""
        return self.rounds_ahead if speculating else self.plain_ahead

    def draft_seconds(self, passes: FloatArray) -> FloatArray:
        """The engine's time for so many passes of the drafter, beside their kernels."""
        return np.where(passes > 0, self.first_pass_seconds + self.draft_pass_seconds * passes, 0.0)

    def off_seconds(self, step: Step, layers: int, rest: FloatArray) -> FloatArray:
        """What speculation that is configured but off adds to a step that otherwise takes `rest` seconds."""
        idle = np.maximum(self.off_floor_layer_seconds * layers - rest, 0.0)
        return np.asarray(self.off_step_seconds + self.off_sequence_seconds * step.sequences + idle)

    def floor_seconds(self, graph: Graph, counts: LayerCounts, *, mixed: bool = False) -> float:
        """The shortest step that runs so: its launches. `mixed`: prompts beside decoding sequences."""
        return self.kernel_launch_seconds * launches(graph, counts, mixed=mixed)

    @property
    def launched(self) -> Source:
        """Where the time per launch comes from."""
        return self.launch_source or self.source

    def with_launches(self, factor: float) -> EngineTime:
        """With launches that take `factor` times as long."""
        return replace(self, **{name: factor * getattr(self, name) for name in _LAUNCH_TIMES})

    def launch_seconds(self, step: Step, counts: LayerCounts, rest: FloatArray) -> FloatArray:
        """Launch time that is not hidden by the `rest` seconds of the step; none inside a full CUDA graph."""
        captured = np.maximum(self._captured_floor(step, counts), self.floor_layer_seconds * counts.layers)
        idle = np.maximum(captured - rest, 0.0)
        if self.graph_limit is None:
            return np.asarray(idle)
        floor = self.floor_seconds(Graph.COMPILED, counts, mixed=step.mixes_prompts)
        eager = np.maximum(floor - rest, self.eager_layer_seconds * counts.layers)
        return np.asarray(np.where(step.positions > self.graph_limit, eager, idle))

    def _captured_floor(self, step: Step, counts: LayerCounts) -> FloatArray:
        if step.prompt_by_class is not None:
            return np.asarray(self.floor_seconds(self.prompt_graph, counts, mixed=step.mixes_prompts))
        plain, verify = (self.floor_seconds(graph, counts) for graph in (self.plain_graph, self.verify_graph))
        return np.where(step.verified_sequences > 0.0, verify, plain)

    def draft_launch_seconds(self, depth: FloatArray, passes: FloatArray, counts: LayerCounts) -> FloatArray:
        """What the host takes to launch so many passes of a drafter with these layers; 0 without drafts."""
        first, later = (launches(graph, counts) for graph in (self.first_draft_graph, self.draft_graph))
        every = first + later * (passes - 1.0) + self.draft_launches * passes
        return np.where(depth > 0, self.kernel_launch_seconds * every, 0.0)


_TIMES = tuple(field.name for field in fields(EngineTime) if field.name.endswith("_seconds"))
_LAUNCH_TIMES = tuple(name for name in _TIMES if name.startswith(("eager_", "floor_", "kernel_launch_")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPrice(WorkPrice):
    """One line of the ledger."""

    component: Component
    bytes: FloatArray
    flops: FloatArray

    def plus(self, other: ComponentPrice, times: FloatArray) -> ComponentPrice:
        """With `times` the other."""
        names = (*_PARTS, "bytes", "flops")
        sums = {name: getattr(self, name) + times * getattr(other, name) for name in names}
        return replace(self, **sums, parts_spread=_mean_spread([self, other.scaled(np.asarray(times))]))

    def resource(self, index: int = 0) -> Resource:
        """The resource that takes most of this component's time, at one point of the grid."""
        if self.component is Component.COLLECTIVES:
            return Resource.COLLECTIVES
        parts = {
            Resource.BYTES: self.memory_seconds,
            Resource.FLOPS: self.compute_seconds,
            Resource.FIXED: self.fixed_seconds,
        }
        shape = self.seconds.shape  # constant parts are 0-dimensional
        return max(parts, key=lambda part: float(np.ravel(np.broadcast_to(parts[part], shape))[index]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """The price of a step: components, in order, each of the step's grid shape."""

    components: tuple[ComponentPrice, ...]

    @property
    def total_seconds(self) -> FloatArray:
        return np.asarray(sum((c.seconds for c in self.components), start=np.zeros(())))

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(dict.fromkeys(c.source for c in self.components))

    def share(self, component: Component) -> FloatArray:
        """Fraction of the step that a component takes; 0 where it is absent."""
        seconds = [c.seconds for c in self.components if c.component is component]
        return np.asarray(sum(seconds, start=np.zeros(())) / self.total_seconds)


def ledger(
    model: PriceModel, works: Sequence[Work], *, step: Step, engine: EngineTime, counts: LayerCounts
) -> StepPrice:
    """Price the works, add them up by component, and add the engine's own time.

    `step` is the part of the step that one engine process sees.
    """
    prices = model.price(works)
    by_component: dict[Component, list[tuple[Work, WorkPrice]]] = {}
    for work, price in zip(works, prices, strict=True):
        by_component.setdefault(work.component, []).append((work, price))
    lines = [_line(component, pairs) for component, pairs in by_component.items()]
    fixed = (
        (Component.LAYERS, counts.layers * engine.layer_seconds + 0.0 * step.positions),
        (Component.ENGINE, engine.seconds(step)),
    )
    lines += [fixed_line(component, seconds, engine.source) for component, seconds in fixed if np.any(seconds)]
    waiting = engine.launch_seconds(step, counts, _sum([line.seconds for line in lines]))
    if np.any(waiting):
        lines.append(fixed_line(Component.LAUNCHES, waiting + 0.0 * step.positions, engine.launched))
    return StepPrice(components=tuple(lines))


def _line(component: Component, pairs: list[tuple[Work, WorkPrice]]) -> ComponentPrice:
    return ComponentPrice(
        component=component,
        bytes=_sum([work.count * work.bytes for work, _ in pairs]),
        flops=_sum([work.count * work.flops for work, _ in pairs]),
        **_sums([price for _, price in pairs]),
        source=weakest(price.source for _, price in pairs),
        parts_spread=_mean_spread([price for _, price in pairs]),
    )


def fixed_line(component: Component, seconds: FloatArray, source: Source) -> ComponentPrice:
    zeros = np.zeros_like(seconds)
    return ComponentPrice(
        component=component,
        seconds=seconds,
        bytes=zeros,
        flops=zeros,
        memory_seconds=zeros,
        compute_seconds=zeros,
        fixed_seconds=seconds,
        source=source,
    )


def _sum(arrays: Sequence[FloatArray]) -> FloatArray:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return np.asarray(total)
