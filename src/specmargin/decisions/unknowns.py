"""What a speed-up owes to each component: how far an uncertain price moves it, and which component a round grows by.

A component's price may be uncertain by itself (`Source.spread`: scaled, modelled or launch-bound). It is then as
uncertain in a plain step as in a round, so the two mostly cancel: what counts is how the speed-up moves when both are
multiplied alike. Components err independently of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.prices.drafters import round_seconds
from specmargin.prices.model import ComponentPrice, StepPrice
from specmargin.prices.work import Component
from specmargin.sources import Source, weakest
from specmargin.step import ArrayLike, FloatArray, Step

DRAFTING = "drafting"
_ENGINE = (Component.LAYERS, Component.ENGINE)  # one source: the engine's time
_NOISE = 1e-9  # of sums in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceUnknown:
    """An uncertain component, and the logarithms of the factors by which it could change the speed-up, by point."""

    component: Component
    source: Source
    low: FloatArray  # 0 or less
    high: FloatArray  # 0 or more

    @property
    def moves(self) -> bool:
        return bool(np.any(self.high - self.low > _NOISE))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLedger:
    """A plain step and a round at the same points, by component."""

    pricer: Pricer
    depth: FloatArray
    local: Step  # what one engine process sees of both steps
    target: StepPrice  # without launches; on the last axis the plain step and the verify step
    draft: StepPrice | None

    @classmethod
    def of(cls, pricer: Pricer, batch: ArrayLike, depth: ArrayLike, context: ArrayLike | None = None) -> RoundLedger:
        """At depths from 1 on; batch, depth and context of one shape, or that broadcast to one."""
        at = (batch, depth, pricer.scenario.context if context is None else context)
        sizes, depths, tokens = np.broadcast_arrays(*(np.asarray(values, dtype=np.float64) for values in at))
        both = np.stack([np.zeros_like(depths), depths], axis=-1)
        step = Step.uniform(batch=sizes[..., np.newaxis], depth=both, context=tokens[..., np.newaxis])
        return cls(
            pricer=pricer,
            depth=depths,
            local=step.divided(pricer.scenario.layout.sequence_ranks),
            target=pricer.without_launches().verify(step),
            draft=pricer.draft_ledger(sizes, depths, tokens),
        )

    @property
    def _draft_lines(self) -> Sequence[ComponentPrice]:
        """Without launches."""
        lines = () if self.draft is None else self.draft.components
        return [line for line in lines if line.component is not Component.LAUNCHES]

    @property
    def unknowns(self) -> tuple[PriceUnknown, ...]:
        """Components whose price is uncertain by itself."""
        lines = [line for line in (*self.target.components, *self._draft_lines) if np.any(line.spread)]
        found: dict[Component, list[ComponentPrice]] = {}
        for line in lines:
            found.setdefault(_group(line.component), []).append(line)
        if self.pricer.scenario.engine_time.launched.spread:
            found.setdefault(self._launching, [])
        unknowns = (self._unknown(component, of) for component, of in found.items())
        return tuple(each for each in unknowns if each.component is not Component.LAUNCHES or each.moves)

    def _unknown(self, component: Component, lines: Sequence[ComponentPrice]) -> PriceUnknown:
        engine = [self.pricer.scenario.engine_time.launched] if component is self._launching else []
        before = self._log_speedup(None, 0)
        moves = np.stack([self._log_speedup(component, side) - before for side in (-1, 1)])
        return PriceUnknown(
            component=component,
            source=weakest([*(line.source for line in lines), *engine]),
            low=np.minimum(moves.min(axis=0), 0.0),
            high=np.maximum(moves.max(axis=0), 0.0),
        )

    def _log_speedup(self, component: Component | None, side: int) -> FloatArray:
        """Up to the tokens per round, with one component at an end of its range on this `side`."""
        scenario = self.pricer.scenario
        rest = _total(self.target.components, component, side, self.local.positions.shape)
        draft = _total(self._draft_lines, component, side, rest.shape[:-1])
        engine, factor = scenario.engine_time, 1.0
        if component is self._launching:  # the floor itself moves, not what it exceeds the kernels by
            factor = float(np.exp(side * engine.launched.spread))
            engine = engine.with_launches(factor)
        if self.draft is not None:
            draft = draft + self.pricer.draft_waits(draft, rest[..., 1], self.depth, launch_factor=factor)
        steps = rest + engine.launch_seconds(self.local, scenario.layer_counts, rest)
        return np.asarray(np.log(steps[..., 0] / round_seconds(scenario.drafter, steps[..., 1], draft)))

    @property
    def _launching(self) -> Component:
        """Launches are uncertain with the engine's other times, unless they have a source of their own."""
        return Component.ENGINE if self.pricer.scenario.engine_time.launch_source is None else Component.LAUNCHES

    def growth(self) -> dict[str, FloatArray]:
        """Seconds by which each component of the round exceeds the plain step; drafting is one of them."""
        scenario = self.pricer.scenario
        rest = self.target.total_seconds
        launches = scenario.engine_time.launch_seconds(self.local, scenario.layer_counts, rest)
        parts = [(line.component, np.broadcast_to(line.seconds, rest.shape)) for line in self.target.components]
        grown = {str(name): each[..., 1] - each[..., 0] for name, each in [*parts, (Component.LAUNCHES, launches)]}
        return grown | ({} if self.draft is None else {DRAFTING: self.draft.total_seconds})


def price_unknowns(
    pricer: Pricer, batch: ArrayLike, depth: ArrayLike, context: ArrayLike | None = None
) -> tuple[PriceUnknown, ...]:
    """Components whose price is uncertain by itself, and what that does to the speed-up at these points."""
    return RoundLedger.of(pricer, batch, depth, context).unknowns


def _group(component: Component) -> Component:
    return Component.ENGINE if component in _ENGINE else component


def _total(
    lines: Sequence[ComponentPrice], component: Component | None, side: int, shape: tuple[int, ...]
) -> FloatArray:
    total = np.zeros(shape)
    for line in lines:
        factor = np.exp(side * line.spread) if _group(line.component) is component else 1.0
        total = total + factor * line.seconds
    return total
